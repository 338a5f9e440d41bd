//! From words to meaning: a worker's configuration, checked before anything happens.

use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tidegate_batch::BaseUrl;
use tidegate_crew::{Allowed, PageHandler};
use tidegate_limit::{Dimension, Gate, Limit, Window};
use tidegate_pool::Watermarks;
use tidegate_redis::Address;
use tidegate_secret::Secret;
use tidegate_worker::codec::{celery, dramatiq, native};
use tidegate_worker::rabbit::{PresenceOptions, RedisResults};
use tidegate_worker::{
    Coroutines, Decode, Inherited, Limits, MAX_FRAME, Mode, Policies, Policy, ProcessMode, ProcessOptions, Settings,
    Threads,
};

use super::handler::{self, Call, HandlerSpec};
use super::pages::{Pages, PagesSpec};
use super::rules::{TaskPolicy, check_limits};
use super::{Args, Codec, ModeName, logging};
use crate::broker::{BrokerArgs, Kind};
use crate::command::EXPLAIN_QUEUE;
use crate::command::limits::SharedArgs;
use crate::command::status::StatusSpec;
use crate::counts::Counts;

/// For how long a page's answer is kept for who asked, at least.
const PAGES_KEPT: Duration = Duration::from_secs(24 * 3600);

/// A page is dead-lettered after this many workers died with it. The number is high, because pages that wait for the quota are
/// lost with a worker without being the reason for its death.
const PAGES_CRASHES: u32 = 10;

/// What a worker is to do.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) broker: BrokerArgs,
    /// Without the limits, which are made on the loop.
    pub(crate) settings: Settings,
    /// How Celery's tools see it, where they do.
    pub(crate) presence: Option<PresenceOptions>,
    /// Where Celery's results go, if not where `rpc://` looks, and for how long they stay there.
    pub(crate) result_backend: Option<(Address, Duration)>,
    /// RabbitMQ's management API, with user and password.
    pub(crate) management: Option<Secret>,
    pub(crate) shared: SharedArgs,
    pub(crate) pages: Option<PagesSpec>,
    pub(crate) policy: Policy,
    pub(crate) gates: Vec<GateSpec>,
    pub(crate) tasks: Vec<TaskPolicy>,
    pub(crate) mode: ModeSpec,
    pub(crate) status: Option<StatusSpec>,
    pub(crate) json: bool,
    pub(crate) log: String,
    pub(crate) log_format: logging::Format,
}

/// What runs the tasks.
#[derive(Debug)]
pub(crate) enum ModeSpec {
    Coroutine { handlers: Vec<(String, Call)>, inherited: Inherited, slots: usize },
    Thread { handlers: Vec<(String, Call)>, inherited: Inherited, slots: Option<usize> },
    Process(ProcessOptions),
}

impl ModeSpec {
    pub(crate) fn make(&self, pages: Option<&Pages>) -> Rc<dyn Mode> {
        match self {
            ModeSpec::Coroutine { handlers, inherited, slots } => {
                let handlers = handler::handlers(handlers, inherited);
                let handlers = match pages {
                    Some(pages) => handlers.handler(tidegate_crew::TASK, Rc::<PageHandler>::clone(&pages.handler)),
                    None => handlers,
                };
                Rc::new(Coroutines::new(handlers).with_slots(*slots))
            }
            ModeSpec::Thread { handlers, inherited, slots } => {
                let threads = Threads::new(handler::blocking_handlers(handlers, inherited));
                Rc::new(match slots {
                    Some(slots) => threads.with_slots(*slots),
                    None => threads,
                })
            }
            ModeSpec::Process(options) => Rc::new(ProcessMode::new(options.clone())),
        }
    }
}

impl TryFrom<Args> for Config {
    type Error = anyhow::Error;

    fn try_from(args: Args) -> anyhow::Result<Config> {
        let policy = Policy {
            retries_max: args.retries,
            backoff: args.backoff.0,
            crashes_max: args.crashes,
            soft_limit: args.soft_limit,
            hard_limit: args.hard_limit,
            result_ttl: args.result_ttl,
        };
        check_limits("this worker", policy.soft_limit, policy.hard_limit)?;
        if args.crashes == 0 {
            bail!("--crashes must be at least 1 (a task is then dead-lettered at its first crash)");
        }
        let result_backend = result_backend(&args)?;
        let management = management(&args)?;
        let mode = mode(&args)?;
        let pages = pages(&args)?;
        let names = match (&args.queue[..], &pages, args.handler.len()) {
            ([], Some(_), 1) => vec![EXPLAIN_QUEUE.to_owned()],
            ([], ..) => vec!["default".to_owned()],
            (queues, ..) => queues.to_vec(),
        };
        let mut settings = Settings::new(names);
        settings.queues.dedup();
        settings.decode = decode(args.codec, result_backend.is_some());
        settings.prefetch = args.prefetch.map(|prefetch| prefetch as usize);
        settings.warm_timeout = args.warm_timeout;
        settings.watermarks = watermarks(&args, &mode)?;
        settings.schedules = args.cron;
        settings.name = args.name.unwrap_or_else(default_name);
        let foreign = args.codec != Codec::Native && args.broker.is_rabbit();
        let mut policies = Policies::new(told(foreign, policy.clone()));
        if pages.is_some() {
            // Who asked may be away: what was paid for is kept until he comes again.
            let result_ttl = policy.result_ttl.max(PAGES_KEPT);
            let crashes_max = policy.crashes_max.max(PAGES_CRASHES);
            policies = policies.task(tidegate_crew::TASK, Policy { result_ttl, crashes_max, ..policy.clone() });
        }
        for task in &args.task {
            let own = task.over(&policy)?;
            policies = policies.task(task.name(), told(foreign, own));
        }
        settings.policies = policies;
        for spec in &args.limit {
            spec.gate()?;
        }
        for (name, queue) in args.limit.iter().filter_map(GateSpec::queue) {
            if !settings.queues.contains(&queue) {
                bail!("--limit {name:?} is for a queue this worker does not take from; add --queue {queue}");
            }
        }
        let celerys = matches!(args.codec, Codec::Celery | Codec::Auto);
        if args.no_remote_control && !(celerys && args.broker.is_rabbit()) {
            bail!(
                "--no-remote-control is for workers that Celery's tools can reach; it goes with --broker amqp://HOST --codec \
                 celery (or auto)"
            );
        }
        let presence = celerys.then(|| {
            let mut presence = PresenceOptions::new(&settings.name);
            presence.remote_control = !args.no_remote_control;
            (presence.task_events, presence.track_started) = (args.events, args.track_started);
            presence
        });
        let status = args.status.spec()?;
        Ok(Config {
            broker: queues(args.codec, args.broker).with_bodies(args.bodies),
            settings,
            presence,
            result_backend,
            management,
            shared: args.shared,
            pages,
            policy,
            gates: args.limit,
            tasks: args.task,
            mode,
            status,
            json: args.json,
            log: args.log,
            log_format: args.log_format,
        })
    }
}

fn mode(args: &Args) -> anyhow::Result<ModeSpec> {
    let mut named = Vec::new();
    let mut modules = Vec::new();
    let mut explains = false;
    for spec in &args.handler {
        match spec {
            HandlerSpec::Named(name, call) => named.push((name.clone(), call.clone())),
            HandlerSpec::Python(module) => modules.push(module.clone()),
            HandlerSpec::Explain => explains = true,
        }
    }
    let command = match (&args.command[..], &modules[..]) {
        ([], []) => None,
        ([], [module]) => Some(["python3", "-m", "tidegate", "worker", module].map(Into::into).to_vec()),
        ([], _) => bail!("one Python module a worker; import the others from it, or start another worker"),
        (command, []) => Some(command.to_vec()),
        _ => bail!("a COMMAND and --handler python:MODULE are two ways to say the same; use one"),
    };
    if command.is_some() && (explains || !named.is_empty()) {
        bail!(
            "a worker runs either child processes or --handler NAME=exec:…, NAME=http://… and explain; start two workers"
        );
    }
    if explains && args.mode.is_some_and(|mode| mode != ModeName::Coroutine) {
        bail!("--handler explain runs in coroutines; leave --mode away");
    }
    check_private(&named, args.server.insecure_http)?;
    let inherited = args.handler_env.iter().fold(Inherited::harmless(), |inherited, name| inherited.and(name));
    let slots = args.concurrency.map(|slots| slots as usize);
    match (args.mode, command) {
        (None | Some(ModeName::Process), Some(command)) => {
            let mut options = ProcessOptions::new(command);
            options.inherited = inherited;
            options.children = slots.unwrap_or(options.children);
            options.pipeline = usize::from(args.pipeline);
            options.max_tasks = args.max_tasks;
            options.max_rss = args.max_memory.map(|mib| mib << 20);
            // Beside its body a run takes little, and a result may be larger than its task.
            options.max_frame = MAX_FRAME.max(2 * args.bodies.bytes());
            Ok(ModeSpec::Process(options))
        }
        (Some(_), Some(_)) => bail!("a COMMAND and a Python module run in processes; leave --mode away"),
        (Some(ModeName::Process), None) => {
            bail!("--mode process needs a program to run: --handler python:MODULE, or -- COMMAND…")
        }
        (_, None) if named.is_empty() && !explains => bail!(
            "which handler? --handler NAME=exec:COMMAND, --handler NAME=http://…, --handler python:MODULE, --handler explain, or \
             -- COMMAND…"
        ),
        (Some(ModeName::Thread), None) => Ok(ModeSpec::Thread { handlers: named, inherited, slots }),
        (None | Some(ModeName::Coroutine), None) => {
            // Pages that wait at the gate hold a slot each, so the number that may be in flight is enough.
            let usual = if explains && named.is_empty() {
                usize::try_from(args.quotas.global_concurrency.most()).unwrap_or(Coroutines::SLOTS)
            } else {
                Coroutines::SLOTS
            };
            let slots = args.high_water.or(slots).unwrap_or(usual);
            Ok(ModeSpec::Coroutine { handlers: named, inherited, slots })
        }
    }
}

/// Refuses to send a handler's password where others can read it.
fn check_private(handlers: &[(String, Call)], insecure_http: bool) -> anyhow::Result<()> {
    for (name, call) in handlers {
        let Call::Http(url) = call else { continue };
        let url = BaseUrl::parse(url.expose()).with_context(|| format!("bad address of handler {name}"))?;
        if url.has_user() && !url.is_private() && !insecure_http {
            bail!(
                "the password of handler {name} would be sent to {url} unencrypted; use https://, or --insecure-http if you \
                 trust everyone on the way"
            );
        }
    }
    Ok(())
}

fn pages(args: &Args) -> anyhow::Result<Option<PagesSpec>> {
    if !args.handler.contains(&HandlerSpec::Explain) {
        if !args.allow_model.is_empty() || args.allow_max_tokens.is_some() {
            bail!("--allow-model and --allow-max-tokens are for pages; add --handler explain, or leave them out");
        }
        return Ok(None);
    }
    // Before anything happens: a key that is missing is missed at once.
    if let Some(dialect) = args.server.provider.dialect() {
        args.server.key(dialect)?;
    }
    let quotas = args.quotas.quotas();
    quotas.gate()?;
    let mut allowed = Allowed::default().with_models(&args.allow_model);
    if let Some(max_tokens) = args.allow_max_tokens {
        allowed = allowed.with_max_tokens(max_tokens);
    }
    let counts = Counts::new(args.server.account()?);
    Ok(Some(PagesSpec { server: args.server.clone(), quotas, counts, shared: args.shared.clone(), allowed }))
}

fn result_backend(args: &Args) -> anyhow::Result<Option<(Address, Duration)>> {
    let Some(address) = &args.result_backend else {
        if args.result_expires.is_some() {
            bail!("--result-expires is for results in Redis; add --result-backend redis://HOST, or use --result-ttl");
        }
        return Ok(None);
    };
    if args.codec != Codec::Celery || !args.broker.is_rabbit() {
        bail!(
            "--result-backend is where Celery's producers look for results; it goes with --broker amqp://HOST --codec celery"
        );
    }
    // Read here and not by clap, which would show the password of one that is wrong.
    let address = address.expose().parse::<Address>().map_err(|error| anyhow!("--result-backend: {error}"))?;
    Ok(Some((address, args.result_expires.unwrap_or(RedisResults::EXPIRES))))
}

fn management(args: &Args) -> anyhow::Result<Option<Secret>> {
    let Some(url) = &args.management else { return Ok(None) };
    if !args.broker.is_rabbit() {
        bail!("--management is the management API of a RabbitMQ; it goes with --broker amqp://HOST");
    }
    let base = BaseUrl::parse(url.expose()).context("bad --management")?;
    if base.has_user() && !base.is_private() && !args.server.insecure_http {
        bail!(
            "the password in --management would be sent to {base} unencrypted; use https://, or --insecure-http if you trust \
             everyone on the way"
        );
    }
    Ok(Some(url.clone()))
}

fn watermarks(args: &Args, mode: &ModeSpec) -> anyhow::Result<Option<Watermarks>> {
    let ModeSpec::Coroutine { slots, .. } = mode else {
        if args.low_water.is_some() {
            bail!("--high-water and --low-water are for coroutines; processes and threads have --concurrency");
        }
        return Ok(None);
    };
    let low = args.low_water.unwrap_or_else(|| Settings::low_water_for(*slots));
    if *slots == 0 || low >= *slots {
        bail!("the low-water mark ({low}) must be below the high-water mark ({slots})");
    }
    Ok(Some(Watermarks { high: *slots, low }))
}

/// In RabbitMQ each codec's producers make queues of their own kind.
fn queues(codec: Codec, broker: BrokerArgs) -> BrokerArgs {
    match codec {
        Codec::Native | Codec::Auto => broker,
        Codec::Celery => broker.kind_unless_given(Kind::Plain),
        Codec::Dramatiq => broker.kind_unless_given(Kind::Dramatiq),
    }
}

/// Keeps the results of foreign tasks for a moment even with `--result-ttl 0`, because callbacks need them.
fn told(foreign: bool, mut policy: Policy) -> Policy {
    if foreign {
        policy.result_ttl = policy.result_ttl.max(Duration::from_millis(1));
    }
    policy
}

fn decode(codec: Codec, counted: bool) -> Decode {
    match codec {
        // With a result backend the parts of chords are counted.
        Codec::Celery if counted => {
            Rc::new(|envelope, retries| celery::read(envelope, retries).map(|message| message.task))
        }
        Codec::Native => Rc::new(native::decode),
        Codec::Celery => Rc::new(celery::decode),
        Codec::Dramatiq => Rc::new(dramatiq::decode),
        Codec::Auto => Rc::new(|envelope, retries| {
            if celery::is_celery(envelope) {
                return celery::decode(envelope, retries);
            }
            // A message that no codec can read gets the error of the native one.
            native::decode(envelope, retries).or_else(|error| dramatiq::decode(envelope, retries).map_err(|_| error))
        }),
    }
}

fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "worker".to_owned());
    format!("{}-{}", host.trim(), std::process::id())
}

/// `queue:NAME KEY=N…` or `task:NAME KEY=N…`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GateSpec {
    pub(crate) text: String,
    of_queue: bool,
    name: String,
    concurrency: Option<u64>,
    per_second: Option<u64>,
    per_minute: Option<u64>,
    per_day: Option<u64>,
}

impl FromStr for GateSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<GateSpec> {
        let mut words = text.split_whitespace();
        let (kind, name) = words.next().and_then(|word| word.split_once(':')).unwrap_or_default();
        if !matches!(kind, "queue" | "task") || name.is_empty() {
            bail!("{text:?} is no limit; write 'queue:NAME rpm=150 concurrency=20' or 'task:NAME rps=5'");
        }
        let mut spec = GateSpec {
            text: text.to_owned(),
            of_queue: kind == "queue",
            name: name.to_owned(),
            concurrency: None,
            per_second: None,
            per_minute: None,
            per_day: None,
        };
        for word in words {
            let (key, value) = word.split_once('=').with_context(|| format!("{word:?} is no KEY=N"))?;
            let number = value.parse::<u64>().ok().filter(|number| *number > 0);
            let number = Some(number.with_context(|| format!("{word:?} has no whole number above zero"))?);
            match key {
                "concurrency" => spec.concurrency = number,
                "rps" => spec.per_second = number,
                "rpm" => spec.per_minute = number,
                "rpd" => spec.per_day = number,
                _ => bail!("{key:?} is no limit; there are concurrency, rps, rpm, rpd"),
            }
        }
        if [spec.concurrency, spec.per_second, spec.per_minute, spec.per_day].iter().all(Option::is_none) {
            bail!("{text:?} limits nothing; write queue:{name} rpm=150");
        }
        Ok(spec)
    }
}

impl GateSpec {
    fn queue(&self) -> Option<(String, String)> {
        self.of_queue.then(|| (self.text.clone(), self.name.clone()))
    }

    fn limits(&self) -> Vec<Limit> {
        let second = |amount| Limit::rate("rps", Dimension::REQUESTS, amount, Window::strict(Duration::from_secs(1)));
        let mut limits: Vec<Limit> = Vec::new();
        limits.extend(self.concurrency.map(|amount| Limit::concurrency("concurrency", amount)));
        limits.extend(self.per_second.map(second));
        limits.extend(self.per_minute.map(Limit::rpm));
        limits.extend(self.per_day.map(|amount| Limit::rpd(amount, "UTC")));
        limits
    }

    fn gate(&self) -> anyhow::Result<Gate> {
        let gate = Gate::builder().limits(self.limits()).build();
        gate.map_err(|error| anyhow!("--limit {:?}: {error}", self.text))
    }

    /// Adds its gate, in common with other workers if there is a Redis. To be called on a loop.
    pub(crate) async fn add_to(&self, limits: Limits, shared: &SharedArgs) -> anyhow::Result<Limits> {
        let part = format!("{}:{}", if self.of_queue { "queue" } else { "task" }, self.name);
        let gate = shared.admission(self.gate()?, &part, self.limits()).await?;
        Ok(if self.of_queue { limits.queue(&self.name, gate) } else { limits.task(&self.name, gate) })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tidegate_worker::{Envelope, Task};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn config(words: &str) -> anyhow::Result<Config> {
        let words = ["worker"].into_iter().chain(words.split('|').filter(|word| !word.is_empty()));
        let line = Line::try_parse_from(words).map_err(|error| anyhow!("{error}"))?;
        Config::try_from(line.args)
    }

    fn complaint(words: &str) -> String {
        config(words).unwrap_err().to_string()
    }

    #[test]
    fn what_is_given_decides_the_mode() {
        let coroutine = config("--handler|a=exec:cat").unwrap();
        assert!(matches!(coroutine.mode, ModeSpec::Coroutine { slots: 1_000, .. }));
        assert_eq!(coroutine.settings.watermarks, Some(Watermarks { high: 1_000, low: 800 }));
        let few = config("--handler|a=exec:cat|--concurrency|1").unwrap();
        assert_eq!(few.settings.watermarks, Some(Watermarks { high: 1, low: 0 }));
        let thread = config("--handler|a=exec:cat|--mode|thread|--concurrency|3").unwrap();
        assert!(matches!(thread.mode, ModeSpec::Thread { slots: Some(3), .. }));
        let ModeSpec::Process(options) = config("--concurrency|2|--|python3|-m|x").unwrap().mode else { panic!() };
        assert_eq!((options.command.len(), options.children), (3, 2));
        let ModeSpec::Process(options) = config("--handler|python:my.tasks").unwrap().mode else { panic!() };
        assert_eq!(options.command.last().unwrap(), "my.tasks");
    }

    #[test]
    fn pages_have_a_queue_and_rules_of_their_own() {
        let pages = config("--handler|explain|--global-concurrency|30").unwrap();
        assert_eq!(pages.settings.queues, ["explain"]);
        assert!(matches!(pages.mode, ModeSpec::Coroutine { slots: 30, .. }));
        let policy = pages.settings.policies.of(tidegate_crew::TASK);
        assert_eq!((policy.crashes_max, policy.result_ttl), (PAGES_CRASHES, PAGES_KEPT));
        let told = config("--handler|explain|--task|explain.page crashes=1|--queue|q|--handler|a=exec:cat").unwrap();
        assert_eq!(
            (told.settings.queues[0].as_str(), told.settings.policies.of(tidegate_crew::TASK).crashes_max),
            ("q", 1)
        );
        assert!(complaint("--handler|explain|--mode|thread").contains("runs in coroutines"));
        assert!(complaint("--handler|a=exec:cat|--allow-model|m").contains("add --handler explain"));
        assert!(complaint("--handler|a=exec:cat|--allow-max-tokens|9").contains("add --handler explain"));
        let some = config("--handler|explain|--allow-model|m|--allow-model|n|--allow-max-tokens|9").unwrap();
        assert_eq!(some.pages.unwrap().allowed, Allowed::default().with_models(["m", "n"]).with_max_tokens(9));
        assert!(complaint("--handler|explain|--|sh").contains("start two workers"));
        let error = complaint("--handler|explain|--provider|openai|--api-key-env|TIDEGATE_NO_SUCH_KEY");
        assert!(error.contains("TIDEGATE_NO_SUCH_KEY"), "{error}");
    }

    #[test]
    fn what_does_not_go_together_is_said() {
        assert!(complaint("").starts_with("which handler?"));
        assert!(complaint("--handler|a=exec:cat|--|sh").contains("start two workers"));
        assert!(complaint("--mode|process|--handler|a=exec:cat").contains("needs a program"));
        assert!(complaint("--mode|thread|--|sh").contains("leave --mode away"));
        assert!(complaint("--handler|a=exec:cat|--low-water|9|--high-water|9").contains("must be below"));
        assert!(complaint("--handler|a=exec:cat|--mode|thread|--low-water|9").contains("are for coroutines"));
        assert!(
            complaint("--handler|a=exec:cat|--soft-limit|9s|--hard-limit|9s").contains("must be below its hard one")
        );
        assert!(complaint("--handler|a=exec:cat|--hard-limit|0").contains("before it begins"));
        assert!(complaint("--handler|a=exec:cat|--limit|queue:x rpm=1").contains("add --queue x"));
    }

    #[test]
    fn a_result_backend_goes_with_celery_and_keeps_its_password_to_itself() {
        let celery = "--handler|a=exec:cat|--broker|amqp://localhost|--codec|celery";
        let config = config(&format!("{celery}|--result-backend|redis://:hush@cache/2")).unwrap();
        let (address, expires) = config.result_backend.unwrap();
        assert_eq!((address.to_string().as_str(), expires), ("redis://cache:6379/2", RedisResults::EXPIRES));
        for (words, told) in [
            (format!("{celery}|--result-backend|redis://:hush@cache:x/2"), "a number from 1 to 65535"),
            (format!("{celery}|--result-backend|amqp://:hush@cache"), "starts with redis://"),
            (format!("{celery}|--result-expires|1h"), "add --result-backend"),
            ("--handler|a=exec:cat|--result-backend|redis://:hush@cache".to_owned(), "--codec celery"),
        ] {
            let complaint = complaint(&words);
            assert!(complaint.contains(told) && !complaint.contains("hush"), "{complaint}");
        }
    }

    #[test]
    fn remote_control_is_turned_off_where_there_is_some() {
        let rabbit = "--handler|a=exec:cat|--broker|amqp://localhost|--codec";
        for codec in ["celery", "auto"] {
            let listens =
                |more: &str| config(&format!("{rabbit}|{codec}{more}")).unwrap().presence.unwrap().remote_control;
            assert!(listens(""), "{codec}");
            assert!(!listens("|--no-remote-control"), "{codec}");
        }
        for words in [
            &format!("{rabbit}|native|--no-remote-control"),
            &format!("{rabbit}|dramatiq|--no-remote-control"),
            "--handler|a=exec:cat|--codec|celery|--no-remote-control",
        ] {
            let complaint = complaint(words);
            assert!(complaint.contains("--no-remote-control") && complaint.contains("--codec celery"), "{complaint}");
        }
    }

    #[test]
    fn bodies_are_read_as_they_were_written() {
        let task = Task::new("a").arg(1);
        let now = jiff::Timestamp::UNIX_EPOCH;
        let ours = Envelope::of(&task, "q", native::encode(&task));
        let theirs = dramatiq::encode(&task, "q", None, now);
        let celerys = celery::encode(&task, "q", &celery::Extras::default());
        for envelope in [&ours, &theirs, &celerys] {
            assert_eq!(decode(Codec::Auto, false)(envelope, 0).unwrap().name, "a");
        }
        assert!(decode(Codec::Native, false)(&theirs, 0).is_err());
        let nobodys = Envelope::new("q", b"nonsense".to_vec());
        assert!(decode(Codec::Auto, false)(&nobodys, 0).unwrap_err().message.contains("no task"));
    }

    #[test]
    fn a_tasks_own_rules_stand_over_those_for_all() {
        let config = config("--handler|a=exec:cat|--retries|9|--task|a retries=1 hard-limit=2s").unwrap();
        let own = config.settings.policies.of("a");
        assert_eq!((own.retries_max, own.hard_limit), (1, Some(Duration::from_secs(2))));
        assert_eq!(config.settings.policies.of("b").retries_max, 9);
        assert!(complaint("--handler|a=exec:cat|--task|a").contains("has no rules"));
        assert!(complaint("--handler|a=exec:cat|--task|a retry=1").contains("\"retry\" is no rule"));
    }

    #[test]
    fn a_management_api_is_asked_over_a_private_connection_unless_told_otherwise() {
        let rabbit = "--broker|amqp://localhost|--handler|a=exec:cat";
        for url in ["http://u:hush@localhost:15672", "https://u:hush@rabbit:15671", "http://rabbit:15672"] {
            let config = config(&format!("{rabbit}|--management|{url}")).unwrap();
            assert_eq!(config.management.unwrap().expose(), url);
        }
        assert!(config(&format!("{rabbit}|--management|http://u:hush@rabbit|--insecure-http")).is_ok());
        for (words, part) in [
            (format!("{rabbit}|--management|http://u:hush@rabbit:15672"), "--insecure-http"),
            (format!("{rabbit}|--management|http://u:hush@rabbit:x"), "port is not a number"),
            (format!("{rabbit}|--management|amqp://u:hush@rabbit"), "http:// or https://"),
            ("--handler|a=exec:cat|--management|http://u:hush@rabbit".to_owned(), "--broker amqp://HOST"),
        ] {
            let told = format!("{:#}", config(&words).err().unwrap());
            assert!(told.contains(part) && !told.contains("hush"), "{told}");
        }
    }

    #[test]
    fn limits_are_read_or_refused_in_words() {
        let gate: GateSpec = "queue:llm rpm=150 concurrency=20".parse().unwrap();
        assert_eq!((gate.per_minute, gate.concurrency, gate.of_queue), (Some(150), Some(20), true));
        let error = |text: &str| text.parse::<GateSpec>().unwrap_err().to_string();
        assert!(error("llm rpm=1").contains("write 'queue:NAME"));
        assert!(error("queue:llm").contains("limits nothing"));
        assert!(error("task:a rpm=0").contains("above zero"));
        assert!(error("task:a tpm=1").contains("\"tpm\" is no limit"));
    }
}
