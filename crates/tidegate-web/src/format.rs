//! Numbers, instants and durations as the pages write them.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// `399,241`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 page`, `2 pages`: the noun with an s where it takes one.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// `0.6 ms`, `184 ms`, `2.3 s`, `48 s`, `8 min 38 s`, `10 h 57 min`, `3 d 04 h`.
#[must_use]
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match time.as_secs_f64() {
        0.0 => "0 s".to_owned(),
        s if s < 0.000_001 => format!("{} ns", time.as_nanos()),
        s if s < 0.001 => format!("{:.0} \u{b5}s", s * 1e6),
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 59.5 => format!("{s:.0} s"),
        _ if seconds < 3_600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ if seconds < 86_400 => format!("{} h {:02} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// The time until an instant, as the browser counts it down: tenths of seconds below ten.
#[must_use]
pub fn countdown(left: Duration) -> String {
    if left < Duration::from_secs(10) { format!("{:.1} s", left.as_secs_f64()) } else { duration(left) }
}

/// `14:03:07.4` below a minute away, otherwise `14:03:07`, with `tomorrow` or the date when it is not today.
#[must_use]
pub fn instant(at: SystemTime, now: SystemTime) -> String {
    instant_in(at, now, &TimeZone::system())
}

fn instant_in(at: SystemTime, now: SystemTime, zone: &TimeZone) -> String {
    let (Ok(at_stamp), Ok(now_stamp)) = (Timestamp::try_from(at), Timestamp::try_from(now)) else {
        return "?".to_owned();
    };
    let (there, here) = (at_stamp.to_zoned(zone.clone()), now_stamp.to_zoned(zone.clone()));
    let distance = at.duration_since(now).unwrap_or_else(|error| error.duration());
    let mut text = if distance < Duration::from_secs(60) {
        format!("{}.{}", there.strftime("%H:%M:%S"), there.subsec_nanosecond() / 100_000_000)
    } else {
        there.strftime("%H:%M:%S").to_string()
    };
    if there.date() != here.date() {
        let is_tomorrow = here.date().tomorrow().is_ok_and(|tomorrow| tomorrow == there.date());
        text.push_str(&if is_tomorrow { " tomorrow".to_owned() } else { there.strftime(" on %-d %b").to_string() });
    }
    text
}

/// `14:03`, for axes.
#[must_use]
pub fn minute(at: SystemTime) -> String {
    Timestamp::try_from(at)
        .map_or_else(|_| "?".to_owned(), |at| at.to_zoned(TimeZone::system()).strftime("%H:%M").to_string())
}

/// The time now, `14:03:05`.
#[must_use]
pub fn time_now() -> String {
    Timestamp::now().to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// The zone that times are shown in.
#[must_use]
pub fn zone_name() -> String {
    TimeZone::system().iana_name().unwrap_or("UTC").to_owned()
}

/// Seconds that the zone is ahead of UTC now.
#[must_use]
pub fn utc_offset() -> i32 {
    TimeZone::system().to_offset(Timestamp::now()).seconds()
}

/// Milliseconds since 1970, as scripts count time.
#[must_use]
pub fn millis(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// At most `most` characters, the last an ellipsis if some are missing.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['\u{2026}']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (4_483_671, "4,483,671"), (10_000, "10,000")] {
            assert_eq!(count(number), text);
        }
        assert_eq!((counted(1, "page"), counted(2_000, "page")), ("1 page".into(), "2,000 pages".into()));
    }

    #[test]
    fn durations_have_two_figures() {
        let cases = [
            (0, "0 s"),
            (640_000, "640 \u{b5}s"),
            (600_000_000, "600 ms"),
            (2_100_000, "2.1 ms"),
            (2_340_000_000, "2.3 s"),
            (59_400_000_000, "59 s"),
            (518_000_000_000, "8 min 38 s"),
            (39_420_000_000_000, "10 h 57 min"),
            (273_600_000_000_000, "3 d 04 h"),
        ];
        for (nanos, text) in cases {
            assert_eq!(duration(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn instants_say_the_day_when_it_is_not_today() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let at = |text: &str| SystemTime::from(text.parse::<Timestamp>().unwrap());
        let now = at("2026-11-18T13:03:05.1Z");
        let shown = |text: &str| instant_in(at(text), now, &zone);
        assert_eq!(shown("2026-11-18T13:03:07.45Z"), "14:03:07.4");
        assert_eq!(shown("2026-11-18T13:08:14.9Z"), "14:08:14");
        assert_eq!(shown("2026-11-19T00:00:00Z"), "01:00:00 tomorrow");
        assert_eq!(shown("2026-11-30T08:00:00Z"), "09:00:00 on 30 Nov");
    }
}
