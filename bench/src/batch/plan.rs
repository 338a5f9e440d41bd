//! A million requests in virtual time.

use std::time::{Duration, Instant};

use tidegate_batch::plan::{Job, Requests, Tokens};
use tidegate_limit::Limit;
use tidegate_rehearsal::Latency;

use crate::harness::{BASELINE, Goal, Line, Sample};

pub(super) fn line() -> Line {
    Line::new("plan of 1,000,000 requests", "s")
        .contestant_if(BASELINE, plan)
        .goal(Goal::Below { limit: 5.0, aim: 2.0 })
        .rounds_max(3)
        .note("200 at once, 10,000 requests and 8,000,000 tokens a minute, answers of 2 s (log-normal)")
}

fn plan() -> Sample {
    let began = Instant::now();
    let mut latency = Latency::LogNormal { median: Duration::from_secs(2), sigma: 0.5 }.seeded(1);
    let plan = Job::new([Limit::concurrency("global", 200), Limit::rpm(10_000), Limit::tpm(8_000_000)])
        .part("all", Requests::Alike { count: 1_000_000, tokens: Tokens { input: 800, output: 200 } }, 200)
        .latency(move |_| latency.next().unwrap_or_default())
        .run()
        .map_err(|error| error.to_string())?;
    match plan.answered {
        1_000_000 => Ok(began.elapsed().as_secs_f64()),
        answered => Err(format!("only {answered} were planned")),
    }
}
