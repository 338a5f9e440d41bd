//! `tidegate worker`: takes tasks from a queue and runs them until it is stopped.

mod banner;
mod config;
mod handler;
pub(super) mod logging;
mod pages;
mod rules;

use std::ffi::OsString;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use tidegate_http::serve;
use tidegate_loop::net::TcpListener;
use tidegate_loop::{EventLoop, Runner, spawn};
use tidegate_secret::Secret;
use tidegate_worker::rabbit::{Management, Presence, RedisResults};
use tidegate_worker::{
    Broker, Master, MetricsPage, Mode, Policy, Report, Schedule, Settings, Signals, StatusToken, Watchdog,
};

use crate::broker::{BodyArgs, BrokerArgs, failed};
use crate::command::limits::{LimitArgs, SharedArgs};
use crate::command::server::AddressArgs;
use crate::command::status::{StatusArgs, exposure};
use crate::command::{Done, StopSignal};
use crate::span::span;
use crate::terminal;
use config::{Config, GateSpec};
use handler::HandlerSpec;
use rules::{BackoffRange, TaskPolicy};

/// Run tasks from a queue
///
/// Tasks are run by handlers: a command, a URL, a Python module, or a program of yours that speaks the worker's protocol
/// (behind `--`). A task leaves the queue only when its end has been recorded: whatever is killed, none is lost.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Signals: SIGTERM stops and lets running tasks finish; SIGINT (Ctrl-C) too, and ends them the second time; \
                  SIGHUP replaces child processes; SIGUSR1 shows every task of the event loop.\n\n\
                  Examples:\n  tidegate worker --handler echo=exec:cat\n  tidegate worker --queue mail --handler \
                  mail.send=http://localhost:8080/send --limit 'queue:mail rpm=100'\n  tidegate worker -- python3 -m tidegate \
                  worker myproject.tasks\n  tidegate worker --cron 'nightly: 0 3 * * * Europe/Berlin => report.build' \
                  --handler report.build=exec:./report.sh\n  tidegate worker --broker amqp://localhost --queue celery --codec \
                  celery --handler add=exec:./add.sh\n  tidegate worker --broker amqp://… --handler explain --provider openai \
                  --limits redis://… --rpm 500\n\n\
                  Exit codes: 0 stopped in order, 2 could not run, or the queue did not go on."
)]
pub(crate) struct Args {
    #[command(flatten)]
    broker: BrokerArgs,

    #[command(flatten)]
    bodies: BodyArgs,

    /// A queue to take tasks from; may be given several times [default: default, or explain for that handler alone]
    #[arg(long, value_name = "QUEUE")]
    queue: Vec<String>,

    /// What runs the tasks [default: process for a COMMAND or a Python module, else coroutine]
    #[arg(long, value_enum)]
    mode: Option<ModeName>,

    /// Tasks that run at a time [default: 1000 coroutines, as many processes or threads as processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    concurrency: Option<u64>,

    /// Coroutines: reached, nothing further starts until the low-water mark [default: the concurrency]
    #[arg(long, value_name = "N")]
    high_water: Option<usize>,

    /// Coroutines: from here on tasks start again [default: four fifths of the high-water mark]
    #[arg(long, value_name = "N")]
    low_water: Option<usize>,

    /// Tasks held at a time, running ones included [default: a quarter more than run at a time]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    prefetch: Option<u64>,

    /// Soft time limit: after this long a task is asked to end
    #[arg(long, value_name = "TIME", value_parser = span)]
    soft_limit: Option<Duration>,

    /// Hard time limit: after this long a task is ended
    #[arg(long, value_name = "TIME", value_parser = span)]
    hard_limit: Option<Duration>,

    /// How long running tasks may go on after SIGTERM
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "30s")]
    warm_timeout: Duration,

    /// Number of retries of a task that failed
    #[arg(long, value_name = "N", default_value_t = Policy::RETRIES_MAX)]
    retries: u32,

    /// The wait before the first retry, and the longest one; it doubles in between
    #[arg(long, value_name = "MIN..MAX", default_value = "1s..10m")]
    backoff: BackoffRange,

    /// Dead-letter a task after its worker process has crashed this many times
    #[arg(long, value_name = "N", default_value_t = Policy::CRASHES_MAX)]
    crashes: u32,

    /// For how long results are kept; 0 keeps none
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "1h")]
    result_ttl: Duration,

    /// Other rules for one task: 'NAME retries=5 backoff=1s..1m crashes=1 soft-limit=10s hard-limit=20s result-ttl=1d'
    #[arg(long, value_name = "RULES")]
    task: Vec<TaskPolicy>,

    /// A limit for a queue or a task: 'queue:NAME rpm=150 concurrency=20', 'task:NAME rps=5 rpd=1000'
    #[arg(long, value_name = "LIMIT")]
    limit: Vec<GateSpec>,

    #[arg(
        long,
        value_name = "SCHEDULE",
        help = "A schedule: 'NAME: MIN HOUR DAY MONTH WEEKDAY [ZONE] => TASK [queue=QUEUE] [JSON ARGUMENTS]'"
    )]
    cron: Vec<Schedule>,

    /// What runs the tasks of a name: NAME=exec:COMMAND, NAME=http://…, python:MODULE for all tasks of a module, or explain for
    /// the pages that tidegate explain --broker publishes
    #[arg(long, value_name = "NAME=HANDLER")]
    handler: Vec<HandlerSpec>,

    /// --handler explain: answer pages for this model only; may be given several times [default: every model]
    #[arg(long, value_name = "MODEL")]
    allow_model: Vec<String>,

    /// --handler explain: maximum number of output tokens per page, also for pages that ask for more [default: as the page says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    allow_max_tokens: Option<u32>,

    /// Environment variables that handlers and child processes inherit beside harmless ones such as PATH and LANG: names
    /// separated by commas, MYAPP_* for all that begin so, * for all
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    handler_env: Vec<String>,

    /// How task bodies are written. In RabbitMQ what is chained to foreign tasks is sent on, and Celery's tools see the worker
    #[arg(long, value_enum, default_value_t = Codec::Native)]
    codec: Codec,

    /// Celery: send task events from the start, not only once a monitor asks for them
    #[arg(long)]
    events: bool,

    /// Celery: do not listen to remote control (celery inspect, celery control, Flower's commands)
    #[arg(long)]
    no_remote_control: bool,

    /// Celery: the producers' result_backend, where it is a Redis: redis://USER:PASSWORD@HOST:PORT/DB, rediss://…, unix://PATH.
    /// Results go there, and chords are counted there [default: rpc://, without chords]
    #[arg(long, value_name = "URL", hide_env_values = true)]
    result_backend: Option<Secret>,

    /// RabbitMQ: the management HTTP API, asked at start for policies that remove, refuse or expire tasks; a warning for each:
    /// http://USER:PASSWORD@HOST:15672, https://… [default: policies are not asked for]
    #[arg(long, value_name = "URL", hide_env_values = true)]
    management: Option<Secret>,

    /// Celery: for how long results are kept in --result-backend (Celery's result_expires); 0 keeps them for ever [default: 1d]
    #[arg(long, value_name = "TIME", value_parser = span)]
    result_expires: Option<Duration>,

    /// Celery: report the state STARTED to producers
    #[arg(long)]
    track_started: bool,

    /// Processes: replace a child after this many tasks
    #[arg(long, value_name = "N")]
    max_tasks: Option<u64>,

    /// Processes: replace a child that has more than this many MiB in memory after a task
    #[arg(long, value_name = "MIB")]
    max_memory: Option<u64>,

    /// Processes: tasks sent to a child at a time; one runs, the others wait in its socket
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pipeline: u16,

    #[command(flatten)]
    status: StatusArgs,

    /// Name of this worker in lists [default: host and process id]
    #[arg(long)]
    name: Option<String>,

    /// How log lines are written
    #[arg(long, value_enum, default_value_t = logging::Format::Text)]
    log_format: logging::Format,

    /// What is logged: error, warn, info, debug, trace, or a filter such as tidegate_worker=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: String,

    /// Print how it ended as one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: AddressArgs,

    #[command(flatten)]
    quotas: LimitArgs,

    #[command(flatten)]
    shared: SharedArgs,

    /// A program that runs tasks, started once for each process
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeName {
    /// Many at a time in this process: commands and URLs
    Coroutine,
    /// Each in a thread
    Thread,
    /// In child processes that are kept: Python, or a program behind --
    Process,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Codec {
    /// JSON, as `tidegate enqueue` writes it
    Native,
    /// Celery's, protocol 2
    Celery,
    /// dramatiq's
    Dramatiq,
    /// Whichever it is
    Auto,
}

pub(crate) fn run(args: Args) -> anyhow::Result<Done> {
    let config = Config::try_from(args)?;
    logging::start(config.log_format, &config.log)?;
    let event_loop = EventLoop::new().context("cannot start an event loop")?;
    // The first Ctrl-C is the worker's business, and so is the second.
    Runner::new(event_loop).ctrl_c(false).run(work(config)).map_err(|error| anyhow!("{error}"))?
}

/// What the loop may take beside the stop's own limits before it counts as stuck.
const WATCHDOG_SLACK: Duration = Duration::from_secs(5);

async fn work(config: Config) -> anyhow::Result<Done> {
    // Before anything else listens for them, and before the broker is waited for: none is lost from here on.
    let mut signals = Signals::listen_and_dump(|dump| terminal::say(dump)).context("cannot listen for signals")?;
    let watchdog =
        Watchdog::start(config.settings.stop_limit() + WATCHDOG_SLACK).context("no thread for the watchdog")?;
    let done = match signals.interrupt(prepare(config)).await {
        Ok(prepared) => prepared?.run(signals).await.map(|()| Done::All),
        Err(kind) => {
            terminal::say("stopped before it received a task");
            let signal = StopSignal::default();
            signal.received(kind);
            Ok(Done::Stopped { exit_code: signal.exit_code().expect("it was received") })
        }
    };
    drop(watchdog);
    done
}

/// Everything that a worker needs before its first task.
struct Prepared {
    broker: Rc<dyn Broker>,
    presence: Option<Presence>,
    pages: Option<pages::Pages>,
    mode: Rc<dyn Mode>,
    settings: Settings,
    config: Config,
}

async fn prepare(mut config: Config) -> anyhow::Result<Prepared> {
    let (broker, rabbit) = config.broker.open_known().await?;
    if let (Some(rabbit), Some((address, expires))) = (&rabbit, &config.result_backend) {
        let results = RedisResults::open_at(address.clone()).expire_after(*expires);
        results.ready().await.map_err(failed).context("--result-backend")?;
        rabbit.keep_celery_results(results);
    }
    if let (Some(rabbit), Some(url)) = (&rabbit, &config.management) {
        rabbit.warn_of_policies(Management::new(url.expose()));
    }
    let presence = rabbit.zip(config.presence.take()).map(|(rabbit, options)| Presence::new(&rabbit, options));
    let pages = match &config.pages {
        Some(pages) => Some(pages.open(&config.settings.name).await?),
        None => None,
    };
    let mode = config.mode.make(pages.as_ref());
    let mut settings = config.settings.clone();
    for spec in &config.gates {
        settings.limits = spec.add_to(settings.limits, &config.shared).await?;
    }
    if let Some(presence) = &presence {
        presence.attach(&mut settings);
    }
    Ok(Prepared { broker, presence, pages, mode, settings, config })
}

impl Prepared {
    async fn run(self, mut signals: Signals) -> anyhow::Result<()> {
        let Prepared { broker, presence, pages, mode, settings, mut config } = self;
        let status = config.status.take();
        let page = match &status {
            Some(status) => {
                let address = status.address;
                Some(TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?)
            }
            None => None,
        };
        let token = status.and_then(|status| status.token);
        let address = page.as_ref().map(TcpListener::local_addr).transpose()?;
        let node = presence.as_ref().map(Presence::hostname);
        let banner = banner::banner(&config, &broker.describe(), mode.as_ref(), address, node);
        let json = config.json;
        let master = Master::new(broker, mode, settings);
        let worker = master.handle();
        if let Some(warning) = address.and_then(|address| exposure(address, token.is_some(), "queue and task names")) {
            tracing::warn!(address = %address.expect("it is served"), "{warning}");
        }
        let router = |token: Option<StatusToken>| match token {
            Some(token) => worker.router_with_token(token),
            None => worker.router(),
        };
        let server = page.map(|listener| serve(listener, router(token)).connections(MetricsPage::CONNECTIONS_MAX));
        let stop_page = server.as_ref().map(|server| server.handle());
        if let Some(server) = server {
            spawn(server.run());
        }
        terminal::say(banner.trim_end());
        let listening = spawn({
            let worker = worker.clone();
            async move { signals.pass_to(&worker).await }
        });
        if let Some(presence) = &presence {
            presence.start(worker);
        }
        let ended = master.run().await;
        listening.cancel();
        if let Some(presence) = &presence {
            presence.stop().await;
        }
        if let Some(page) = stop_page {
            page.stop();
        }
        if let Some(pages) = pages {
            pages.limits.close().await;
        }
        let report = ended.map_err(|error| anyhow!("{error}"))?;
        tell(&report, json)
    }
}

fn tell(report: &Report, json: bool) -> anyhow::Result<()> {
    let settled: serde_json::Map<String, serde_json::Value> =
        report.settled.iter().map(|(kind, count)| (kind.as_str().to_owned(), (*count).into())).collect();
    if json {
        let line = serde_json::json!({
            "received": report.received, "settled": settled, "returned": report.returned, "lost": report.lost,
            "unsettled": report.unsettled, "cancelled": report.cancelled, "stop_ms": report.stop_took.as_millis() as u64,
        });
        return terminal::print_json(&format!("{line}\n"));
    }
    let settled: Vec<String> = settled.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let settled = if settled.is_empty() { "nothing ended".to_owned() } else { settled.join(", ") };
    terminal::say(format!(
        "stopped in {:.2} s: {} received, {settled}, {} returned, {} unsettled",
        report.stop_took.as_secs_f64(),
        report.received,
        report.returned,
        report.unsettled
    ));
    Ok(())
}
