//! Durations and instants as servers write them. The input is not trusted: text that is invalid, negative, zero or not a
//! number is `None`, and no result is longer than [`DELAY_MAX`].

use std::time::Duration;

use jiff::fmt::rfc2822::DateTimeParser;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use super::headers::Headers;

/// The longest delay that is used if a server asks for more: 25 hours, the longest calendar day.
///
/// A longer one is a mistake, or a quota that a process should not wait for.
pub const DELAY_MAX: Duration = Duration::from_secs(25 * 3600);

/// A server's `Date` is used if its clock differs by at most this much.
const SKEW_MAX: Duration = Duration::from_secs(24 * 3600);

/// Numbers from here on are instants: as seconds since 1970 the year 2001, as a duration 31 years.
const EPOCH_SECONDS_MIN: f64 = 1e9;
/// The same in milliseconds.
const EPOCH_MILLIS_MIN: f64 = 1e12;

/// Converts seconds to a delay, or `None` if they are not a valid one.
fn span(seconds: f64) -> Option<Duration> {
    if !seconds.is_finite() || seconds <= 0.0 {
        return None;
    }
    // Rounded up to the nanosecond: a request that comes a little too early is refused.
    let nanos = (seconds.min(DELAY_MAX.as_secs_f64()) * 1e9).ceil();
    Some(Duration::from_nanos(nanos as u64).min(DELAY_MAX))
}

/// Parses a Go duration at the start of `text`: `372ms`, `6m0s`, `1h2m3.5s`. Returns the seconds and the rest of the text.
fn go_prefix(text: &str) -> Option<(f64, &str)> {
    let mut rest = text;
    let mut total = None;
    while let Some((number, after)) = number_prefix(rest) {
        // Longer names first: `m` is a prefix of `ms`.
        const UNITS: [(&str, f64); 8] = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("µs", 1e-6),
            ("ms", 1e-3),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
            ("d", 86_400.0),
        ];
        let Some((unit, scale)) = UNITS.iter().find(|(unit, _)| after.starts_with(unit)) else { break };
        total = Some(total.unwrap_or(0.0) + number * scale);
        rest = &after[unit.len()..];
    }
    total.map(|total| (total, rest))
}

/// Parses digits with at most one point at the start of `text`. A point needs a digit after it, so `36.` is 36 at the end
/// of a sentence.
fn number_prefix(text: &str) -> Option<(f64, &str)> {
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    if whole == 0 {
        return None;
    }
    let fraction = match text[whole..].strip_prefix('.') {
        Some(tail) if digits(tail) > 0 => 1 + digits(tail),
        _ => 0,
    };
    let (number, rest) = text.split_at(whole + fraction);
    Some((number.parse().ok()?, rest))
}

/// Parses a value that is a Go duration and nothing else.
pub(super) fn go_duration(text: &str) -> Option<Duration> {
    let (seconds, rest) = go_prefix(text.trim())?;
    if rest.is_empty() { span(seconds) } else { None }
}

/// Finds a duration in a sentence: `Please try again in 6m0s.`, `Please retry in 36.43s.`, `retry after 6 seconds`.
pub(super) fn delay_in_text(message: &str) -> Option<Duration> {
    const LEADS: [&str; 5] = ["try again in ", "retry in ", "try again after ", "retry after ", "please wait "];
    // Only ASCII is changed, so offsets stay valid.
    let lower = message.to_ascii_lowercase();
    LEADS.iter().find_map(|lead| {
        let tail = lower[lower.find(lead)? + lead.len()..].trim_start();
        let (seconds, rest) = go_prefix(tail).or_else(|| spelled_prefix(tail))?;
        // `in 5 mornings`: a unit ends where its word ends.
        if rest.starts_with(|c: char| c.is_alphanumeric()) {
            spelled_prefix(tail).and_then(|s| span(s.0))
        } else {
            span(seconds)
        }
    })
}

/// Parses a number, optional spaces, and a unit in words.
fn spelled_prefix(text: &str) -> Option<(f64, &str)> {
    let (number, rest) = number_prefix(text)?;
    let word = rest.trim_start();
    let end = word.find(|c: char| !c.is_alphabetic()).unwrap_or(word.len());
    let scale = match &word[..end] {
        "ms" | "millisecond" | "milliseconds" => 1e-3,
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        _ => return None,
    };
    Some((number * scale, &word[end..]))
}

/// Parses when a counter is full again: a Go duration, seconds, seconds or milliseconds since 1970, or RFC 3339.
pub(super) fn reset(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if let Ok(number) = text.parse::<f64>() {
        let seconds = match number {
            n if n >= EPOCH_MILLIS_MIN => n / 1e3 - epoch_seconds(now),
            n if n >= EPOCH_SECONDS_MIN => n - epoch_seconds(now),
            n => n,
        };
        return span(seconds);
    }
    go_duration(text).or_else(|| until(text.parse().ok()?, now))
}

fn epoch_seconds(at: Timestamp) -> f64 {
    at.as_nanosecond() as f64 / 1e9
}

/// Returns the time from `now` to `at`, or `None` if `at` is not in the future.
pub(super) fn until(at: Timestamp, now: Timestamp) -> Option<Duration> {
    let ahead = Duration::try_from(at.duration_since(now)).ok()?;
    if ahead.is_zero() { None } else { Some(ahead.min(DELAY_MAX)) }
}

/// Parses `Retry-After`: seconds, also with a fraction, or an HTTP date.
pub(super) fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return span(seconds);
    }
    // Some gateways write `20s`.
    go_duration(text).or_else(|| until(http_date(text)?, now))
}

/// Parses an HTTP date, except in its two obsolete forms.
fn http_date(text: &str) -> Option<Timestamp> {
    static PARSER: DateTimeParser = DateTimeParser::new().relaxed_weekday(true);
    PARSER.parse_timestamp(text).ok()
}

/// Returns the server's time if it sends one, so that its dates are compared with its own clock; otherwise the local time.
///
/// `Date` has no fraction of a second, so a time until a date is up to a second too long, never too short.
pub(super) fn reference(headers: &impl Headers, now: Timestamp) -> Timestamp {
    let Some(date) = headers.value("date").and_then(http_date) else { return now };
    let skew = date.duration_since(now).unsigned_abs();
    if skew <= SKEW_MAX { date } else { now }
}

/// Returns the next midnight in `zone`, also after days of 23 and 25 hours.
pub(super) fn next_midnight(zone: &TimeZone, now: Timestamp) -> Timestamp {
    // At the end of the calendar there is no next day; a day from now is used.
    let day = || now.saturating_add(DELAY_MAX).unwrap_or(now);
    let Ok(tomorrow) = now.to_zoned(zone.clone()).date().checked_add(1.day()) else { return day() };
    tomorrow.to_zoned(zone.clone()).map_or_else(|_| day(), |midnight| midnight.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn go_durations_are_read_whole_or_not_at_all() {
        assert_eq!(go_duration("12ms"), ms(12));
        assert_eq!(go_duration("1s"), ms(1_000));
        assert_eq!(go_duration("6m0s"), ms(360_000));
        assert_eq!(go_duration("1h2m3.5s"), ms(3_723_500));
        assert_eq!(go_duration("2m59.56s"), ms(179_560));
        assert_eq!(go_duration("350µs"), Some(Duration::from_micros(350)));
        for nonsense in ["", "-1", "0", "0s", "-6m0s", "s", "6", "6m0", "6m 0s", "1x", "NaNs", "1.s", ".5s", "٣s"] {
            assert_eq!(go_duration(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn absurd_spans_are_cut_to_the_longest_day() {
        assert_eq!(go_duration("999999999999999999999h"), Some(DELAY_MAX));
        assert_eq!(retry_after("1e300", Timestamp::UNIX_EPOCH), Some(DELAY_MAX));
        assert_eq!(retry_after("Thu, 31 Dec 9998 23:59:59 GMT", Timestamp::UNIX_EPOCH), Some(DELAY_MAX));
        assert_eq!(retry_after("inf", Timestamp::UNIX_EPOCH), None);
        assert_eq!(retry_after("nan", Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn delays_are_found_in_sentences() {
        assert_eq!(delay_in_text("Used 198414, Requested 2829. Please try again in 372ms. Visit"), ms(372));
        assert_eq!(delay_in_text("Please try again in 6m0s."), ms(360_000));
        assert_eq!(delay_in_text("limit: 0, model: gemini-2.5-pro\nPlease retry in 20.04466179s."), {
            Some(Duration::from_nanos(20_044_661_790))
        });
        assert_eq!(delay_in_text("Limit: 3 / min. Please try again in 20s. Contact us"), ms(20_000));
        assert_eq!(delay_in_text("Please retry after 6 seconds."), ms(6_000));
        assert_eq!(delay_in_text("Try again in 2 minutes"), ms(120_000));
        assert_eq!(delay_in_text("Please try again in 5 minutes, or sooner"), ms(300_000));
        assert_eq!(delay_in_text("Please try again in 5min"), ms(300_000));
        for nonsense in
            ["", "Please try again later.", "try again in a while", "try again in 5 mornings", "retry in -3s"]
        {
            assert_eq!(delay_in_text(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn resets_come_as_spans_numbers_and_dates() {
        let now = at("2026-11-15T12:00:00Z");
        assert_eq!(reset("6m0s", now), ms(360_000));
        assert_eq!(reset("7.66", now), ms(7_660));
        assert_eq!(reset("2026-11-15T12:00:41Z", now), ms(41_000));
        assert_eq!(reset("2026-11-15T11:59:41Z", now), None);
        assert_eq!(reset(&(now.as_second() + 90).to_string(), now), ms(90_000));
        assert_eq!(
            reset(&(now.as_millisecond() + 90_000).to_string(), now).map(|d| d.as_secs_f64().round()),
            Some(90.0)
        );
        for nonsense in ["-1", "0", "soon", "", "1e999"] {
            assert_eq!(reset(nonsense, now), None, "{nonsense:?}");
        }
    }

    #[test]
    fn dates_are_counted_on_the_servers_clock() {
        // The local clock is three minutes ahead; by it the date has passed.
        let now = at("2026-11-15T12:03:00Z");
        let headers = [("date", "Sun, 15 Nov 2026 12:00:00 GMT")];
        let reference = reference(&headers, now);
        assert_eq!(retry_after("Sun, 15 Nov 2026 12:00:30 GMT", reference), ms(30_000));
        assert_eq!(retry_after("Sun, 15 Nov 2026 12:00:30 GMT", now), None);
    }

    #[test]
    fn a_server_that_lives_in_another_year_is_not_believed() {
        let now = at("2026-11-15T12:03:00Z");
        assert_eq!(reference(&[("date", "Thu, 01 Jan 1970 00:00:00 GMT")], now), now);
        assert_eq!(reference(&[("date", "yesterday")], now), now);
    }

    #[test]
    fn midnight_is_23_and_25_hours_away_when_clocks_change() {
        let zone = TimeZone::get("America/Los_Angeles").unwrap();
        let hours = |from: &str| {
            let from: Timestamp = from.parse().unwrap();
            next_midnight(&zone, from).duration_since(from).as_secs() / 3600
        };
        assert_eq!(hours("2026-07-01T00:00:00-07:00"), 24);
        assert_eq!(hours("2026-03-08T00:00:00-08:00"), 23);
        assert_eq!(hours("2026-11-01T00:00:00-07:00"), 25);
        // The last second of a day is a second away from the next.
        assert_eq!(hours("2026-11-01T22:00:00-08:00"), 2);
    }

    #[test]
    fn midnight_exists_at_the_end_of_the_calendar() {
        let zone = TimeZone::get("America/Los_Angeles").unwrap();
        for now in [Timestamp::MIN, Timestamp::MAX] {
            next_midnight(&zone, now);
        }
    }
}
