//! `tidegate batch`: many requests from a JSONL file, their answers into another.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::json;
use tidegate_batch::jsonl::{BadLines, Batch, Earlier, EndedEarly, Input, Output, Summary};
use tidegate_batch::{AutoConcurrency, Control, Quotas};
use tidegate_http::Client;
use tidegate_loop::signal::{Signal, SignalKind, signal};
use tidegate_loop::spawn;

use super::bound::{Caps, Wait};
use super::dashboard::{Dashboard, DashboardArgs};
use super::limits::{Concurrency, KEPT_IDLE, LimitArgs, SharedArgs};
use super::server::{ProviderArg, ServerArgs};
use super::status::{StatusArgs, StatusSpec};
use super::{Done, StopSignal, bound, run_on_loop};
use crate::counts::Counts;
use crate::found_limits;
use crate::progress::{MetricsListener, ProgressArg, Reporter};
use crate::terminal;

/// Send the requests of a JSONL file, within a provider's limits
///
/// The file is in the format of OpenAI's batch API (or Gemini's), and so are the results, in the order in which they come.
/// Each is on the disk before it counts: stop at any time, even with kill -9, and the same command again asks only for what
/// is missing. Bodies are passed on as they are.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("provider", |arg| arg.default_value("openai")),
    after_help = "Lines in:   {\"custom_id\":\"r1\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{…}}\n            \
                  {\"key\":\"r1\",\"request\":{…}}    Gemini's; needs --provider gemini and --model\n\
                  Lines out:  {\"id\":…,\"custom_id\":\"r1\",\"response\":{\"status_code\":200,…,\"body\":{…}},\"error\":null}\n            \
                  {\"id\":…,\"custom_id\":\"r1\",\"response\":null,\"error\":{\"code\":…,\"message\":…}}\n\n\
                  A file is checked before anything is sent; with a line that makes no sense or an id that occurs twice nothing \
                  is. Standard input and pipes are checked while they are read.\n\n\
                  Examples:\n  tidegate batch requests.jsonl -o results.jsonl --rpm 500 --tpm 200000\n  \
                  tidegate batch requests.jsonl -o results.jsonl --retry-failed\n  \
                  make-requests | tidegate batch - --base-url http://localhost:8080/v1 > results.jsonl\n\n\
                  Exit codes: 0 done, 1 some requests failed or are missing, 2 could not run, 130 interrupted, 143 terminated."
)]
pub(crate) struct Args {
    /// The requests: a file, a pipe, or - for standard input
    #[arg(value_name = "REQUESTS")]
    requests: PathBuf,

    /// Where results go, or - for standard output; [default: NAME.results.jsonl for NAME.jsonl, standard output for a pipe]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Requests in flight at once; the same as --global-concurrency
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_in_flight: Option<u64>,

    /// Ask again for what failed in a run before
    #[arg(long, conflicts_with = "fresh")]
    retry_failed: bool,

    /// Throw away what the output has, and ask for everything
    #[arg(long)]
    fresh: bool,

    /// Pass over lines that make no sense instead of sending nothing
    #[arg(long)]
    skip_bad_lines: bool,

    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    shared: SharedArgs,

    /// How to show the progress, on standard error
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto)]
    progress: ProgressArg,

    #[command(flatten)]
    status: StatusArgs,

    #[command(flatten)]
    dashboard: DashboardArgs,

    /// Print the summary as JSON, on standard error if the results are on standard output
    #[arg(long)]
    json: bool,
}

/// What was asked for, checked.
struct Config {
    batch: Batch,
    quotas: Quotas,
    counts: Counts,
    shared: SharedArgs,
    server: ServerArgs,
    connections: usize,
    output: Output,
    progress: ProgressArg,
    status: Option<StatusSpec>,
    dashboard: Option<tidegate_web::Options>,
    json: bool,
}

impl TryFrom<Args> for Config {
    type Error = anyhow::Error;

    fn try_from(args: Args) -> anyhow::Result<Config> {
        let is_dash = |path: &Path| path == Path::new("-");
        let input = if is_dash(&args.requests) { Input::Stdin } else { Input::File(args.requests.clone()) };
        let output = match (args.output, &input) {
            (Some(path), _) if is_dash(&path) => Output::Stdout,
            (Some(path), _) => Output::File(path),
            (None, Input::File(path)) if !input.is_stream() => Output::File(path.with_extension("results.jsonl")),
            (None, _) => Output::Stdout,
        };
        if matches!((&input, &output), (Input::File(from), Output::File(to)) if is_same_file(from, to)) {
            bail!("the results would overwrite the requests; choose another --output");
        }
        let Some(dialect) = args.server.address.provider.dialect() else {
            bail!("provider {} answers no requests; choose openai, gemini or anthropic", ProviderArg::Local.name());
        };
        // Before anything is read or made: a bad model name or a missing key is reported at once.
        if let Some(model) = &args.server.model {
            dialect.path(model).context("bad --model")?;
        }
        args.server.address.key(dialect)?;
        let mut limits = args.limits;
        if let Some(in_flight) = args.max_in_flight {
            limits.global_concurrency = Concurrency::AtMost(in_flight);
        }
        limits.fit_descriptors();
        let auto = limits.auto_concurrency(Some(&args.shared));
        let most = auto.as_ref().map_or(limits.global_concurrency.most(), AutoConcurrency::most);
        let counts = counts(args.server.address.account()?, &output);
        let earlier = match (args.fresh, args.retry_failed) {
            (true, _) => Earlier::Discard,
            (_, true) => Earlier::RetryFailed,
            _ => Earlier::Keep,
        };
        let bad_lines = if args.skip_bad_lines { BadLines::Skip } else { BadLines::Stop };
        let batch = Batch::new(input, output.clone())
            .stdout(terminal::send_json)
            .earlier(earlier)
            .bad_lines(bad_lines)
            .model(args.server.model.clone())
            .auto_concurrency(auto);
        Ok(Config {
            batch,
            quotas: limits.quotas(),
            counts,
            shared: args.shared,
            server: args.server,
            connections: usize::try_from(most).unwrap_or(usize::MAX),
            // Where results go to the terminal, nothing can be drawn in place.
            progress: match (&output, args.progress) {
                (Output::Stdout, ProgressArg::Auto) if terminal::out_is_terminal() => ProgressArg::Plain,
                (_, progress) => progress,
            },
            output,
            status: args.status.spec()?,
            dashboard: args.dashboard.options()?,
            json: args.json,
        })
    }
}

/// Returns `true` if both paths lead to one regular file, perhaps by a link.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity =
        |path: &Path| path.metadata().ok().filter(|found| found.is_file()).map(|found| (found.dev(), found.ino()));
    one == other || identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Where the counts of the minute and of the day are kept. Earlier versions kept those of a day beside the results, and those of
/// minutes there in a file for each output.
fn counts(account: Option<String>, output: &Output) -> Counts {
    let folder = |of: &Path| of.join(".tidegate");
    let counts = Counts::new(account);
    match output {
        Output::File(path) => {
            let folder = folder(path.parent().unwrap_or(Path::new("")));
            let mut minutes = path.file_name().unwrap_or_default().to_owned();
            minutes.push(".quota.db");
            counts.or_in(folder.join("quota.db")).earlier(folder.join(minutes))
        }
        Output::Stdout => counts.or_in(folder(Path::new("")).join("quota.db")),
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<Done> {
    if args.progress == ProgressArg::Json {
        terminal::use_json_lines();
    }
    let config = Config::try_from(args)?;
    let (output, json) = (config.output.clone(), config.json);
    let reporter = Reporter::new(config.progress);
    let began = Instant::now();
    let signal = StopSignal::default();
    let sending = send(config, reporter.clone(), signal.clone());
    let summary = run_on_loop(sending)??;
    conclude(&summary, &output, &reporter, json, began.elapsed(), &signal)
}

async fn send(config: Config, reporter: Reporter, stopped_by: StopSignal) -> anyhow::Result<Summary> {
    let Config { batch, quotas, counts, shared, server, connections, status, dashboard, .. } = config;
    let metrics = MetricsListener::bind(status, &reporter).await?;
    let limits = shared.open(&quotas, &counts).await?;
    let gate = limits.admission.clone();
    let upstream = server.address.provider.name();
    let (hinting, began) = (reporter.clone(), Instant::now());
    // One connection per request in flight, kept open between requests.
    let client = Client::builder().connections_per_host(connections).keep_idle(connections, KEPT_IDLE).build()?;
    let noticing = reporter.clone();
    let caller = server.caller(&gate)?.with_client(client).with_notice(move |line| noticing.say(line));
    let asked = server.server_of(&caller);
    if let Some(found) = found_limits::recall(&asked) {
        gate.gate().remember(&found);
    }
    let control = batch.control();
    let dashboard = Dashboard::open(dashboard, "tidegate batch", upstream, &gate, &control, &reporter).await?;
    reporter.hear(&control);
    let mut following = reporter.follow(control.clone());
    following.serve("batch", metrics);
    // Listened for before anything is read or written.
    let signals = [SignalKind::INTERRUPT, SignalKind::TERMINATE]
        .map(|kind| spawn(heed((kind, signal(kind)), stopped_by.clone(), control.clone(), reporter.clone())));
    let outcome = batch.run(&caller).await;
    drop((following, dashboard));
    let stats = limits.admission.stats();
    if let Some(found) = &stats.found {
        found_limits::keep(&asked, found);
    }
    let waits = stats.limits.iter().map(|limit| Wait {
        limit: &limit.name,
        amount: limit.amount,
        seconds: limit.blocked_for.as_secs_f64(),
    });
    let caps = Caps { in_flight: connections as u64, pages_stated: false };
    if let Some(line) = bound::hint(waits, began.elapsed().as_secs_f64(), caps) {
        hinting.hint(&line);
    }
    for task in &signals {
        task.cancel();
    }
    limits.close().await;
    Ok(outcome?)
}

/// First in order, then at once.
async fn heed(
    (kind, signals): (SignalKind, io::Result<Signal>),
    stopped_by: StopSignal,
    control: Control,
    reporter: Reporter,
) {
    let Ok(mut signals) = signals else { return };
    signals.recv().await;
    stopped_by.received(kind);
    reporter.stopping("waiting for the answers that are on their way; once more to drop them");
    control.finish("interrupted");
    signals.recv().await;
    reporter.leave("left; what was answered is kept: run the same command again for the rest");
    stopped_by.exit();
}

fn conclude(
    summary: &Summary,
    output: &Output,
    reporter: &Reporter,
    json: bool,
    took: Duration,
    signal: &StopSignal,
) -> anyhow::Result<Done> {
    let Summary { answered, failed, cached, cached_failed, skipped, unkept, usage, ended_early, .. } = summary;
    let ended = ended_early.as_ref().map(|ended| match ended {
        EndedEarly::Stopped => "stopped".to_owned(),
        EndedEarly::Shut(reason) => reason.clone(),
        EndedEarly::BadLine(bad) => format!("{bad}; pass over such lines with --skip-bad-lines"),
        EndedEarly::Full(full) => format!("{output} has no space for more answers: {full}"),
        other => format!("{other:?}"),
    });
    let said = if json {
        let summary = json!({
            "event": "summary", "answered": answered, "failed": failed, "cached": cached, "cached_failed": cached_failed,
            "skipped": skipped, "unkept": unkept, "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
            "ended_early": ended, "output": output.to_string(), "took_s": took.as_secs_f64(),
        });
        format!("{summary}\n")
    } else if !reporter.is_silent() {
        let mut said = format!("{answered} answered, {failed} failed");
        let paid_again = "answered but not saved: the next run pays for them again";
        for (count, what) in [(*cached, "had results already"), (*skipped, "lines passed over"), (*unkept, paid_again)]
        {
            if count > 0 {
                said.push_str(&format!(", {count} {what}"));
            }
        }
        said.push_str(&format!(
            " in {}; {} tokens in, {} out; results in {output}\n",
            super::plan::for_people(took),
            usage.input_tokens,
            usage.output_tokens
        ));
        if *failed + *cached_failed > 0 && matches!(output, Output::File(_)) {
            said.push_str("--retry-failed asks again for what failed\n");
        }
        said
    } else {
        String::new()
    };
    match (output, json) {
        (_, _) if said.is_empty() => {}
        (Output::File(_), true) => terminal::print_json(&said)?,
        (Output::File(_), false) => terminal::print(&said)?,
        (_, true) => terminal::say_json(said.trim_end()),
        (_, false) => terminal::say(said.trim_end()),
    }
    if let Some(reason) = &ended {
        if *answered + *cached == 0 && !matches!(ended_early, Some(EndedEarly::Stopped)) {
            bail!("{reason}");
        }
        let advice = match ended_early {
            // Its reason says what to do first.
            Some(EndedEarly::Full(_)) if *unkept > 0 => "the other answers are saved",
            Some(EndedEarly::Full(_)) => "every answer that was paid for is saved",
            _ => "what was answered is kept; run the same command again for the rest",
        };
        terminal::say(format!("tidegate: ended early: {reason}\n{advice}"));
    }
    let complete = ended.is_none() && *failed + *cached_failed + *skipped == 0;
    let ended = if complete { Done::All } else { Done::SomeFailed };
    Ok(signal.exit_code().map_or(ended, |exit_code| Done::Stopped { exit_code }))
}
