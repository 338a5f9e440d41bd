//! The options of the limits, the same for every command that keeps to some.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::{descriptors, terminal};
use anyhow::{Context as _, bail};
use clap::ValueEnum;
use tidegate_batch::{GLOBAL_CONCURRENCY, Quotas, WindowKind};
use tidegate_limit::store::Store as QuotaStore;
use tidegate_limit::{Admission, Gate, Limit, Window};
use tidegate_redis::{Address, AgreeError, Client, ClientOptions, OnLoss, SharedGate};

/// How long a Redis may take to answer at the start.
const REDIS_PATIENCE: Duration = Duration::from_secs(5);

/// The least and the most that limits in common lose to the way to the server.
const MARGIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

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

    /// Tokens of requests a minute, where they are limited apart from those of answers, as by Anthropic
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) itpm: Option<u64>,

    /// Tokens of answers a minute, where they are limited apart; an answer counts as long as it may be (--max-tokens) or as
    /// the last ones were, and is settled by how long it is
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) otpm: Option<u64>,

    /// Requests a day; counted over restarts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rpd: Option<u64>,

    /// How the provider counts a minute
    #[arg(long, value_enum, default_value_t = WindowArg::Strict)]
    pub(crate) window: WindowArg,

    /// Requests in flight at once, over all files; auto: as many as the server takes, up to 200
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    pub(crate) global_concurrency: Concurrency,

    /// Where the provider's day begins at midnight
    #[arg(long, value_name = "ZONE", default_value = "America/Los_Angeles")]
    pub(crate) day_zone: String,

    /// How long a minute is, for rehearsals against a provider with shorter ones
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration, hide_short_help = true)]
    pub(crate) minute: Duration,
}

/// How many requests are in flight at once. In both cases fewer, if the server refuses more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concurrency {
    Auto,
    AtMost(u64),
}

impl Concurrency {
    pub(crate) fn most(self) -> u64 {
        match self {
            Concurrency::Auto => GLOBAL_CONCURRENCY,
            Concurrency::AtMost(most) => most,
        }
    }
}

impl FromStr for Concurrency {
    type Err = String;

    fn from_str(text: &str) -> Result<Concurrency, String> {
        match text.parse() {
            Ok(most) if most > 0 => Ok(Concurrency::AtMost(most)),
            Err(_) if text == "auto" => Ok(Concurrency::Auto),
            _ => Err("auto, or a number above 0".into()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WindowArg {
    /// At most N in any 60 seconds; may send all N at once
    Strict,
    /// A bucket that is refilled evenly
    Bucket,
    /// Minutes of the clock
    Minute,
}

impl LimitArgs {
    /// Lowers the concurrency to what the limit of open files allows, and says so.
    pub(crate) fn fit_descriptors(&mut self) {
        let Some(limit) = descriptors::raise_limit() else { return };
        let (wanted, possible) = (self.global_concurrency.most(), descriptors::requests_within(limit));
        if wanted > possible {
            terminal::say(format!(
                "tidegate: at most {possible} requests in flight instead of {wanted}: this process may open {limit} files; \
                 raise the limit with `ulimit -Hn`"
            ));
            self.global_concurrency = Concurrency::AtMost(possible);
        }
    }

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
            itpm: self.itpm,
            otpm: self.otpm,
            rpd: self.rpd,
            window,
            minute: self.minute,
            day_zone: self.day_zone.as_str().into(),
            global_concurrency: self.global_concurrency.most(),
            file,
        }
    }
}

/// Limits held in common with other machines
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct SharedArgs {
    /// Hold the limits in common with other machines, through a Redis: redis://USER:PASSWORD@HOST:PORT/DB, rediss://…,
    /// unix://PATH
    #[arg(long, value_name = "URL", hide_env_values = true)]
    pub(crate) limits: Option<Address>,

    /// What the limits are called there: machines that say the same name share them
    #[arg(long, value_name = "NAME", default_value = "tidegate")]
    pub(crate) limits_name: String,

    /// While Redis is lost: stop lets nobody in, share=0.5 goes on with half of every limit
    #[arg(long, value_name = "stop|share=X", default_value = "stop")]
    pub(crate) limits_lost: Lost,
}

/// What to do while Redis is lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lost(pub(crate) OnLoss);

impl FromStr for Lost {
    type Err = String;

    fn from_str(text: &str) -> Result<Lost, String> {
        let share = |share: &str| share.parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 1.0);
        match text.split_once('=') {
            None if text == "stop" => Ok(Lost(OnLoss::Stop)),
            Some(("share", number)) => match share(number) {
                Some(share) => Ok(Lost(OnLoss::LocalShare { share })),
                None => Err("a share is above 0 and at most 1, such as share=0.5".into()),
            },
            _ => Err("stop, or a share such as share=0.5".into()),
        }
    }
}

/// Limits that can be used.
pub(crate) struct Opened {
    pub(crate) admission: Admission,
    /// The file that the day's count is in; closed after the gate, it has the exact count.
    pub(crate) day: Option<QuotaStore>,
    pub(crate) shared: Option<SharedGate>,
}

impl Opened {
    /// Tells the others that nothing is held here any more, and writes the day's count down.
    pub(crate) async fn close(self) {
        self.admission.close();
        if let Some(shared) = self.shared {
            shared.close().await;
        }
        if let Some(day) = self.day {
            day.close();
        }
    }
}

impl SharedArgs {
    /// The limits of `quotas`, in common with others if there is a Redis. To be called on a loop.
    pub(crate) async fn open(&self, quotas: &Quotas) -> anyhow::Result<Opened> {
        let Some(redis) = self.client() else {
            let (gate, day) = quotas.open()?;
            return Ok(Opened { admission: gate.into(), day, shared: None });
        };
        // What is counted over all machines is counted over restarts, too.
        let gate = Quotas { file: None, ..quotas.clone() }.gate()?;
        let shared = self.share(redis, &self.limits_name, quotas.limits()).await?;
        let admission = Admission::in_front_of(gate, std::rc::Rc::new(shared.clone()));
        Ok(Opened { admission, day: None, shared: Some(shared) })
    }

    /// `gate`, with its `limits` in common with others if there is a Redis: under the usual name and `part`.
    pub(crate) async fn admission(&self, gate: Gate, part: &str, limits: Vec<Limit>) -> anyhow::Result<Admission> {
        let Some(redis) = self.client() else { return Ok(gate.into()) };
        let shared = self.share(redis, &format!("{} {part}", self.limits_name), limits).await?;
        Ok(Admission::in_front_of(gate, std::rc::Rc::new(shared)))
    }

    fn client(&self) -> Option<Client> {
        self.limits.clone().map(|address| Client::open(address, ClientOptions::default()))
    }

    async fn share(&self, redis: Client, name: &str, limits: Vec<Limit>) -> anyhow::Result<SharedGate> {
        let margin = margin(&limits);
        let gate =
            SharedGate::builder(redis, name).limits(limits).margin(margin).on_loss(self.limits_lost.0).build()?;
        match gate.agree(REDIS_PATIENCE).await {
            Ok(()) => Ok(gate),
            Err(AgreeError::Connect(error)) if error.is_temporary() && self.limits_lost.0 != OnLoss::Stop => {
                terminal::say(format!("tidegate: {error}; going on with the local share until it is there"));
                Ok(gate)
            }
            Err(error @ AgreeError::OtherLimits { .. }) => bail!("{error} (--limits-name)"),
            Err(error) => Err(error).context("the limits in common cannot be used"),
        }
    }
}

/// What strict windows lose to the way to the server: a hundredth of the shortest, within bounds. On a busy machine that way
/// takes its time, and a strict server counts arrivals.
fn margin(limits: &[Limit]) -> Duration {
    let windows = limits.iter().filter_map(|limit| match limit.rated() {
        Some((_, Window::Strict(length))) => Some(*length),
        _ => None,
    });
    let (least, most) = MARGIN;
    windows.min().map_or(least, |shortest| (shortest / 100).clamp(least, most))
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
    fn concurrency_is_found_or_stated() {
        assert_eq!("auto".parse(), Ok(Concurrency::Auto));
        assert_eq!("30".parse(), Ok(Concurrency::AtMost(30)));
        for text in ["", "0", "-1", "many"] {
            assert!(text.parse::<Concurrency>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_lost_redis_stops_or_leaves_a_share() {
        assert_eq!("stop".parse(), Ok(Lost(OnLoss::Stop)));
        assert_eq!("share=0.5".parse(), Ok(Lost(OnLoss::LocalShare { share: 0.5 })));
        for text in ["", "go", "share", "share=0", "share=1.5", "share=half", "stop=1"] {
            assert!(text.parse::<Lost>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_minute_in_common_loses_a_quarter_of_a_second_at_most() {
        let quotas = |minute| Quotas { rpm: Some(9), minute, ..Quotas::default() }.limits();
        assert_eq!(margin(&quotas(Duration::from_secs(60))), Duration::from_millis(250));
        assert_eq!(margin(&quotas(Duration::from_secs(8))), Duration::from_millis(80));
        assert_eq!(margin(&quotas(Duration::from_secs(1))), Duration::from_millis(50));
        assert_eq!(margin(&[]), Duration::from_millis(50));
    }

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
