//! The options of the limits, the same for every command that keeps to some.

use std::str::FromStr;
use std::time::Duration;

use crate::counts::Counts;
use crate::machine::Room;
use crate::{descriptors, terminal};
use anyhow::{Context as _, bail};
use clap::ValueEnum;
use tidegate_batch::{AutoConcurrency, GLOBAL_CONCURRENCY, Quotas, WindowKind, WindowLengths};
use tidegate_limit::store::Store as QuotaStore;
use tidegate_limit::{Admission, Gate, Limit, Window};
use tidegate_redis::{Address, AgreeError, Client, ClientOptions, OnLoss, SharedGate};

/// How long a Redis may take to answer at the start.
const REDIS_PATIENCE: Duration = Duration::from_secs(5);

/// A server closes connections by itself before that.
pub(crate) const KEPT_IDLE: Duration = Duration::from_secs(60);

/// The least and the most that limits in common lose to the way to the server.
const MARGIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// Limits of the provider; what is not given is not limited
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Requests per minute, or per another window: 10/1s
    #[arg(long, value_name = "N[/TIME]")]
    pub(crate) rpm: Option<Rate>,

    /// Tokens per minute, or per another window: 20000/10s; each request is estimated before it is sent and settled by what its
    /// answer says
    #[arg(long, value_name = "N[/TIME]")]
    pub(crate) tpm: Option<Rate>,

    /// Input tokens per minute, or per another window, for providers that limit them separately, as Anthropic does
    #[arg(long, value_name = "N[/TIME]")]
    pub(crate) itpm: Option<Rate>,

    /// Output tokens per minute, or per another window, for providers that limit them separately; an answer counts as long as it
    /// may be (--max-tokens) or as the last ones were, and is settled by how long it is
    #[arg(long, value_name = "N[/TIME]")]
    pub(crate) otpm: Option<Rate>,

    /// Requests per calendar day (see --day-zone), or in any 24 hours: 1000/24h; all runs with the same key count together
    #[arg(long, value_name = "N[/24h]")]
    pub(crate) rpd: Option<DayRate>,

    /// How the provider counts a minute, or the window stated with a limit
    #[arg(long, value_enum, default_value_t = WindowArg::Strict)]
    pub(crate) window: WindowArg,

    /// Requests in flight at once, over all files; auto: 200, which explain, batch and plan raise to what the stated limits need;
    /// fewer if the server refuses
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    pub(crate) global_concurrency: Concurrency,

    /// Time zone in which the provider's calendar day begins
    #[arg(long, value_name = "ZONE", default_value = "America/Los_Angeles")]
    pub(crate) day_zone: String,

    /// How long the window of each limit is that does not state one, for rehearsals
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration, hide_short_help = true)]
    pub(crate) minute: Duration,
}

/// An amount per minute, or per a window of its own: `500`, `10/1s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    amount: u64,
    per: Option<Duration>,
}

/// A longer window is not one that providers count requests and tokens in.
const WINDOW_MAX: Duration = Duration::from_secs(3_600);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let (amount, per) = match text.split_once('/') {
            Some((amount, per)) => (amount, Some(per)),
            None => (text, None),
        };
        let amount = amount.trim().parse().ok().filter(|amount| *amount > 0);
        let amount = amount.ok_or("an amount above 0 such as 500, or with its window: 10/1s")?;
        let per = per.map(duration).transpose()?;
        if per.is_some_and(|per| per > WINDOW_MAX) {
            return Err("a window of an hour at most; --rpd is for requests per day".into());
        }
        Ok(Rate { amount, per })
    }
}

/// An amount per calendar day, or in any 24 hours: `1000`, `1000/24h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DayRate {
    amount: u64,
    slides: bool,
}

const DAY: Duration = Duration::from_secs(24 * 3_600);

impl FromStr for DayRate {
    type Err = String;

    fn from_str(text: &str) -> Result<DayRate, String> {
        let (amount, slides) = match text.split_once('/') {
            Some((amount, per)) => (amount, duration(per)? == DAY),
            None => (text, false),
        };
        if !slides && amount.len() < text.len() {
            return Err(
                "--rpd counts calendar days, or any 24 hours: 1000/24h; --rpm takes windows of up to an hour".into()
            );
        }
        let amount = amount.trim().parse().ok().filter(|amount| *amount > 0);
        let amount = amount.ok_or("an amount above 0 such as 1000, or for any 24 hours: 1000/24h")?;
        Ok(DayRate { amount, slides })
    }
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
    /// At most N in any 60 seconds, or any window of the stated length; may send all N at once
    Strict,
    /// A bucket that is refilled evenly
    Bucket,
    /// Minutes of the clock, or windows of the stated length that begin with them
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

    /// Derives the concurrency, if it was not stated; limits that machines share stay as they are.
    pub(crate) fn auto_concurrency(&self, shared: Option<&SharedArgs>) -> Option<AutoConcurrency> {
        if self.global_concurrency != Concurrency::Auto || shared.is_some_and(|shared| shared.limits.is_some()) {
            return None;
        }
        let room = self.room();
        let limits = self.quotas().limits();
        Some(AutoConcurrency::new(&limits).requests_max(room.requests).files_max(room.files))
    }

    /// What this machine has room for.
    pub(crate) fn room(&self) -> Room {
        Room::now(descriptors::limit().map(descriptors::requests_within))
    }

    /// The limits that were stated, counted by this process alone.
    pub(crate) fn quotas(&self) -> Quotas {
        let window = match self.window {
            WindowArg::Strict => WindowKind::Strict,
            WindowArg::Bucket => WindowKind::Bucket,
            WindowArg::Minute => WindowKind::Minute,
        };
        Quotas {
            rpm: self.rpm.map(|rate| rate.amount),
            tpm: self.tpm.map(|rate| rate.amount),
            itpm: self.itpm.map(|rate| rate.amount),
            otpm: self.otpm.map(|rate| rate.amount),
            rpd: self.rpd.map(|rate| rate.amount),
            window,
            minute: self.minute,
            lengths: WindowLengths {
                rpm: self.rpm.and_then(|rate| rate.per),
                tpm: self.tpm.and_then(|rate| rate.per),
                itpm: self.itpm.and_then(|rate| rate.per),
                otpm: self.otpm.and_then(|rate| rate.per),
                rpd: self.rpd.filter(|rate| rate.slides).map(|_| DAY),
            },
            day_zone: self.day_zone.as_str().into(),
            global_concurrency: self.global_concurrency.most(),
            file: None,
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

    /// While Redis is lost: stop sends nothing, share=0.5 goes on with half of every limit
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
    /// Reports to the other machines that nothing is held here any more, and stores the day's count.
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
    /// The limits of `quotas`, in common with others if there is a Redis, and else with all processes that keep the same `counts`.
    /// To be called on a loop.
    pub(crate) async fn open(&self, quotas: &Quotas, counts: &Counts) -> anyhow::Result<Opened> {
        let Some(redis) = self.client() else {
            let is_rated = quotas.limits().iter().any(|limit| limit.rated().is_some());
            let file = if is_rated { counts.prepare()? } else { None };
            let (gate, day) = Quotas { file, ..quotas.clone() }.open()?;
            return Ok(Opened { admission: gate.into(), day, shared: None });
        };
        // What is counted over all machines is counted over restarts, too.
        let gate = quotas.gate()?;
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
        _ => return Err(format!("unknown unit of time {unit:?}; use ms, s, m or h")),
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
    fn rates_are_read_with_their_windows() {
        let rate = |amount, per| Ok(Rate { amount, per });
        assert_eq!("500".parse(), rate(500, None));
        assert_eq!("600/6s".parse(), rate(600, Some(Duration::from_secs(6))));
        assert_eq!("10/500ms".parse(), rate(10, Some(Duration::from_millis(500))));
        for text in ["", "0", "-1", "0/1s", "10/", "10/0s", "10/soon", "10/2h", "ten", "1/1s/1s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_day_is_the_calendars_or_any_24_hours() {
        assert_eq!("1000".parse(), Ok(DayRate { amount: 1_000, slides: false }));
        for text in ["1000/24h", "1000/1440m"] {
            assert_eq!(text.parse(), Ok(DayRate { amount: 1_000, slides: true }), "{text}");
        }
        for text in ["", "0", "-1", "0/24h", "10/", "10/1h", "10/25h", "10/day", "ten", "1/24h/24h"] {
            assert!(text.parse::<DayRate>().is_err(), "{text}");
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
