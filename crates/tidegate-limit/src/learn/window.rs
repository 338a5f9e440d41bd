//! A window that was stated, remembered or found, and the pace it becomes when no window fits.

use std::time::Duration;

use super::found::FoundWindow;
use crate::moment::Moment;

/// By how much a pace becomes faster that is not refused, at first; doubled each time.
const UP: f64 = 0.05;
const UP_MAX: f64 = 0.5;
/// By how much a pace becomes slower that was refused.
const CUT: f64 = 0.15;
/// How near a pace comes to one that was refused, on its way back.
const BACK_TO: f64 = 0.97;
/// The length of a pace's window, about.
const PACE_SECONDS: f64 = 0.1;
/// How exactly a length is found.
const EXACT: f64 = 0.04;
/// Measured rates that are remembered.
const RATES: usize = 5;
/// Accepted requests that a rate is measured over.
pub(super) const RATE_OVER: u64 = 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) amount: u64,
    pub(super) length: Duration,
    /// Known to be too short, or to be tried next.
    pub(super) shortest: Duration,
    /// Early requests are sent to find a shorter length.
    pub(super) narrowing: bool,
    /// Since when it was full, if it was since it was last changed.
    pub(super) filled_at: Option<Moment>,
    /// Corrections (rule 8), less one per quiet time.
    pub(super) doubts: u32,
    /// The fastest rate that was found so far.
    pub(super) best: f64,
    /// Found here or in an earlier run, not stated.
    pub(super) learnt: bool,
    pub(super) pace: Option<Pace>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    up: f64,
    /// The rate that was refused.
    refused: f64,
    /// The last measured rates; the oldest is overwritten.
    rates: [f64; RATES],
    measured: usize,
}

impl Window {
    pub(super) fn given(amount: u64, length: Duration) -> Window {
        let amount = amount.max(1);
        Window {
            amount,
            length,
            shortest: length,
            narrowing: false,
            filled_at: None,
            doubts: 0,
            best: 0.0,
            learnt: false,
            pace: None,
        }
    }

    pub(super) fn remembered(known: FoundWindow) -> Window {
        let window = Window { learnt: true, ..Window::given(known.amount, known.length) };
        match known.is_pace {
            true => window.paced(window.rate()),
            false => window,
        }
    }

    /// A length between `shortest` and `length` is to be found.
    pub(super) fn found(amount: u64, length: Duration, shortest: Duration) -> Window {
        Window {
            shortest,
            narrowing: true,
            learnt: true,
            ..Window::given(amount, length.max(Duration::from_millis(20)))
        }
    }

    /// Requests per second.
    pub(super) fn rate(&self) -> f64 {
        self.amount as f64 / self.length.as_secs_f64()
    }

    pub(super) fn is_narrowing(&self, jitter: Duration) -> bool {
        let open = self.length.saturating_sub(self.shortest);
        self.narrowing && open > (2 * jitter).max(self.length.mul_f64(EXACT))
    }

    /// The pace of `rate` requests per second that replaces this window.
    pub(super) fn paced(self, rate: f64) -> Window {
        // One request per hour is slower than any server that answers at all.
        let rate = rate.max(1.0 / 3600.0);
        let amount = ((rate * PACE_SECONDS) as u64).max(1);
        let fresh = Pace { up: UP, refused: 0.0, rates: [0.0; RATES], measured: 0 };
        let pace = self.pace.map_or(fresh, |pace| Pace { up: UP, ..pace });
        Window { amount, length: Duration::from_secs_f64(amount as f64 / rate), pace: Some(pace), learnt: true, ..self }
    }

    /// Nothing was refused for a while (rule 7).
    pub(super) fn speed_up(&mut self) {
        if let Some(pace) = &mut self.pace {
            self.length = self.length.div_f64(1.0 + pace.up);
            pace.up = (2.0 * pace.up).min(UP_MAX);
        }
    }

    /// Goes back towards the pace that was refused.
    pub(super) fn recover(&mut self) {
        let rate = self.rate();
        if let Some(pace) = &self.pace
            && rate < BACK_TO * pace.refused
        {
            let fastest = Duration::from_secs_f64(self.amount as f64 / (BACK_TO * pace.refused));
            self.length = self.length.div_f64(1.1).max(fastest);
        }
    }

    /// A pace was refused after requests had been accepted at the rate `measured` (rule 9). Returns the pace from now on.
    pub(super) fn slow_down(&mut self, measured: f64) -> f64 {
        let rate = self.rate();
        let Some(pace) = &mut self.pace else { return rate };
        pace.rates[pace.measured % RATES] = measured;
        pace.measured += 1;
        if measured >= 0.8 * rate {
            pace.refused = rate;
            return rate * (1.0 - CUT);
        }
        let best = pace.rates.iter().copied().fold(0.0, f64::max);
        best.min(rate).max(rate / 2.0)
    }
}
