//! How long a job would take and what it would cost, before it starts: the engine's plan, from the texts that were read when the
//! files came.

use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;
use tidegate_batch::jsonl::Scan;
use tidegate_batch::plan::{self, Part, Requests, Tokens};
use tidegate_batch::{AutoConcurrency, Size};
use tidegate_limit::{Cost, Dimension, Limit};
use tidegate_loop::to_thread;

use super::model::{FileKind, Job, JobFile, JobKind, JobOptions, JobState, PageState};
use super::service::Jobs;
use super::upstream::Upstream;

/// Prompt and framing, beside the page.
const PROMPT_TOKENS: u64 = 120;

/// A page that is sent as a picture.
pub(crate) const PICTURE_TOKENS: u32 = 1_600;

/// An answer, where nothing is known of its length.
const ANSWER_TOKENS: u32 = 300;

/// The answer time where none has been measured.
const ANSWER_TIME: Duration = Duration::from_secs(4);

/// A plan, for the page and the API.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct JobPlan {
    /// Pages or requests that would be sent.
    pub pages: u64,
    /// Pages that already have a result.
    pub settled: u64,
    /// From the start to the last answer, in seconds.
    pub duration_s: f64,
    /// Tokens of prompts.
    pub tokens_in: u64,
    /// Tokens of answers.
    pub tokens_out: u64,
    /// At the upstream's prices, if they are known.
    pub cost: Option<f64>,
    /// The most requests in flight at once.
    pub in_flight_peak: u64,
    /// The limit that it waits for most, if it waits for any.
    pub bound_by: Option<String>,
    /// The share of its time that it waits for that limit.
    pub bound_share: f64,
    /// Pages that fit under no limit, and the limit.
    pub too_large: u64,
    /// The limit that they do not fit under.
    pub too_large_for: Option<String>,
    /// Seconds from the start, pages answered by then, and the limit that binds there.
    pub timeline: Vec<PlanSlice>,
    /// How long an answer is taken to last, in seconds; measured once the upstream has answered.
    pub answer_time_s: f64,
    /// How long the plan took to make, in milliseconds.
    pub took_ms: u64,
}

/// A stretch of a plan.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PlanSlice {
    /// Its end, in seconds from the start.
    pub to_s: f64,
    /// Pages answered by then.
    pub answered: u64,
    /// The limit that binds in it.
    pub bound_by: Option<String>,
}

impl Jobs {
    /// Plans the pages or requests of a job that have no result, as it is given: it may differ from the one that is stored.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub async fn plan(&self, job: &Job) -> Result<JobPlan, String> {
        let mut job = job.clone();
        let has_pages = job.kind != JobKind::Batch;
        if has_pages {
            job.options.check()?;
        }
        let selection = job.options.selection()?;
        if job.state == JobState::Draft && has_pages {
            for file in &mut job.files {
                file.choose(selection.of(file.page_count));
            }
        }
        let upstream = self.upstream(&job.upstream).ok_or("choose an upstream")?;
        let parts: Vec<Part> = match job.kind {
            JobKind::Batch => self.scanned(job.id).and_then(|scan| request_part(&job, &scan)).into_iter().collect(),
            _ => job.files.iter().filter_map(|file| part(file, &job.options)).collect(),
        };
        plan(&job, &upstream, parts).await
    }
}

/// Plans the items of `job` that have no result.
async fn plan(job: &Job, upstream: &Upstream, parts: Vec<Part>) -> Result<JobPlan, String> {
    let settled = job.counts().settled();
    let pages: u64 = parts.iter().map(|part| part.requests.count()).sum();
    if pages == 0 {
        return Ok(JobPlan { settled, ..JobPlan::default() });
    }
    let answer_time = Some(upstream.gate().stats().answer_time).filter(|time| !time.is_zero()).unwrap_or(ANSWER_TIME);
    let (limits, auto, prices) = (upstream.limits(), upstream.auto().cloned(), upstream.known_prices());
    let options = job.options.clone();
    let planned = to_thread(move || {
        let began = std::time::Instant::now();
        let planned = run(parts, limits, auto.as_ref(), prices, &options, answer_time)?;
        Ok::<_, String>((planned, began.elapsed()))
    });
    let (planned, took) = planned.await.map_err(|error| error.to_string())??;
    let bound = planned.bound.first();
    let mut answered = 0;
    Ok(JobPlan {
        pages,
        settled,
        duration_s: planned.duration.as_secs_f64(),
        tokens_in: planned.tokens_in,
        tokens_out: planned.tokens_out,
        cost: planned.cost,
        in_flight_peak: planned.in_flight_peak,
        bound_by: bound.map(|bound| bound.limit.clone()),
        bound_share: bound.map_or(0.0, |bound| bound.share),
        too_large: planned.too_large,
        too_large_for: planned.too_large_for.map(|(limit, _)| limit),
        timeline: planned
            .timeline
            .iter()
            .map(|slice| {
                answered += slice.answered;
                PlanSlice { to_s: slice.to.as_secs_f64(), answered, bound_by: slice.bound_by.clone() }
            })
            .collect(),
        answer_time_s: answer_time.as_secs_f64(),
        took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    })
}

/// The pages of a file that are still to be sent, each with the texts of its neighbours.
fn part(file: &JobFile, options: &JobOptions) -> Option<Part> {
    if file.kind != FileKind::Pdf {
        return None;
    }
    let around = options.context_pages as usize;
    let own = &file.page_tokens;
    let output = options.max_tokens.map_or(ANSWER_TOKENS, |max| max.min(ANSWER_TOKENS));
    let cost = |page: u32| {
        let at = (page as usize).saturating_sub(1);
        let neighbours = own.get(at.saturating_sub(around)..own.len().min(at + around + 1)).unwrap_or_default();
        let input = PROMPT_TOKENS + neighbours.iter().map(|tokens| u64::from(*tokens)).sum::<u64>();
        Tokens { input: u32::try_from(input).unwrap_or(u32::MAX), output }
    };
    let to_send =
        file.numbers.iter().zip(&file.states).filter(|(_, state)| !state.is_settled() || **state == PageState::Failed);
    let costs: Vec<Tokens> = to_send.map(|(page, _)| cost(*page)).collect();
    let size = Size::of(u32::try_from(file.numbers.len()).unwrap_or(u32::MAX));
    let cap = options.page_concurrency.unwrap_or_else(|| size.page_concurrency());
    let part =
        |costs| Part { name: file.name.clone(), requests: Requests::Each(costs), cap: cap.into(), pictures: None };
    Some(costs).filter(|costs| !costs.is_empty()).map(part)
}

/// The requests of a job that are still to be sent. Nothing but the upstream's limits holds them back.
fn request_part(job: &Job, scan: &Scan) -> Option<Part> {
    let file = job.files.first()?;
    let to_send = scan.requests.iter().filter(|request| {
        let state = file.state(request.line).unwrap_or_default();
        !state.is_settled() || state == PageState::Failed
    });
    let cost = |tokens: Tokens| Tokens { output: tokens.output.min(ANSWER_TOKENS), ..tokens };
    let costs: Vec<Tokens> = to_send.map(|request| cost(request.tokens)).collect();
    let cap = u64::from(u32::MAX);
    let part = |costs| Part { name: file.name.clone(), requests: Requests::Each(costs), cap, pictures: None };
    Some(costs).filter(|costs| !costs.is_empty()).map(part)
}

fn run(
    mut parts: Vec<Part>,
    mut limits: Vec<Limit>,
    auto: Option<&AutoConcurrency>,
    prices: Option<plan::Prices>,
    options: &JobOptions,
    answer_time: Duration,
) -> Result<plan::Plan, String> {
    let largest = parts.iter().map(|part| part.requests.count()).max().unwrap_or(0);
    let by_size = Size::of(u32::try_from(largest).unwrap_or(u32::MAX)).file_concurrency();
    let mut files = options.file_concurrency.unwrap_or(by_size) as usize;
    if let Some(auto) = auto {
        let needed = auto.needed(&mean_cost(&parts), answer_time);
        if let Some(global) = limits.iter_mut().find(|limit| limit.name() == "global") {
            *global = Limit::concurrency("global", auto.in_flight(needed).max(global.amount()));
        }
        let cap = |part: &Part, files: usize| match u32::try_from(part.cap) {
            Ok(own) if options.page_concurrency.is_none() => AutoConcurrency::pages_of_file(own, needed, files).into(),
            _ => part.cap,
        };
        files = files.min(parts.len()).max(1);
        while options.file_concurrency.is_none()
            && files < parts.len()
            && auto.needs_file(
                needed,
                files,
                parts.iter().take(files).map(|part| part.requests.count().min(cap(part, files))).sum(),
            )
        {
            files += 1;
        }
        parts.iter_mut().for_each(|part| part.cap = cap(part, files));
    }
    let mut job = plan::Job::new(limits).parts(parts).parts_at_once(files).starts(SystemTime::now());
    job = job.latency(move |_| answer_time);
    if let Some(prices) = prices {
        job = job.prices(prices);
    }
    job.run().map_err(|error| error.to_string())
}

fn mean_cost(parts: &[Part]) -> Cost {
    let (mut count, mut input, mut output) = (0_u64, 0_u64, 0_u64);
    for part in parts {
        if let Requests::Each(list) = &part.requests {
            count += list.len() as u64;
            input += list.iter().map(|tokens| u64::from(tokens.input)).sum::<u64>();
            output += list.iter().map(|tokens| u64::from(tokens.output)).sum::<u64>();
        }
    }
    let (input, output) = (input / count.max(1), output / count.max(1));
    Cost::tokens(input + output).and(Dimension::INPUT_TOKENS, input).and(Dimension::OUTPUT_TOKENS, output)
}
