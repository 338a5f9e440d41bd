//! `tidegate plan`: how long a job would take and what it would cost, without sending a request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use tidegate_batch::plan::{Job, Part, Plan, Prices, Requests, Tokens};
use tidegate_batch::{AutoConcurrency, Dialect, jsonl};
use tidegate_limit::{Cost, Dimension};
use tidegate_rehearsal::Latency;

use super::limits::LimitArgs;
use super::plan_chart;
use super::plan_pdf::PdfArgs;
use crate::terminal;

/// Plan a job: how long, how many tokens, at what price, and which limit it waits for
///
/// The job runs in virtual time at the same gate as the real one would; nothing is sent. PDFs are read for the length of
/// their pages, JSONL files for their requests; or say how many requests there are.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate plan book.pdf --rpm 500 --tpm 200000 --price-in 0.15 --price-out 0.60\n  \
                  tidegate plan requests.jsonl --rpm 60 --rpd 1000 --latency lognormal:2s,0.5\n  \
                  tidegate plan --requests 1000000 --tokens-per-request 800 --rpm 10000 --tpm 2000000\n\n\
                  Exit codes: 0 planned, 1 some requests can never be sent, 2 could not run."
)]
pub(crate) struct Args {
    /// PDFs, folders with PDFs, or JSONL files with requests
    #[arg(value_name = "PDF|DIR|JSONL", required_unless_present = "requests")]
    paths: Vec<PathBuf>,

    /// Number of equal requests, instead of files
    #[arg(long, value_name = "N", conflicts_with = "paths", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// What a request costs beside its answer, in tokens; for PDFs, instead of reading the pages
    #[arg(long, value_name = "N")]
    tokens_per_request: Option<u32>,

    /// What an answer costs, in tokens; in JSONL files, what they say unless given
    #[arg(long, value_name = "N")]
    answer_tokens: Option<u32>,

    /// How long an answer takes: 2s, 1s..4s, lognormal:2s,0.5
    #[arg(long, value_name = "TIME", default_value = "lognormal:2s,0.5")]
    latency: Latency,

    /// What a million tokens of requests cost
    #[arg(long, value_name = "PRICE", requires = "price_out", value_parser = price)]
    price_in: Option<f64>,

    /// What a million tokens of answers cost
    #[arg(long, value_name = "PRICE", requires = "price_in", value_parser = price)]
    price_out: Option<f64>,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    pdf: PdfArgs,

    /// Draw latencies from this number: the same number, the same plan
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

/// An answer of this many tokens is taken for granted where nothing says otherwise.
pub(super) const ANSWER_TOKENS: u32 = 300;

pub(super) fn price(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "a price from 0 up, such as 0.15".into())
}

pub(crate) fn run(args: Args) -> anyhow::Result<super::Done> {
    let mut work = match args.requests {
        Some(count) => {
            let tokens = Tokens {
                input: args.tokens_per_request.unwrap_or(1_000),
                output: args.answer_tokens.unwrap_or(ANSWER_TOKENS),
            };
            let most = args.limits.global_concurrency.most();
            Work {
                lists: vec![part(Path::new("requests"), Requests::Alike { count, tokens }, most)],
                ..Work::default()
            }
        }
        None => files(&args)?,
    };
    let mut quotas = args.limits.quotas();
    if let Some(auto) = args.limits.auto_concurrency(None) {
        let needed = auto.needed(&work.mean_cost(), args.latency.mean());
        quotas.global_concurrency = auto.in_flight(needed);
        work.widen(&auto, needed, args.pdf.is_auto());
    }
    let parts_at_once = work.lists.len() + work.files_at_once;
    let mut job = Job::new(quotas.limits()).parts(work.lists).parts(work.documents).parts_at_once(parts_at_once);
    let mut latencies = args.latency.seeded(args.seed);
    job = job.latency(move |_| latencies.next().unwrap_or_default());
    if let (Some(input), Some(output)) = (args.price_in, args.price_out) {
        job = job.prices(Prices { input, output });
    }
    let plan = job.run()?;
    match args.json {
        true => terminal::print_json(&(serde_json::to_string_pretty(&plan)? + "\n"))?,
        false => terminal::print(&describe(&plan))?,
    }
    Ok(if plan.too_large > 0 { super::Done::SomeFailed } else { super::Done::All })
}

/// What is to be asked.
#[derive(Default)]
struct Work {
    /// Requests that are only bound by the global concurrency.
    lists: Vec<Part>,
    documents: Vec<Part>,
    /// Documents that are worked on at once.
    files_at_once: usize,
}

impl Work {
    /// What a request costs in the mean.
    fn mean_cost(&self) -> Cost {
        let (mut count, mut input, mut output) = (0, 0, 0);
        let mut add = |tokens: &Tokens, times: u64| {
            count += times;
            input += u64::from(tokens.input) * times;
            output += u64::from(tokens.output) * times;
        };
        for part in self.lists.iter().chain(&self.documents) {
            match &part.requests {
                Requests::Alike { count, tokens } => add(tokens, *count),
                Requests::Each(list) => list.iter().for_each(|tokens| add(tokens, 1)),
            }
        }
        let (input, output) = (input / count.max(1), output / count.max(1));
        Cost::tokens(input + output).and(Dimension::INPUT_TOKENS, input).and(Dimension::OUTPUT_TOKENS, output)
    }

    /// Gives the parts the concurrency that `batch` and `explain` have once they know the answer times. What was stated of
    /// pages and files stays.
    fn widen(&mut self, auto: &AutoConcurrency, needed: Option<u64>, (auto_pages, auto_files): (bool, bool)) {
        for list in &mut self.lists {
            list.cap = auto.in_flight(needed);
        }
        let cap = |part: &Part, files: usize| match u32::try_from(part.cap) {
            Ok(own) if auto_pages => AutoConcurrency::pages_of_file(own, needed, files).into(),
            _ => part.cap,
        };
        let in_flight = |files: usize| -> u64 {
            let documents = self.documents.iter().take(files);
            documents.map(|part| part.requests.count().min(cap(part, files))).sum()
        };
        let mut files = self.files_at_once.min(self.documents.len());
        while auto_files && files < self.documents.len() && auto.needs_file(needed, files, in_flight(files)) {
            files += 1;
        }
        self.files_at_once = files;
        for part in &mut self.documents {
            part.cap = cap(part, files);
        }
    }
}

/// The requests of one file, of which at most `cap` are in flight at once.
pub(super) fn part(path: &Path, requests: Requests, cap: u64) -> Part {
    Part { name: path.display().to_string(), requests, cap, pictures: None }
}

/// What is to be asked, file by file.
fn files(args: &Args) -> anyhow::Result<Work> {
    let is_jsonl = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "jsonl" || ending == "ndjson");
    let (lists, documents): (Vec<&PathBuf>, Vec<&PathBuf>) = args.paths.iter().partition(is_jsonl);
    let mut work = Work::default();
    for path in &lists {
        let mut costs = jsonl::costs(&jsonl::Input::File(path.to_path_buf()), Dialect::OpenAi)?;
        for tokens in &mut costs {
            tokens.input = args.tokens_per_request.unwrap_or(tokens.input);
            tokens.output = args.answer_tokens.unwrap_or(tokens.output);
        }
        work.lists.push(part(path, Requests::Each(costs), args.limits.global_concurrency.most()));
    }
    if documents.is_empty() {
        return Ok(work);
    }
    let documents: Vec<PathBuf> = documents.into_iter().cloned().collect();
    (work.documents, work.files_at_once) = args.pdf.parts(&documents, args.tokens_per_request, args.answer_tokens)?;
    if work.lists.is_empty() && work.documents.is_empty() {
        bail!("none of the files can be read");
    }
    Ok(work)
}

fn describe(plan: &Plan) -> String {
    let mut rows = vec![
        ("duration", for_people(plan.duration)),
        ("requests", thousands(plan.answered)),
        ("tokens in", thousands(plan.tokens_in)),
        ("tokens out", thousands(plan.tokens_out)),
        ("at once, at most", thousands(plan.in_flight_peak)),
    ];
    if let Some(cost) = plan.cost {
        rows.push(("cost", format!("{cost:.2}")));
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text: String = rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect();
    text.push_str("\nwaits for\n");
    for bound in &plan.bound {
        text.push_str(&format!(
            "  {:width$}  {:.0} % of the time\n",
            bound.limit,
            bound.share * 100.0,
            width = width - 2
        ));
    }
    if plan.bound.is_empty() {
        text.push_str("  nothing but the answers\n");
    }
    if let Some((limit, fits)) = &plan.too_large_for {
        text.push_str(&format!(
            "\n{} requests can never be sent: {limit} lets {} through at most; split them, or raise the limit\n",
            thousands(plan.too_large),
            thousands(*fits)
        ));
    }
    text.push_str(&plan_chart::draw(plan));
    text
}

/// `1,234,567`
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let lead = digits.len() % 3;
    let mut text = digits[..lead].to_owned();
    for group in digits.as_bytes()[lead..].chunks(3) {
        if !text.is_empty() {
            text.push(',');
        }
        text.extend(group.iter().map(|digit| char::from(*digit)));
    }
    text
}

/// `2 d 3 h`, `5 min 2 s`, `1.5 s`: the two largest units.
pub(super) fn for_people(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds < 10 => format!("{:.1} s", duration.as_secs_f64()),
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_numbers_are_written_for_people() {
        let written = [500, 59_000, 62_000, 3_720_000, 90_000_000].map(|ms| for_people(Duration::from_millis(ms)));
        assert_eq!(written, ["0.5 s", "59 s", "1 min 2 s", "1 h 2 min", "1 d 1 h"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
