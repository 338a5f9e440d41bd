//! Spans and instants as people write them: `500ms`, `10s`, `5m`, `2h`, `7d`; `2026-11-16T08:00:00Z`.

use std::time::Duration;

use anyhow::{anyhow, bail};
use jiff::Timestamp;

const UNITS: &[(&str, f64)] =
    &[("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3_600.0), ("d", 86_400.0), ("w", 604_800.0)];

/// A span; a number without a unit is seconds.
pub(crate) fn span(text: &str) -> anyhow::Result<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let factor =
        UNITS.iter().find(|(name, _)| *name == unit || unit.is_empty() && *name == "s").map(|(_, factor)| factor);
    let seconds = number.parse::<f64>().ok().zip(factor).map(|(number, factor)| number * factor);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| anyhow!("{text:?} is not a duration; write 500ms, 10s, 5m, 2h or 7d"))
}

/// An instant: with its offset, or as seconds since 1970.
pub(crate) fn instant(text: &str) -> anyhow::Result<Timestamp> {
    if let Ok(at) = text.trim().parse::<Timestamp>() {
        return Ok(at);
    }
    if let Ok(seconds) = text.trim().parse::<f64>()
        && let Ok(at) = Timestamp::from_microsecond((seconds * 1e6) as i64)
    {
        return Ok(at);
    }
    bail!("{text:?} is no instant; write it with its offset, as 2026-11-16T08:00:00Z or 2026-11-16T08:00:00+01:00");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_and_without_units_and_nonsense_is_refused() {
        for (text, ms) in
            [("500ms", 500), ("10s", 10_000), ("1.5", 1_500), ("5m", 300_000), ("2h", 7_200_000), ("1 d", 86_400_000)]
        {
            assert_eq!(span(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "s", "-1s", "10 parsecs", "1e400", "1.2.3s"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn instants_need_their_offset() {
        assert_eq!(instant("2026-11-16T08:00:00+01:00").unwrap(), instant("2026-11-16T07:00:00Z").unwrap());
        assert_eq!(instant("1767225600").unwrap(), instant("2026-01-01T00:00:00Z").unwrap());
        assert!(instant("2026-11-16T08:00:00").unwrap_err().to_string().contains("offset"));
        assert!(instant("tomorrow").is_err());
    }
}
