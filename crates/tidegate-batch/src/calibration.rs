//! Estimates that learn: what answers said their requests cost, against what had been estimated. What is booked too high
//! is a quota that nobody uses until the answer comes; so the next are booked as high as the dearest of the last ones, and
//! a little more. Pure: answers in, estimates out.

use std::collections::VecDeque;

use crate::estimate::Estimate;
use crate::question::Usage;

/// So many answers are remembered.
const REMEMBERED: usize = 64;

/// Fewer answers teach nothing.
const LEARNT_FROM: usize = 8;

/// Above the dearest of the last ones, in percent, and in tokens.
const MARGIN_PERCENT: u64 = 5;
const MARGIN_TOKENS: u64 = 8;

/// A lesson that would lower estimates by less than this, in percent, is not worth telling those who wait.
const WORTHWHILE_PERCENT: u64 = 8;

/// What the last answers taught.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calibration {
    /// Input tokens counted for a thousand estimated, and output tokens.
    samples: VecDeque<(u64, u64)>,
    lesson: Option<Lesson>,
}

/// As dear as it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lesson {
    input_permille: u64,
    output_tokens: u64,
}

impl Calibration {
    /// A request that was estimated so cost that. Whether estimates change by it.
    pub(crate) fn learn(&mut self, estimate: Estimate, usage: Usage) -> bool {
        if estimate.input_tokens == 0 || usage.input_tokens == 0 {
            return false;
        }
        if self.samples.len() == REMEMBERED {
            self.samples.pop_front();
        }
        let permille = (usage.input_tokens.saturating_mul(1_000)).div_ceil(estimate.input_tokens);
        self.samples.push_back((permille, usage.output_tokens));
        if self.samples.len() < LEARNT_FROM {
            return false;
        }
        let dearest = |of: fn(&(u64, u64)) -> u64| self.samples.iter().map(of).max().unwrap_or(0);
        let new = Lesson { input_permille: dearest(|sample| sample.0), output_tokens: dearest(|sample| sample.1) };
        let worth_it = match self.lesson {
            None => true,
            // Dearer than thought is told at once, cheaper when it matters.
            Some(old) => {
                let cheaper = |new: u64, old: u64| new * 100 < old * (100 - WORTHWHILE_PERCENT);
                new.input_permille > old.input_permille
                    || new.output_tokens > old.output_tokens
                    || cheaper(new.input_permille, old.input_permille)
                    || cheaper(new.output_tokens, old.output_tokens)
            }
        };
        if worth_it {
            self.lesson = Some(new);
        }
        worth_it
    }

    /// What to book for a request that was estimated so. An answer never counts for more than was estimated: that is its
    /// greatest length.
    pub(crate) fn apply(&self, estimate: Estimate) -> Estimate {
        let Some(Lesson { input_permille, output_tokens }) = self.lesson else { return estimate };
        let margin = |tokens: u64| tokens + tokens * MARGIN_PERCENT / 100 + MARGIN_TOKENS;
        let input = estimate.input_tokens.saturating_mul(input_permille).div_ceil(1_000);
        Estimate { input_tokens: margin(input), output_tokens: margin(output_tokens).min(estimate.output_tokens) }
    }
}

/// The mean cost of the last requests: what was settled, or, as long as nothing was, what was booked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Typical {
    input_tokens: f64,
    output_tokens: f64,
    settled: u64,
}

impl Typical {
    /// A request was booked so.
    #[must_use]
    pub(crate) fn booked(self, input_tokens: u64, output_tokens: u64) -> Typical {
        match self.settled {
            0 => Typical { input_tokens: input_tokens as f64, output_tokens: output_tokens as f64, settled: 0 },
            _ => self,
        }
    }

    /// A request came to this.
    #[must_use]
    pub(crate) fn settled(self, usage: Usage) -> Typical {
        let settled = self.settled + 1;
        // A mean of all at first, and of the last ones later.
        let share = 1.0 / settled.min(REMEMBERED as u64) as f64;
        let mean = |before: f64, now: u64| before + (now as f64 - before) * share;
        Typical {
            input_tokens: mean(self.input_tokens, usage.input_tokens),
            output_tokens: mean(self.output_tokens, usage.output_tokens),
            settled,
        }
    }

    pub(crate) fn usage(self) -> Usage {
        Usage { input_tokens: self.input_tokens.ceil() as u64, output_tokens: self.output_tokens.ceil() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESTIMATE: Estimate = Estimate { input_tokens: 1_000, output_tokens: 1_024 };

    fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
        Usage { input_tokens, output_tokens }
    }

    #[test]
    fn estimates_come_down_to_the_dearest_of_the_last_answers() {
        let mut calibration = Calibration::default();
        for number in 0..LEARNT_FROM as u64 {
            assert_eq!(calibration.apply(ESTIMATE), ESTIMATE, "too few to learn from");
            calibration.learn(ESTIMATE, usage(700 + number, 60 + number));
        }
        let booked = calibration.apply(ESTIMATE);
        assert_eq!((booked.input_tokens, booked.output_tokens), (707 + 35 + 8, 67 + 3 + 8));
    }

    #[test]
    fn a_dear_answer_is_heeded_at_once_and_forgotten_in_time() {
        let mut calibration = Calibration::default();
        (0..LEARNT_FROM).for_each(|_| {
            calibration.learn(ESTIMATE, usage(700, 60));
        });
        assert!(!calibration.learn(ESTIMATE, usage(690, 59)), "no news");
        assert!(calibration.learn(ESTIMATE, usage(1_400, 5_000)));
        let booked = calibration.apply(ESTIMATE);
        assert!(booked.input_tokens > 1_400, "estimates may be too low, too");
        assert_eq!(booked.output_tokens, 1_024, "no answer is longer than allowed");
        let news = (0..REMEMBERED).filter(|_| calibration.learn(ESTIMATE, usage(700, 60))).count();
        assert_eq!(news, 1);
        assert!(calibration.apply(ESTIMATE).input_tokens < 800);
    }

    #[test]
    fn what_says_nothing_teaches_nothing() {
        let mut calibration = Calibration::default();
        (0..100).for_each(|_| assert!(!calibration.learn(ESTIMATE, usage(0, 0))));
        (0..100).for_each(|_| assert!(!calibration.learn(Estimate::default(), usage(5, 5))));
        assert_eq!(calibration.apply(ESTIMATE), ESTIMATE);
    }

    #[test]
    fn what_is_typical_is_booked_at_first_and_then_the_mean_of_what_was_settled() {
        let typical = Typical::default().booked(100, 1_024);
        assert_eq!(typical.usage(), usage(100, 1_024));
        let typical = typical.settled(usage(80, 40)).booked(100, 1_024).settled(usage(120, 60));
        assert_eq!(typical.usage(), usage(100, 50));
        let later = (0..1_000).fold(typical, |typical, _| typical.settled(usage(10, 10)));
        assert_eq!(later.usage(), usage(11, 11), "rounded up");
    }
}
