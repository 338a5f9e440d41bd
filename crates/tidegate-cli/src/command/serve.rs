//! `tidegate serve`: jobs on a web page. Upstreams come from here: the page chooses one by its name, and never sends an address,
//! a variable or a path.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Parser as _;
use tidegate_batch::plan::Prices;
use tidegate_batch::{Caller, Dialect, Local, Parameters, Provider, Quotas, Remote};
use tidegate_http::Client;
use tidegate_limit::Admission;
use tidegate_limit::store::Store as QuotaStore;
use tidegate_loop::signal::{SignalKind, signal};
use tidegate_loop::{EventLoop, Runner, When, spawn, wait};
use tidegate_web::jobs::{JobOptions, Jobs, Settings, UploadLimits, Upstream};
use tidegate_web::{Audit, BindError, Limits, Options, Site, Token};
use toml::{Table, Value};

use super::limits::{KEPT_IDLE, LimitArgs};
use super::server::ServerArgs;
use super::{Done, StopSignal};
use crate::counts::Counts;
use crate::secret_args::readable_by_others;
use crate::{terminal, user_data};

/// The port of the page.
const LISTEN: &str = "127.0.0.1:7433";

/// How long one upload may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How long requests in flight may take when the server stops.
const GRACE: Duration = Duration::from_secs(30);

/// Serve a web page that explains PDFs and answers batches of requests: drop files, watch the job, read the results
///
/// Jobs run in this process within the limits of their upstream, which all of its jobs share. They survive a restart: a job that runs
/// when the server ends goes on when it starts again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Upstreams: the provider options state one. More can stand in your own tidegate.toml, or in one named with \
                  --config, each with the options of explain:\n\n  [[upstream]]\n  name = \"team\"\n  provider = \"openai\"\n  model = \
                  \"gpt-4o-mini\"\n  api-key-file = \"/etc/tidegate/openai.key\"\n  rpm = 500\n  tpm = 200000\n\n\
                  Examples:\n  tidegate serve\n  \
                  tidegate serve --provider gemini --model gemini-2.0-flash --rpm 15 --rpd 1500\n  \
                  tidegate serve --listen 0.0.0.0:7433 --token-file page.token --host pdf.example.org"
)]
pub(crate) struct Args {
    /// Directory for jobs, uploads and results [default: ~/.local/share/tidegate/serve]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Address of the page; one that other machines reach needs a token
    #[arg(long, value_name = "ADDR", default_value = LISTEN)]
    listen: SocketAddr,

    /// Host name that the page is reached by, such as the one of a proxy in front of it; may be repeated
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    /// File with the token that visitors must bring; without it a token is made at the start if the address needs one
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Refuse every change through the page and the API
    #[arg(long)]
    read_only: bool,

    /// Largest file that can be uploaded, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    max_upload: u64,

    /// Space for uploads and results, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 20_480, value_parser = clap::value_parser!(u64).range(1..))]
    max_disk: u64,

    /// Days after which a job that has ended is deleted with its results
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    keep: u32,

    /// An upstream as a TOML table; a table "upstream" in a configuration file
    #[arg(long, value_name = "TABLE", hide = true, hide_env_values = true)]
    upstream: Vec<UpstreamSpec>,

    /// Price of a million input tokens
    #[arg(long, value_name = "X", value_parser = super::plan::price, requires = "price_out")]
    price_in: Option<f64>,

    /// Price of a million output tokens
    #[arg(long, value_name = "X", value_parser = super::plan::price, requires = "price_in")]
    price_out: Option<f64>,

    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    limits: LimitArgs,
}

/// An upstream of the configuration file. Its keys are the options of the command line.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "upstream", no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct UpstreamSpec {
    #[arg(long)]
    name: String,

    #[arg(long, value_parser = super::plan::price, requires = "price_out")]
    price_in: Option<f64>,

    #[arg(long, value_parser = super::plan::price, requires = "price_in")]
    price_out: Option<f64>,

    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    limits: LimitArgs,
}

impl FromStr for UpstreamSpec {
    type Err = String;

    /// Reads an inline table of TOML.
    fn from_str(text: &str) -> Result<UpstreamSpec, String> {
        // An error of the parser would quote the text, which may have a password in it.
        let document: Table = format!("x = {text}").parse().map_err(|_| "an upstream is a TOML table".to_owned())?;
        let Some(Value::Table(table)) = document.get("x") else { return Err("an upstream is a TOML table".into()) };
        let mut words = Vec::new();
        for (key, value) in table {
            let option = format!("--{}", key.replace('_', "-"));
            match value {
                Value::Boolean(true) => words.push(option),
                Value::Boolean(false) => {}
                Value::String(text) => words.push(format!("{option}={text}")),
                Value::Integer(_) | Value::Float(_) => words.push(format!("{option}={value}")),
                _ => return Err(format!("'{key}' of an upstream must be a string, a number, true or false")),
            }
        }
        let spec = UpstreamSpec::try_parse_from(words).map_err(|error| {
            crate::secret_args::without_secret(error).to_string().trim_start_matches("error: ").to_owned()
        })?;
        if !is_name(&spec.name) {
            return Err(format!(
                "{:?} cannot name an upstream; use up to 40 letters, digits, '-', '_' and '.'",
                spec.name
            ));
        }
        Ok(spec)
    }
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=40).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.')
}

pub(crate) fn run(args: Args) -> anyhow::Result<Done> {
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => user_data::file("serve").context("there is no home directory; choose a directory with --dir")?,
    };
    tidegate_files::create_directories(&directory)
        .with_context(|| format!("cannot make the directory {}; choose another with --dir", directory.display()))?;
    let event_loop = EventLoop::new().context("the event loop did not start")?;
    // Ctrl-C is this command's own end, not a cancellation.
    let served = Runner::new(event_loop).ctrl_c(false).run(serve(args, directory));
    served.map_err(|error| anyhow!("the server did not run: {error}"))?
}

/// An upstream that is open, and the file with its counts.
struct Opened {
    upstream: Upstream,
    admission: Admission,
    counts: Option<QuotaStore>,
}

async fn serve(args: Args, directory: PathBuf) -> anyhow::Result<Done> {
    let token = token(&args)?;
    let token_file = token.as_ref().and_then(Token::file).map(Path::to_owned);
    let audit = directory.join("audit.jsonl");
    let audit = Audit::to_file(&audit).with_context(|| format!("cannot open the audit log {}", audit.display()))?;
    let mut specs = args.upstream;
    let name = args.server.address.provider.name().to_owned();
    let (price_in, price_out) = (args.price_in, args.price_out);
    specs.push(UpstreamSpec { name, price_in, price_out, server: args.server, limits: args.limits });
    let mut names = HashSet::new();
    if let Some(twice) = specs.iter().find(|spec| !names.insert(spec.name.clone())) {
        bail!("two upstreams are called {}; give each [[upstream]] a name of its own", twice.name);
    }
    let opened = specs.into_iter().map(|spec| open(spec, &directory)).collect::<anyhow::Result<Vec<Opened>>>()?;
    let mut gates = Vec::new();
    let (mut upstreams, mut shown) = (Vec::new(), Vec::new());
    for Opened { upstream, admission, counts } in opened {
        shown.push((upstream.name().to_owned(), admission.clone()));
        gates.push((admission, counts));
        upstreams.push(upstream);
    }
    let settings = Settings {
        uploads: UploadLimits {
            file_bytes_max: args.max_upload << 20,
            disk_bytes_max: args.max_disk << 20,
            ..UploadLimits::default()
        },
        keep: Duration::from_secs(u64::from(args.keep) * 86_400),
        ..Settings::default()
    };
    let jobs = Jobs::open(&directory, upstreams, settings).await.map_err(|error| anyhow!("{error} (--dir)"))?;
    let mut site = Site::new();
    jobs.mount(&mut site);
    let limits = shown.into_iter().map(|(name, admission)| {
        let steer = jobs.steer(&name);
        tidegate_web::Upstream { name, admission, steer }
    });
    let limits = Limits::new(limits.collect());
    limits.mount(&mut site);
    tidegate_web::EventLoop::new("tidegate serve").mount(&mut site);
    let options = Options {
        hosts: args.host,
        token,
        read_only: args.read_only,
        audit,
        body_timeout: BODY_TIMEOUT,
        ..Options::new(args.listen)
    };
    let server = site.bind(options).await.map_err(|error| unable_to_listen(error, args.listen))?;
    terminal::print(&format!("{}\n", server.link()))?;
    if let Some(path) = token_file {
        terminal::say(format!("tidegate: the page asks for the token in {}", path.display()));
    }
    let address = server.address();
    if !address.ip().to_canonical().is_loopback() {
        terminal::say(
            "tidegate: warning: the page can be reached from other machines, and its token crosses the network unencrypted; put a proxy with TLS in front",
        );
    }
    let stopper = server.stopper();
    let signal = StopSignal::default();
    let mut ends = Vec::new();
    for kind in [SignalKind::INTERRUPT, SignalKind::TERMINATE] {
        let mut signals = tidegate_loop::signal::signal(kind).context("cannot listen for Ctrl-C")?;
        let stopped = signal.clone();
        ends.push(spawn(async move {
            signals.recv().await;
            stopped.received(kind);
        }));
    }
    let attending = spawn({
        let jobs = jobs.clone();
        async move { jobs.attend().await }
    });
    let remembering = spawn(remember(jobs.clone(), limits));
    let serving = spawn(server.run());
    wait(&ends, When::FirstCompleted, None).await.map_err(|_| anyhow!("there is nothing to wait for"))?;
    attending.cancel();
    remembering.cancel();
    // Again: at once. Every answer that came is kept.
    for kind in [SignalKind::INTERRUPT, SignalKind::TERMINATE] {
        if let Ok(mut signals) = self::signal(kind) {
            let stopped = signal.clone();
            spawn(async move {
                signals.recv().await;
                stopped.exit();
            });
        }
    }
    terminal::say("tidegate: stopping: requests in flight are finished; once more to leave at once");
    let stopped = jobs.stop(GRACE).await;
    stopper.stop();
    serving.await.map_err(|error| anyhow!("the server failed: {error}"))??;
    for (admission, counts) in gates {
        admission.close();
        if let Some(counts) = counts {
            counts.close();
        }
    }
    match stopped.running {
        0 => {}
        1 => terminal::say("tidegate: 1 job goes on when the server starts again"),
        running => terminal::say(format!("tidegate: {running} jobs go on when the server starts again")),
    }
    Ok(signal.exit_code().map_or(Done::All, |exit_code| Done::Stopped { exit_code }))
}

/// Keeps the history of the limits going while a job runs.
async fn remember(jobs: Jobs, limits: Limits) {
    let mut watch = None;
    loop {
        let revision = jobs.revision();
        match (jobs.running() > 0, &watch) {
            (true, None) => watch = Some(limits.watch()),
            (false, Some(_)) => watch = None,
            _ => {}
        }
        jobs.changed(revision).await;
    }
}

/// The token of the page; one is made for an address that others can reach.
fn token(args: &Args) -> anyhow::Result<Option<Token>> {
    if let Some(path) = &args.token_file {
        if let Some(warning) = readable_by_others(path, "the token of the page") {
            terminal::say(format!("tidegate: warning: {warning}"));
        }
        let token = Token::from_file(path).map_err(|error| anyhow!("--token-file {}: {error}", path.display()))?;
        return Ok(Some(token));
    }
    match args.listen.ip().to_canonical().is_loopback() {
        true => Ok(None),
        false => Ok(Some(Token::generate().map_err(|error| anyhow!("cannot make a token: {error}"))?)),
    }
}

fn unable_to_listen(error: BindError, address: SocketAddr) -> anyhow::Error {
    match &error {
        BindError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => anyhow!(
            "another program listens at {address}, perhaps another tidegate serve; stop it, or choose another address with \
             --listen"
        ),
        _ => anyhow!("{error}; choose another address with --listen"),
    }
}

/// Opens the gate of an upstream and checks that its key is there.
fn open(spec: UpstreamSpec, directory: &Path) -> anyhow::Result<Opened> {
    let UpstreamSpec { name, price_in, price_out, server, mut limits } = spec;
    let about = || format!("upstream {name}");
    limits.fit_descriptors();
    let account = server.address.account().with_context(about)?;
    // Shared with explain and batch, which may use the same key at the same time.
    let counts = Counts::new(account).or_in(directory.join(format!("quota-{name}.db")));
    let stated = limits.quotas();
    let is_rated = stated.limits().iter().any(|limit| limit.rated().is_some());
    let file = if is_rated { counts.prepare().with_context(about)? } else { None };
    let quotas = Quotas { file, ..stated };
    let (gate, counts) = quotas.open().with_context(about)?;
    let admission = Admission::from(gate);
    let auto = limits.auto_concurrency(None);
    let prices = price_in.zip(price_out).map(|(input, output)| Prices { input, output });
    let provider = server.address.provider.name();
    let upstream = match server.address.provider.dialect() {
        None => {
            let gate = admission.clone();
            let connect = move |_: &str, _: &JobOptions| Ok(Rc::new(Local::new(&gate)) as Rc<dyn Provider>);
            Upstream::new(&name, provider, admission.clone(), quotas, connect)
        }
        Some(dialect) => {
            let key = server.address.key(dialect).with_context(about)?;
            let origin = key.map(|key| key.origin().to_owned()).unwrap_or_default();
            let model = server.model.clone().unwrap_or_default();
            if !model.is_empty() {
                dialect.path(&model).with_context(|| format!("upstream {name}: bad --model"))?;
            }
            let (gate, in_flight) = (admission.clone(), auto.as_ref().map(|auto| auto.most()));
            let caller = move || caller(&server, &gate, in_flight);
            let of_requests = caller.clone();
            let connect = move |model: &str, options: &JobOptions| {
                let connected = caller().and_then(|caller| connect(caller, dialect, model, options));
                connected.map_err(|error| format!("{error:#}"))
            };
            Upstream::new(&name, provider, admission.clone(), quotas, connect)
                .model(model)
                .key_from(origin)
                .requests(dialect, move || of_requests().map_err(|error| format!("{error:#}")))
        }
    };
    let upstream = upstream.prices(prices).auto_concurrency(auto);
    Ok(Opened { upstream, admission, counts })
}

/// What sends the requests of one job.
fn caller(server: &ServerArgs, gate: &Admission, in_flight: Option<u64>) -> anyhow::Result<Caller> {
    let caller = server.caller(gate)?;
    let Some(most) = in_flight else { return Ok(caller) };
    let connections = usize::try_from(most).unwrap_or(usize::MAX);
    let client = Client::builder().connections_per_host(connections).keep_idle(connections, KEPT_IDLE);
    Ok(caller.with_client(client.build()?))
}

/// The provider of one job.
fn connect(caller: Caller, dialect: Dialect, model: &str, options: &JobOptions) -> anyhow::Result<Rc<dyn Provider>> {
    dialect.path(model).context("that is not the name of a model")?;
    let parameters =
        Parameters { model: model.to_owned(), max_tokens: options.max_tokens, temperature: options.temperature };
    Ok(Rc::new(Remote::new(caller, parameters).with_pictures(!options.text_only)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_stated_with_the_options_of_the_command_line() {
        let unknown =
            "{ name = \"team\", provider = \"openai\", base_url = \"http://127.0.0.1:9/v1\", rpm = 500, text = 1 }";
        let error = unknown.parse::<UpstreamSpec>().unwrap_err();
        assert!(error.contains("--text"), "{error}");
        let spec: UpstreamSpec =
            "{ name = \"team\", provider = \"openai\", rpm = \"10/1s\", insecure-http = true }".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.server.address.insecure_http), ("team", true));
        assert_eq!(spec.limits.quotas().rpm, Some(10));
    }

    #[test]
    fn an_upstream_that_makes_no_sense_is_refused_without_its_password() {
        for text in [
            "1",
            "[1]",
            "{}",
            "{ name = \"a b\" }",
            "{ name = \"../x\" }",
            "{ name = \"x\", rpm = [1] }",
            "{ name = \"x\", rpm = 0 }",
        ] {
            assert!(text.parse::<UpstreamSpec>().is_err(), "{text}");
        }
        let error =
            "{ name = \"x\", base-url = \"http://u:hunter2@h\", base-url = 1".parse::<UpstreamSpec>().unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
