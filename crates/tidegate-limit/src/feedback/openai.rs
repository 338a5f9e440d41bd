//! The answers of OpenAI and compatible servers.

use std::cell::LazyCell;

use jiff::Timestamp;

use super::body::ErrorBody;
use super::{Feedback, Headers, Per, Quota, QuotaNames, Stop, Unit, Verdict, Which, longer, throttled, time};

/// The window is not stated: OpenAI means a minute, others a day.
const COUNTERS: [(Unit, QuotaNames); 2] = [
    (
        Unit::Requests,
        QuotaNames {
            limit: "x-ratelimit-limit-requests",
            remaining: "x-ratelimit-remaining-requests",
            reset: "x-ratelimit-reset-requests",
        },
    ),
    (
        Unit::Tokens,
        QuotaNames {
            limit: "x-ratelimit-limit-tokens",
            remaining: "x-ratelimit-remaining-tokens",
            reset: "x-ratelimit-reset-tokens",
        },
    ),
];

pub(super) fn read(status: u16, headers: &impl Headers, body: &[u8], now: Timestamp) -> Feedback {
    let now = LazyCell::new(|| time::reference(headers, now));
    let counters = COUNTERS.iter();
    let quotas: Vec<Quota> =
        counters.filter_map(|(unit, names)| Quota::read(Which::new(*unit, None), headers, || *now, names)).collect();
    let verdict = match status {
        200..=299 => Verdict::Proceed,
        402 => Verdict::Stop(Stop::InsufficientQuota),
        400 | 403 | 429 | 500 | 503 | 529 => refused(status, headers, &ErrorBody::read(body), &quotas, *now),
        _ => Verdict::Other { status },
    };
    Feedback { verdict, quotas }
}

fn refused(status: u16, headers: &impl Headers, error: &ErrorBody, quotas: &[Quota], now: Timestamp) -> Verdict {
    // A proxy may have the provider's code only in its own message.
    if error.is("insufficient_quota") || error.message.contains("insufficient_quota") {
        return Verdict::Stop(Stop::InsufficientQuota);
    }
    if ["billing_hard_limit_reached", "budget_exceeded"].iter().any(|name| error.is(name)) {
        return Verdict::Stop(Stop::SpendCap { until: None });
    }
    match status {
        429 => {}
        503 | 529 => return Verdict::Overloaded { delay: delay(headers, error, now) },
        _ => return Verdict::Other { status },
    }
    let (limit, requested) = (number_after(&error.message, "Limit "), number_after(&error.message, "Requested "));
    let larger = matches!((limit, requested), (Some(limit), Some(requested)) if requested > limit);
    if larger || error.message.contains("Request too large") {
        return Verdict::TooLarge { requested, limit };
    }
    throttled(delay(headers, error, now), limits(error, quotas))
}

fn delay(headers: &impl Headers, error: &ErrorBody, now: Timestamp) -> Option<std::time::Duration> {
    let millis = headers.value("retry-after-ms").and_then(|text| time::go_duration(&format!("{}ms", text.trim())));
    let exact = millis.or_else(|| time::delay_in_text(&error.message));
    // A litellm proxy passes the provider's header on under its own name.
    let rounded = ["retry-after", "llm_provider-retry-after"]
        .iter()
        .find_map(|name| headers.value(name).and_then(|text| time::retry_after(text, now)));
    longer(exact, rounded)
}

/// Returns the limit that the message names; without one, those whose counters are zero; without any, that of the error's
/// type.
fn limits(error: &ErrorBody, quotas: &[Quota]) -> Vec<Which> {
    const NAMES: [(&str, &str, Unit, Per); 4] = [
        ("(RPM)", "requests per min", Unit::Requests, Per::Minute),
        ("(TPM)", "tokens per min", Unit::Tokens, Per::Minute),
        ("(RPD)", "requests per day", Unit::Requests, Per::Day),
        ("(TPD)", "tokens per day", Unit::Tokens, Per::Day),
    ];
    let named = NAMES.iter().find(|(short, long, ..)| error.message.contains(short) || error.message.contains(long));
    if let Some(&(_, _, unit, per)) = named {
        return vec![Which::new(unit, per)];
    }
    let empty: Vec<_> = quotas.iter().filter(|quota| quota.remaining == 0).map(|quota| quota.which).collect();
    if !empty.is_empty() {
        return empty;
    }
    match &*error.kind {
        "requests" => vec![Which::new(Unit::Requests, None)],
        "tokens" => vec![Which::new(Unit::Tokens, None)],
        _ => Vec::new(),
    }
}

/// Returns the whole number after `lead`, without separators.
fn number_after(message: &str, lead: &str) -> Option<u64> {
    let tail = &message[message.find(lead)? + lead.len()..];
    let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
    tail[..end].parse().ok()
}
