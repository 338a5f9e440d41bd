//! Anthropic's answers.

use std::cell::LazyCell;

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use super::body::ErrorBody;
use super::{Feedback, Headers, Per, Quota, QuotaNames, Stop, Unit, Verdict, Which, throttled, time};

const COUNTERS: [(Unit, QuotaNames); 4] = [
    (
        Unit::Requests,
        QuotaNames {
            limit: "anthropic-ratelimit-requests-limit",
            remaining: "anthropic-ratelimit-requests-remaining",
            reset: "anthropic-ratelimit-requests-reset",
        },
    ),
    (
        Unit::Tokens,
        QuotaNames {
            limit: "anthropic-ratelimit-tokens-limit",
            remaining: "anthropic-ratelimit-tokens-remaining",
            reset: "anthropic-ratelimit-tokens-reset",
        },
    ),
    (
        Unit::InputTokens,
        QuotaNames {
            limit: "anthropic-ratelimit-input-tokens-limit",
            remaining: "anthropic-ratelimit-input-tokens-remaining",
            reset: "anthropic-ratelimit-input-tokens-reset",
        },
    ),
    (
        Unit::OutputTokens,
        QuotaNames {
            limit: "anthropic-ratelimit-output-tokens-limit",
            remaining: "anthropic-ratelimit-output-tokens-remaining",
            reset: "anthropic-ratelimit-output-tokens-reset",
        },
    ),
];

pub(super) fn read(status: u16, headers: &impl Headers, body: &[u8], now: Timestamp) -> Feedback {
    let now = LazyCell::new(|| time::reference(headers, now));
    let counters = COUNTERS.iter();
    let quotas: Vec<Quota> = counters
        .filter_map(|(unit, names)| Quota::read(Which::new(*unit, Per::Minute), headers, || *now, names))
        .collect();
    let verdict = match status {
        200..=299 => Verdict::Proceed,
        _ => refused(status, headers, &ErrorBody::read(body), &quotas, *now),
    };
    Feedback { verdict, quotas }
}

fn refused(status: u16, headers: &impl Headers, error: &ErrorBody, quotas: &[Quota], now: Timestamp) -> Verdict {
    let delay = headers.value("retry-after").and_then(|text| time::retry_after(text, now));
    if error.message.contains("credit balance is too low") {
        return Verdict::Stop(Stop::InsufficientQuota);
    }
    // The cap comes with 400 or 429. With 429, it differs from a rate limit by the missing delay.
    let spending = error.message.contains("usage limits") || error.message.contains("spend limit");
    if spending && delay.is_none() && matches!(status, 400 | 403 | 429) {
        return Verdict::Stop(Stop::SpendCap { until: regained(&error.message) });
    }
    match status {
        429 => {}
        503 | 529 => return Verdict::Overloaded { delay },
        _ if error.is("overloaded_error") => return Verdict::Overloaded { delay },
        // Some gateways replace 529 by this status.
        500 if error.message == "Overloaded" => return Verdict::Overloaded { delay },
        _ => return Verdict::Other { status },
    }
    throttled(delay, limits(&error.message, quotas))
}

/// Returns the limits whose counters are zero or, without any, those that the message names.
fn limits(message: &str, quotas: &[Quota]) -> Vec<Which> {
    let empty: Vec<_> = quotas.iter().filter(|quota| quota.remaining == 0).map(|quota| quota.which).collect();
    if !empty.is_empty() {
        return empty;
    }
    const NAMES: [(&str, Unit); 4] = [
        ("input tokens per minute", Unit::InputTokens),
        ("output tokens per minute", Unit::OutputTokens),
        ("requests per minute", Unit::Requests),
        ("tokens per minute", Unit::Tokens),
    ];
    let named = NAMES.iter().find(|(name, _)| message.contains(name));
    named.map(|&(_, unit)| Which::new(unit, Per::Minute)).into_iter().collect()
}

/// `You will regain access on 2025-07-01 at 00:00 UTC.`
fn regained(message: &str) -> Option<Timestamp> {
    let tail = message.split("regain access on ").nth(1)?;
    let date: Date = tail.get(..10)?.parse().ok()?;
    let time = tail.get(10..).and_then(|tail| tail.strip_prefix(" at ")).and_then(|tail| tail.get(..5)?.parse().ok());
    let at = date.to_datetime(time.unwrap_or(Time::midnight()));
    Some(at.to_zoned(TimeZone::UTC).ok()?.timestamp())
}
