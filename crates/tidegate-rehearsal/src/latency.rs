//! How long an answer takes.

use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

use crate::error::ParseError;
use crate::text::duration;

/// How long the model thinks.
///
/// Written as text: `200ms`, `100ms..400ms`, or `lognormal:800ms,0.5` (median and sigma), the shape that real models have.
///
/// ```
/// use std::time::Duration;
/// use tidegate_rehearsal::Latency;
///
/// let latency: Latency = "lognormal:800ms,0.5".parse().unwrap();
/// let mut dice = latency.seeded(7);
/// let first = dice.next().unwrap();
/// assert_eq!(latency.seeded(7).next(), Some(first), "the same seed, the same run");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Latency {
    /// Always as long.
    Fixed(Duration),
    /// Anything between the two, equally likely.
    Uniform(Duration, Duration),
    /// Half of the answers are faster than the median, some take many times as long.
    LogNormal {
        /// The median.
        median: Duration,
        /// The spread: 0.5 means that one in a hundred takes more than three times the median.
        sigma: f64,
    },
}

impl Latency {
    /// Latencies drawn from a seed, without end.
    pub fn seeded(self, seed: u64) -> impl Iterator<Item = Duration> {
        let mut random = Rng::with_seed(seed);
        std::iter::repeat_with(move || self.draw(&mut random))
    }

    /// The mean.
    #[must_use]
    pub fn mean(self) -> Duration {
        match self {
            Latency::Fixed(always) => always,
            Latency::Uniform(from, to) => (from + to) / 2,
            Latency::LogNormal { median, sigma } => scaled(median, (sigma * sigma / 2.0).exp()),
        }
    }

    pub(crate) fn draw(self, random: &mut Rng) -> Duration {
        match self {
            Latency::Fixed(always) => always,
            Latency::Uniform(from, to) => from + to.saturating_sub(from).mul_f64(random.f64()),
            Latency::LogNormal { median, sigma } => {
                // Box and Muller; 1 − x is never zero.
                let (radius, angle) = ((-2.0 * (1.0 - random.f64()).ln()).sqrt(), std::f64::consts::TAU * random.f64());
                scaled(median, (sigma * radius * angle.cos()).exp())
            }
        }
    }
}

/// A factor of a log-normal distribution has no upper bound; a duration has.
fn scaled(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

impl FromStr for Latency {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Latency, ParseError> {
        let parsed = if let Some(shape) = text.strip_prefix("lognormal:") {
            shape.split_once(',').and_then(|(median, sigma)| {
                let sigma: f64 = sigma.trim().parse().ok().filter(|sigma| (0.0..=5.0).contains(sigma))?;
                Some(Latency::LogNormal { median: duration(median.trim())?, sigma })
            })
        } else if let Some((from, to)) = text.split_once("..") {
            duration(from.trim())
                .zip(duration(to.trim()))
                .filter(|(from, to)| from <= to)
                .map(|(a, b)| Latency::Uniform(a, b))
        } else {
            duration(text.trim()).map(Latency::Fixed)
        };
        parsed.ok_or_else(|| ParseError::new(text, "a latency", "200ms, 100ms..400ms or lognormal:800ms,0.5"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_latencies_have_the_shape_that_was_asked_for() {
        let ms = Duration::from_millis;
        let uniform: Latency = "100ms..400ms".parse().unwrap();
        assert!(uniform.seeded(1).take(10_000).all(|drawn| (ms(100)..=ms(400)).contains(&drawn)));
        let skewed: Latency = "lognormal:800ms,0.5".parse().unwrap();
        let mut drawn: Vec<_> = skewed.seeded(1).take(10_000).collect();
        drawn.sort();
        assert!((ms(780)..ms(820)).contains(&drawn[5_000]), "{:?}", drawn[5_000]);
        assert!((ms(2_300)..ms(2_900)).contains(&drawn[9_900]), "{:?}", drawn[9_900]);
        let mean = drawn.iter().sum::<Duration>() / 10_000;
        assert!(mean.abs_diff(skewed.mean()) < ms(15), "{mean:?}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in ["", "fast", "400ms..100ms", "lognormal:1s", "lognormal:1s,-1", "-1s"] {
            assert!(text.parse::<Latency>().is_err(), "{text}");
        }
    }
}
