//! `tidegate explain`: PDFs, page by page.

use std::cmp::Reverse;
use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;

use anyhow::{Context as _, anyhow, bail};
use tidegate_batch::{
    AutoConcurrency, Control, DEFAULT_PROMPT, Explain, ExplainError, FileReport, Input, Local, Options, Parameters,
    Prompt, Provider, Quotas, Remote, Report, Selection, Store, find_pdfs,
};
use tidegate_http::Client;
use tidegate_limit::Admission;
use tidegate_loop::signal::{SignalKind, signal};
use tidegate_loop::{JoinHandle, spawn};
use tidegate_pdf::Reader;
use tidegate_secret::Secret;

use super::bound::{self, Caps, Wait};
use super::dashboard::{Dashboard, DashboardArgs};
use super::explain_away::{Asks, Away};
use super::limits::{KEPT_IDLE, LimitArgs, SharedArgs};
use super::server::{ProviderArg, ServerArgs};
use super::status::{StatusArgs, StatusSpec};
use super::{Done, EXPLAIN_QUEUE, StopSignal, run_on_loop};
use crate::broker::{BrokerUrl, Kind, failed};
use crate::counts::Counts;
use crate::found_limits::{self, Server};
use crate::progress::{MetricsListener, ProgressArg, Reporter};
use crate::terminal::{self, escape};

/// What a run keeps for the next one, in the folder of its outputs.
const STATE: &str = ".tidegate";

/// Explain PDFs page by page, within a provider's limits
///
/// Each page is sent with its neighbours as context; many pages and files are in flight at once. Every answer is stored
/// before it counts: stop at any time, even with kill -9, and the same command again sends only what is missing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Outputs, per file: NAME.html (each page beside its explanation), NAME.md, NAME.json; report.json for the run; \
                  what is kept between runs is in DIR/.tidegate.\n\n\
                  Variables in a prompt: {file} {title} {page} {pages} {language}; {{ and }} are braces.\n\n\
                  Examples:\n  tidegate explain samples/\n  \
                  tidegate explain book.pdf --pages 3-10,15 --provider openai --model gpt-4o-mini --rpm 500 --tpm 200000\n  \
                  tidegate explain papers/ --provider gemini --model gemini-2.0-flash --rpm 15 --rpd 1500 --language German\n  \
                  tidegate explain a.pdf --provider openai --base-url http://localhost:8080/v1 --model any    a server of your own"
)]
pub(crate) struct Args {
    /// PDFs, or folders with PDFs
    #[arg(value_name = "PDF|DIR", required = true)]
    paths: Vec<PathBuf>,

    /// Where outputs go
    #[arg(long, value_name = "DIR", default_value = "explanations")]
    out: PathBuf,

    /// Which pages of each file, such as 3-10,15
    #[arg(long, value_name = "PAGES")]
    pages: Option<Selection>,

    /// How many pages before and after are sent along as context
    #[arg(long, value_name = "N", default_value_t = 1)]
    context_pages: u32,

    /// What to ask about each page, or @FILE; {file}, {title}, {page}, {pages} and {language} are filled in
    #[arg(long, value_name = "TEXT|@FILE")]
    prompt: Option<String>,

    /// The language of the answer; that of the page unless given
    #[arg(long, value_name = "LANGUAGE")]
    language: Option<String>,

    /// The greatest length of an answer, in tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<NonZeroU32>,

    /// How much chance there is in an answer, from 0 up
    #[arg(long, value_name = "X", value_parser = temperature)]
    temperature: Option<f32>,

    /// Do not send pictures of pages whose text cannot be read: the model takes none
    #[arg(long)]
    text_only: bool,

    /// The password of PDFs that need one
    #[arg(long, value_name = "TEXT", hide_env_values = true)]
    pdf_password: Option<Secret>,

    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    shared: SharedArgs,

    /// Have workers ask: publish the pages to this queue and collect their answers (tidegate worker --handler explain)
    #[arg(long, value_name = "URL", help_heading = "Many machines")]
    broker: Option<BrokerUrl>,

    /// The queue's name
    #[arg(long, value_name = "QUEUE", default_value = EXPLAIN_QUEUE, help_heading = "Many machines")]
    queue: String,

    /// RabbitMQ: which kind of queue it is; the workers' --queue-kind
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Kind::Classic, help_heading = "Many machines")]
    queue_kind: Kind,

    /// Pages of one file in flight at once; auto: 50 below 20 pages, 30 up to 100, 20 above, and more if the stated limits need
    /// them
    #[arg(long, value_name = "N|auto", default_value = "auto", help_heading = "Limits")]
    page_concurrency: Count,

    /// Of these, pages sent as pictures; those sent as text do not wait for them [default: no separate limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    picture_concurrency: Option<u32>,

    /// Files in flight at once; auto: 5 below 20 pages, 3 up to 100, 2 above, and more if the stated limits need them
    #[arg(long, value_name = "N|auto", default_value = "auto", help_heading = "Limits")]
    file_concurrency: Count,

    /// Ask again about pages that the provider refused to explain; others that failed are asked about anyway
    #[arg(long)]
    retry_failed: bool,

    /// Ask again about every page, whatever is kept
    #[arg(long)]
    fresh: bool,

    /// The longest side of the pages' pictures in the HTML, in pixels; 0: no pictures
    #[arg(long, value_name = "PX", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=4096))]
    picture_px: u32,

    /// How to show the progress, on standard error
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto)]
    progress: ProgressArg,

    #[command(flatten)]
    status: StatusArgs,

    #[command(flatten)]
    dashboard: DashboardArgs,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// A number, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count(Option<u32>);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Count, String> {
        match text {
            "auto" => Ok(Count(None)),
            number => match number.parse() {
                Ok(number) if number > 0 => Ok(Count(Some(number))),
                _ => Err("a number above zero, or auto".into()),
            },
        }
    }
}

/// The model, which every provider with a server needs.
fn model(server: &ServerArgs) -> anyhow::Result<String> {
    let name = server.address.provider.name();
    let model =
        server.model.clone().with_context(|| format!("which model? Provider {name} needs one: --model NAME"))?;
    // Before anything is read: no page could be sent with a name that is not accepted.
    if let Some(dialect) = server.address.provider.dialect() {
        dialect.path(&model).context("bad --model")?;
    }
    Ok(model)
}

fn temperature(text: &str) -> Result<f32, String> {
    text.parse()
        .ok()
        .filter(|x: &f32| x.is_finite() && *x >= 0.0)
        .ok_or_else(|| "a number from 0 up, such as 0.7".into())
}

/// What was asked for, checked.
#[derive(Debug)]
struct Config {
    options: Options,
    quotas: Quotas,
    counts: Counts,
    shared: SharedArgs,
    /// Where workers take pages from: the broker, its kind of queues, the queue.
    broker: Option<(BrokerUrl, Kind, String)>,
    server: ServerArgs,
    parameters: Option<Parameters>,
    pictures: bool,
    reader: Reader,
    progress: ProgressArg,
    status: Option<StatusSpec>,
    dashboard: Option<tidegate_web::Options>,
    json: bool,
}

impl TryFrom<Args> for Config {
    type Error = anyhow::Error;

    fn try_from(mut args: Args) -> anyhow::Result<Config> {
        let inputs: Vec<Input> = find_pdfs(&args.paths)?;
        if let Some(note) = left_out(&inputs) {
            terminal::say(escape::line(&note));
        }
        let prompt_text = match args.prompt.as_deref() {
            None => DEFAULT_PROMPT.to_owned(),
            Some(text) => match text.strip_prefix('@') {
                Some(path) => {
                    fs::read_to_string(path).with_context(|| format!("cannot read the prompt's file {path}"))?
                }
                None => text.to_owned(),
            },
        };
        let parameters = match args.server.address.provider {
            ProviderArg::Local => None,
            _ => Some(Parameters {
                model: model(&args.server)?,
                max_tokens: args.max_tokens.map(NonZeroU32::get),
                temperature: args.temperature,
            }),
        };
        // Before anything is read or made: a key that is missing is missed at once. Workers have their own.
        if let Some(dialect) = args.server.address.provider.dialect().filter(|_| args.broker.is_none()) {
            args.server.address.key(dialect)?;
        }
        args.limits.fit_descriptors();
        let mut options = Options::new(inputs, &args.out);
        options.prompt = Prompt::parse(&prompt_text)?;
        options.prompt_text = prompt_text;
        options.language = args.language.unwrap_or_default();
        options.selection = args.pages.unwrap_or_else(Selection::all);
        options.context_pages = args.context_pages;
        options.page_concurrency = args.page_concurrency.0;
        options.picture_concurrency = args.picture_concurrency;
        options.file_concurrency = args.file_concurrency.0;
        // Workers have queues of their own; what they take at a time says nothing about the provider.
        options.auto_concurrency = args.limits.auto_concurrency(Some(&args.shared)).filter(|_| args.broker.is_none());
        options.picture_bytes_max = args.limits.room().picture_bytes;
        options.retry_failed = args.retry_failed;
        options.fresh = args.fresh;
        options.html_px = Some(args.picture_px).filter(|&px| px > 0);
        // Workers ask with keys of their own.
        let account = if args.broker.is_none() { args.server.address.account()? } else { None };
        let mut reader = Reader::new();
        if let Some(password) = args.pdf_password {
            reader = reader.password(password);
        }
        Ok(Config {
            quotas: args.limits.quotas(),
            counts: Counts::new(account).or_in(args.out.join(STATE).join("quota.db")),
            shared: args.shared,
            broker: args.broker.map(|broker| (broker, args.queue_kind, args.queue)),
            options,
            server: args.server,
            parameters,
            pictures: !args.text_only,
            reader,
            progress: args.progress,
            status: args.status.spec()?,
            dashboard: args.dashboard.options()?,
            json: args.json,
        })
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<Done> {
    if args.progress == ProgressArg::Json {
        terminal::use_json_lines();
    }
    let config = Config::try_from(args)?;
    let state = config.options.out.join(STATE);
    tidegate_files::create_own_directory(&state)
        .with_context(|| format!("cannot make the folder {}", state.display()))?;
    let json = config.json;
    let auto = config.options.auto_concurrency.as_ref();
    let caps = Caps {
        in_flight: auto.map_or(config.quotas.global_concurrency, AutoConcurrency::most),
        pages_stated: config.options.page_concurrency.is_some(),
    };
    let reporter = Reporter::new(config.progress);
    let signal = StopSignal::default();
    let run = explain(config, state, reporter.clone(), signal.clone());
    let report = run_on_loop(run)??;
    conclude(&report, &reporter, json, &signal, caps)
}

async fn explain(
    mut config: Config,
    state: PathBuf,
    reporter: Reporter,
    stopped_by: StopSignal,
) -> anyhow::Result<Report> {
    let metrics = MetricsListener::bind(config.status.take(), &reporter).await?;
    let limits = config.shared.open(&config.quotas, &config.counts).await?;
    let gate = limits.admission.clone();
    let away = match &config.broker {
        Some((url, kind, queue)) => {
            let broker = url.open_shared(*kind, tidegate_worker::BODY_BYTES_MAX).await?;
            Some(Away::new(broker, queue, asks(&config, &gate)?, &limits))
        }
        None => None,
    };
    let (provider, asked): (Rc<dyn Provider>, Option<Server>) = match &away {
        Some(away) => (Rc::new(away.crew.clone()), None),
        None => provider(&config, &gate, &reporter)?,
    };
    let store = Store::open(state.join("results.db"))?;
    let name = config.server.address.provider.name();
    let explain = Explain::new(config.options, provider, name, &gate, store).with_reader(config.reader);
    let control = explain.control();
    let dashboard =
        Dashboard::open(config.dashboard.take(), "tidegate explain", name, &gate, &control, &reporter).await?;
    reporter.hear(&control);
    let mut following = reporter.follow(control.clone());
    following.serve("explain", metrics);
    let mut beside: Vec<JoinHandle<()>> = Vec::new();
    for kind in [SignalKind::INTERRUPT, SignalKind::TERMINATE] {
        let manner = if away.is_some() { Manner::WithWorkers } else { Manner::Alone };
        beside.push(spawn(heed(kind, stopped_by.clone(), control.clone(), reporter.clone(), manner)));
    }
    if let Some(away) = &away {
        beside.extend(away.attend(control, &reporter));
    }
    let outcome = explain.run().await;
    drop((following, dashboard));
    beside.iter().for_each(|task| {
        task.cancel();
    });
    if let (Some(asked), Some(found)) = (&asked, gate.stats().found) {
        found_limits::keep(asked, &found);
    }
    limits.close().await;
    if let Some(away) = away {
        away.broker.close().await.map_err(failed)?;
    }
    match outcome {
        Ok(report) => Ok(report),
        Err(ExplainError::Report { path, source, report }) => {
            terminal::say(format!("tidegate: {} cannot be written: {source}", path.display()));
            Ok(*report)
        }
        Err(error) => Err(error.into()),
    }
}

/// What workers are to ask. No key is needed here.
fn asks<'a>(config: &'a Config, gate: &Admission) -> anyhow::Result<Asks<'a>> {
    let address = &config.server.address;
    let (alone, base_url): (Rc<dyn Provider>, String) = match &config.parameters {
        None => (Rc::new(Local::new(gate)), String::new()),
        Some(parameters) => {
            let caller = address.caller_without_key(gate)?;
            let base_url = caller.base_url().to_owned();
            (Rc::new(Remote::new(caller, parameters.clone()).with_pictures(config.pictures)), base_url)
        }
    };
    Ok(Asks { address, parameters: config.parameters.clone(), alone, base_url, fresh: config.options.fresh })
}

/// Who explains, and whose limits are found meanwhile: it starts with those of the last run.
fn provider(
    config: &Config,
    gate: &Admission,
    reporter: &Reporter,
) -> anyhow::Result<(Rc<dyn Provider>, Option<Server>)> {
    Ok(match &config.parameters {
        None => (Rc::new(Local::new(gate)), None),
        Some(parameters) => {
            let reporter = reporter.clone();
            let mut caller = config.server.caller(gate)?.with_notice(move |line| reporter.say(line));
            if let Some(auto) = &config.options.auto_concurrency {
                let connections = usize::try_from(auto.most()).unwrap_or(usize::MAX);
                let client = Client::builder().connections_per_host(connections).keep_idle(connections, KEPT_IDLE);
                caller = caller.with_client(client.build()?);
            }
            let asked = config.server.server_of(&caller);
            if let Some(found) = found_limits::recall(&asked) {
                gate.gate().remember(&found);
            }
            (Rc::new(Remote::new(caller, parameters.clone()).with_pictures(config.pictures)), Some(asked))
        }
    })
}

/// Which side calls the provider.
#[derive(Clone, Copy)]
enum Manner {
    Alone,
    WithWorkers,
}

/// First in order, then at once, then not at all.
async fn heed(kind: SignalKind, stopped_by: StopSignal, control: Control, reporter: Reporter, manner: Manner) {
    let (finishing, dropping, leaving) = match manner {
        Manner::Alone => (
            "finishing what is in flight, which is paid for; once more to drop it",
            "dropping what is in flight, outputs are still written; once more to leave at once",
            "left; every answer that came is kept: run the same command again for the rest",
        ),
        Manner::WithWorkers => (
            "taking back what no worker has begun, and waiting for the rest, which is paid for; once more to leave it to them",
            "not waiting: what the workers have they will answer, and the same command within a day collects it; once more to \
             leave at once",
            "left; what the workers have they will answer: run the same command again to collect it, and for the rest",
        ),
    };
    let Ok(mut signals) = signal(kind) else { return };
    let mut times = 0;
    loop {
        times += signals.recv().await;
        stopped_by.received(kind);
        match times {
            1 => {
                reporter.stopping(finishing);
                control.finish("interrupted");
            }
            2 => {
                reporter.say(dropping);
                control.drop_calls("interrupted");
            }
            _ => {
                reporter.leave(leaving);
                stopped_by.exit();
            }
        }
    }
}

fn conclude(report: &Report, reporter: &Reporter, json: bool, signal: &StopSignal, caps: Caps) -> anyhow::Result<Done> {
    if json {
        let mut text = serde_json::to_string_pretty(report)?;
        text.push('\n');
        terminal::print_json(&text)?;
    } else {
        terminal::print(&report.to_text())?;
    }
    let totals = &report.totals;
    if let Some(reason) = &report.stopped {
        if totals.done == 0 && signal.exit_code().is_none() {
            bail!("{reason}");
        }
        terminal::say(format!(
            "tidegate: stopped: {reason}\n{} of {} pages are explained and kept; run the same command again for the rest",
            totals.done, totals.pages
        ));
    }
    let stopped = signal.exit_code().map(|exit_code| Done::Stopped { exit_code });
    if stopped.is_none() && totals.files_failed == totals.files && totals.done == 0 && totals.pages == 0 {
        let file = report.files.iter().find_map(|file| file.error.as_deref()).unwrap_or("nothing could be read");
        return Err(match totals.files {
            1 => anyhow!("{file}"),
            files => anyhow!("none of the {files} files could be read; the first: {file}"),
        });
    }
    let waits = report.limits.iter().map(|limit| Wait {
        limit: &limit.name,
        amount: limit.amount,
        seconds: limit.blocked_seconds,
    });
    if let Some(line) = bound::hint(waits, report.seconds, caps) {
        reporter.hint(&line);
    }
    if report.failures.iter().any(|group| group.code == "no_pictures") {
        reporter.hint(
            "the model takes no pictures of pages: choose one that does, or give --text-only to skip pages without readable text",
        );
    }
    if let Some(line) = what_to_open(report).filter(|_| !json) {
        reporter.hint(&line);
    }
    let ended = if report.is_complete() { Done::All } else { Done::SomeFailed };
    Ok(stopped.unwrap_or(ended))
}

/// Says that links to a file that is explained anyway are left out.
fn left_out(inputs: &[Input]) -> Option<String> {
    let mut links = inputs.iter().flat_map(|input| input.left_out.iter().map(move |link| (link, &input.path)));
    let (link, file) = links.next()?;
    let same = format!("{} is the same file as {}", link.display(), file.display());
    Some(match links.count() {
        0 => format!("{same} and is explained once"),
        others => format!("{same}; it and {others} other links are left out, and each file is explained once"),
    })
}

/// Names the page to open: the document's, or of several documents the one that links them.
fn what_to_open(report: &Report) -> Option<String> {
    let page = |file: &FileReport| file.outputs.iter().find(|path| path.ends_with(".html")).cloned();
    let mut pages: Vec<(u64, String)> = report.files.iter().filter_map(|file| Some((file.done, page(file)?))).collect();
    if let Some(index) = report.index.as_ref().filter(|_| pages.len() > 1) {
        return Some(open_index(index, pages.len()));
    }
    // Stable: of files with equally many explanations, the first that was given.
    pages.sort_by_key(|(done, _)| Reverse(*done));
    pages.first().map(|(_, first)| format!("open {first} in a browser"))
}

/// Names the page that links the documents, and their number.
pub(super) fn open_index(index: &str, documents: usize) -> String {
    format!("open {index} in a browser; it links all {documents} documents")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, done: u64) -> FileReport {
        let mut file = FileReport::default();
        file.done = done;
        file.outputs = ["json", "md", "html"].map(|ending| format!("out/{name}.{ending}")).to_vec();
        file
    }

    #[test]
    fn links_that_are_left_out_are_reported_in_one_line() {
        let input = |left_out: &[&str]| {
            let mut input = Input::new("a.pdf", "a");
            input.left_out = left_out.iter().map(PathBuf::from).collect();
            input
        };
        assert_eq!(left_out(&[input(&[])]), None);
        assert_eq!(left_out(&[input(&["b.pdf"])]).unwrap(), "b.pdf is the same file as a.pdf and is explained once");
        assert_eq!(
            left_out(&[input(&["b.pdf", "c.pdf"]), input(&["d.pdf"])]).unwrap(),
            "b.pdf is the same file as a.pdf; it and 2 other links are left out, and each file is explained once"
        );
    }

    fn hint(files: Vec<FileReport>, index: Option<&str>) -> Option<String> {
        let mut report = Report::default();
        report.files = files;
        report.index = index.map(str::to_owned);
        what_to_open(&report)
    }

    #[test]
    fn the_page_to_open_is_the_documents_or_the_one_that_links_them() {
        let index = Some("out/index.html");
        assert_eq!(hint(vec![file("a", 0)], index).unwrap(), "open out/a.html in a browser");
        assert_eq!(hint(vec![FileReport::default(), file("b", 3)], index).unwrap(), "open out/b.html in a browser");
        assert_eq!(
            hint(vec![file("a", 1), FileReport::default(), file("b", 3)], index).unwrap(),
            "open out/index.html in a browser; it links all 2 documents"
        );
        let without = hint(vec![file("a", 1), file("b", 3)], None);
        assert_eq!(without.unwrap(), "open out/b.html in a browser", "it could not be written");
    }

    #[test]
    fn where_nothing_was_written_there_is_nothing_to_open() {
        assert_eq!(hint(vec![FileReport::default()], Some("out/index.html")), None);
    }
}
