//! What goes wrong on purpose.

use std::str::FromStr;

use fastrand::Rng;

use crate::error::ParseError;

/// One thing that can go wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Fault {
    /// 500, after the request was counted: failed requests cost quota.
    Internal,
    /// 503, not counted.
    Unavailable,
    /// 529, not counted.
    Overloaded,
    /// 200, and a body that is not what it claims to be.
    Garbage,
    /// No answer until the client gives up or the server stops.
    Silence,
    /// The connection is closed without an answer.
    Drop,
}

impl Fault {
    const ALL: [(&'static str, Fault); 6] = [
        ("500", Fault::Internal),
        ("503", Fault::Unavailable),
        ("529", Fault::Overloaded),
        ("garbage", Fault::Garbage),
        ("hang", Fault::Silence),
        ("drop", Fault::Drop),
    ];
}

/// How often what goes wrong.
///
/// Written as text: `500=0.01,503=0.02,529=0.02,garbage=0.01,hang=0.001,drop=0.01`.
///
/// ```
/// use tidegate_rehearsal::{Fault, Faults};
///
/// let faults: Faults = "500=0.25, drop=0.5".parse().unwrap();
/// assert_eq!(faults, Faults::none().with(Fault::Internal, 0.25).with(Fault::Drop, 0.5));
/// assert!("500=0.6,503=0.6".parse::<Faults>().is_err(), "more than everything");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Shares of all requests; their sum is at most 1.
    shares: Vec<(Fault, f64)>,
}

impl Faults {
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> Faults {
        Faults::default()
    }

    /// This share of all requests meets that fault.
    ///
    /// # Panics
    /// When the shares are no shares, or more than 1 together.
    #[must_use]
    pub fn with(mut self, fault: Fault, share: f64) -> Faults {
        assert!((0.0..=1.0).contains(&share), "{share} is not a share between 0 and 1");
        self.shares.push((fault, share));
        assert!(self.sum() <= 1.0, "the shares of all faults are more than 1 together");
        self
    }

    fn sum(&self) -> f64 {
        self.shares.iter().map(|(_, share)| share).sum()
    }

    pub(crate) fn draw(&self, random: &mut Rng) -> Option<Fault> {
        let mut drawn = random.f64();
        self.shares.iter().find_map(|(fault, share)| {
            drawn -= share;
            (drawn < 0.0).then_some(*fault)
        })
    }
}

impl FromStr for Faults {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Faults, ParseError> {
        let unreadable = || {
            let expected =
                "500, 503, 529, garbage, hang or drop with a share each, 1 in all at most: 500=0.01,drop=0.02";
            ParseError::new(text, "a list of failures", expected)
        };
        let mut faults = Faults::none();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, share) = part.split_once('=').ok_or_else(unreadable)?;
            let fault = Fault::ALL.iter().find(|(known, _)| *known == name.trim()).ok_or_else(unreadable)?.1;
            let share: f64 = share.trim().parse().map_err(|_| unreadable())?;
            if !(0.0..=1.0).contains(&share) || faults.sum() + share > 1.0 {
                return Err(unreadable());
            }
            faults = faults.with(fault, share);
        }
        Ok(faults)
    }
}

/// How a 429 looks.
///
/// Written as text: `standard`, `bare` (no word about when to come back), `insufficient-quota`, `litellm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusals {
    /// As the provider itself says it, with the time to wait.
    #[default]
    Standard,
    /// Without a time to wait, in headers or text.
    Bare,
    /// No credit left: not to be tried again.
    InsufficientQuota,
    /// As a litellm proxy words it.
    Litellm,
}

impl FromStr for Refusals {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Refusals, ParseError> {
        Ok(match text {
            "standard" => Refusals::Standard,
            "bare" => Refusals::Bare,
            "insufficient-quota" => Refusals::InsufficientQuota,
            "litellm" => Refusals::Litellm,
            _ => {
                return Err(ParseError::new(
                    text,
                    "a kind of refusal",
                    "standard, bare, insufficient-quota or litellm",
                ));
            }
        })
    }
}

/// How many tokens a request counts against the tokens per minute.
///
/// Written as text: `usage`, `declared`, `input`, `auto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counting {
    /// What its answer will report: prompt and completion, known beforehand because answers are made from prompts. For
    /// Gemini's and Anthropic's shapes the prompt alone, as they do.
    #[default]
    Auto,
    /// Prompt and completion.
    Usage,
    /// The larger of `max_tokens` and the prompt's characters by four, however short the answer: OpenAI's own way.
    Declared,
    /// The prompt alone.
    Input,
}

impl FromStr for Counting {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Counting, ParseError> {
        Ok(match text {
            "auto" => Counting::Auto,
            "usage" => Counting::Usage,
            "declared" => Counting::Declared,
            "input" => Counting::Input,
            _ => return Err(ParseError::new(text, "a way to count tokens", "auto, usage, declared or input")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_as_often_as_was_asked_for() {
        let faults: Faults = "500=0.1,hang=0.2".parse().unwrap();
        let mut random = Rng::with_seed(3);
        let drawn: Vec<_> = (0..10_000).map(|_| faults.draw(&mut random)).collect();
        let count = |wanted: Option<Fault>| drawn.iter().filter(|fault| **fault == wanted).count();
        assert!((900..1_100).contains(&count(Some(Fault::Internal))));
        assert!((1_900..2_100).contains(&count(Some(Fault::Silence))));
        assert_eq!(count(Some(Fault::Drop)), 0);
    }
}
