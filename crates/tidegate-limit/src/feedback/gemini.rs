//! Gemini's answers: Google's error model. The details may be missing, and the delay is rounded down to seconds.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::body::{ErrorBody, text};
use super::{Feedback, Headers, Per, Stop, Unit, Verdict, Which, longer, throttled, time};

/// The time zone in which the day of a daily quota begins.
const DAY_ZONE: &str = "America/Los_Angeles";

/// `retryDelay` is rounded down, so this is added.
const DROPPED_FRACTION: Duration = Duration::from_secs(1);

pub(super) fn read(status: u16, headers: &impl Headers, body: &[u8], now: Timestamp) -> Feedback {
    let verdict = match status {
        200..=299 => Verdict::Proceed,
        _ => refused(status, headers, &ErrorBody::read(body), time::reference(headers, now)),
    };
    Feedback { verdict, quotas: Vec::new() }
}

fn refused(status: u16, headers: &impl Headers, error: &ErrorBody, now: Timestamp) -> Verdict {
    match status {
        429 => {}
        503 | 529 => return Verdict::Overloaded { delay: delay(headers, error, now) },
        _ if error.is("RESOURCE_EXHAUSTED") => {}
        _ if error.is("UNAVAILABLE") => return Verdict::Overloaded { delay: delay(headers, error, now) },
        _ => return Verdict::Other { status },
    }
    if error.message.contains("spending cap") {
        return Verdict::Stop(Stop::SpendCap { until: None });
    }
    if error.message.contains("credits are depleted") {
        return Verdict::Stop(Stop::InsufficientQuota);
    }
    let violations = violations(error);
    // Waiting does not help with a quota of zero. An answer names all exceeded quotas, so one of zero decides.
    if violations.iter().any(|violation| violation.value == Some(0)) || error.message.contains("limit: 0,") {
        return Verdict::Stop(Stop::NoQuota);
    }
    let limits: Vec<_> = violations.iter().filter_map(|violation| violation.which).collect();
    let daily: Vec<_> = limits.iter().copied().filter(|which| which.per == Some(Per::Day)).collect();
    if !daily.is_empty() {
        let zone = TimeZone::get(DAY_ZONE).unwrap_or(TimeZone::UTC);
        return Verdict::Park { until: time::next_midnight(&zone, now), limits: daily };
    }
    throttled(delay(headers, error, now), limits)
}

fn delay(headers: &impl Headers, error: &ErrorBody, now: Timestamp) -> Option<Duration> {
    let exact = time::delay_in_text(&error.message);
    let info = detail(error, "RetryInfo").and_then(|info| time::go_duration(&text(info, "retryDelay")));
    // `"0s"` is half a second, rounded down.
    let dropped = detail(error, "RetryInfo").is_some_and(|info| text(info, "retryDelay") == "0s");
    let info = info
        .or(dropped.then_some(Duration::ZERO))
        .map(|delay| if delay.subsec_nanos() == 0 { delay + DROPPED_FRACTION } else { delay });
    let header = headers.value("retry-after").and_then(|text| time::retry_after(text, now));
    longer(exact, info.max(header)).map(|delay| delay.min(time::DELAY_MAX))
}

fn detail<'e>(error: &'e ErrorBody, name: &str) -> Option<&'e Value> {
    error.details.iter().find(|detail| text(detail, "@type").ends_with(&format!("google.rpc.{name}")))
}

struct Violation {
    which: Option<Which>,
    value: Option<u64>,
}

fn violations(error: &ErrorBody) -> Vec<Violation> {
    let list = detail(error, "QuotaFailure").and_then(|failure| failure.get("violations")?.as_array());
    list.into_iter().flatten().map(violation).collect()
}

fn violation(violation: &Value) -> Violation {
    // `GenerateRequestsPerDayPerProjectPerModel-FreeTier`, `…/generate_requests_per_model_per_day`: one spelling for both.
    let name: String = ["quotaId", "quotaMetric"]
        .iter()
        .flat_map(|key| [text(violation, key), String::from(" ")])
        .collect::<String>()
        .replace('_', "")
        .to_ascii_lowercase();
    let first = |words: [&str; 2]| words.iter().position(|word| name.contains(word));
    let per = first(["perday", "perminute"]).map(|found| [Per::Day, Per::Minute][found]);
    let unit = first(["token", "request"]).map(|found| [Unit::InputTokens, Unit::Requests][found]);
    Violation {
        // A daily quota of something else (images) is treated as one of requests, because requests have to stop.
        which: unit.or(per.map(|_| Unit::Requests)).map(|unit| Which { unit, per }),
        value: text(violation, "quotaValue").parse().ok(),
    }
}
