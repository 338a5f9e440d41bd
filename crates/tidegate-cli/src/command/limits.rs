//! The options of the limits, the same for every command that keeps to some.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use tidegate_batch::{GLOBAL_CONCURRENCY, Quotas, WindowKind};

/// Limits of the provider; what is not given is not limited
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Requests a minute
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rpm: Option<u64>,

    /// Tokens a minute; each request is estimated before it is sent and settled by what its answer says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) tpm: Option<u64>,

    /// Requests a day; counted over restarts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rpd: Option<u64>,

    /// How the provider counts a minute
    #[arg(long, value_enum, default_value_t = WindowArg::Strict)]
    pub(crate) window: WindowArg,

    /// Requests under way at once, over all files
    #[arg(long, value_name = "N", default_value_t = GLOBAL_CONCURRENCY, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) global_concurrency: u64,

    /// Where the provider's day begins at midnight
    #[arg(long, value_name = "ZONE", default_value = "America/Los_Angeles")]
    pub(crate) day_zone: String,

    /// How long a minute is, for rehearsals against a provider with shorter ones
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration, hide_short_help = true)]
    pub(crate) minute: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WindowArg {
    /// At most so many in any minute: right for every provider
    Strict,
    /// A bucket that is refilled evenly
    Bucket,
    /// Minutes of the clock
    Minute,
}

impl LimitArgs {
    /// What was asked for; the day's count is kept in `file`.
    pub(crate) fn quotas(&self, file: Option<PathBuf>) -> Quotas {
        let window = match self.window {
            WindowArg::Strict => WindowKind::Strict,
            WindowArg::Bucket => WindowKind::Bucket,
            WindowArg::Minute => WindowKind::Minute,
        };
        Quotas {
            rpm: self.rpm,
            tpm: self.tpm,
            rpd: self.rpd,
            window,
            minute: self.minute,
            day_zone: self.day_zone.as_str().into(),
            global_concurrency: self.global_concurrency,
            file,
        }
    }
}

/// `500ms`, `20s`, `5m`, `1h`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{unit:?} is no unit of time; use ms, s, m or h")),
    };
    let number: f64 = number.parse().map_err(|_| "a time looks like 500ms, 20s, 5m or 1h".to_owned())?;
    Duration::try_from_secs_f64(number * factor)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "a time has to be above zero, and not for ever".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("20"), Ok(Duration::from_secs(20)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        for text in ["", "s", "5 weeks", "-1s", "0s", "1e99h", "1.2.3s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
