//! Servers with limits, counted on arrival. Times are seconds since the run began.

use std::collections::VecDeque;

use crate::random::Random;

pub(crate) const NEVER: f64 = f64::INFINITY;

/// What a limit counts, and how.
#[derive(Clone, Debug)]
pub(crate) enum Limit {
    /// At most `limit` in any `window`.
    Sliding { limit: f64, window: f64, log: VecDeque<(f64, f64)>, used: f64 },
    /// The same per calendar window; the run begins `phase` seconds into one.
    Calendar { limit: f64, window: f64, phase: f64, current: f64, used: f64 },
    /// A bucket; with a burst of 1 it is GCRA without burst.
    Bucket { rate: f64, burst: f64, level: f64, at: f64 },
    /// At most `limit` in service.
    Cap { limit: u64, used: u64 },
}

impl Limit {
    pub(crate) fn sliding(limit: u64, window: f64) -> Limit {
        Limit::Sliding { limit: limit as f64, window, log: VecDeque::new(), used: 0.0 }
    }

    pub(crate) fn calendar(limit: u64, window: f64, phase: f64) -> Limit {
        Limit::Calendar { limit: limit as f64, window, phase, current: 0.0, used: 0.0 }
    }

    pub(crate) fn bucket(rate: f64, burst: f64) -> Limit {
        Limit::Bucket { rate, burst, level: burst, at: 0.0 }
    }

    pub(crate) fn cap(limit: u64) -> Limit {
        Limit::Cap { limit, used: 0 }
    }

    fn expire(&mut self, t: f64) {
        match self {
            Limit::Sliding { window, log, used, .. } => {
                while log.front().is_some_and(|(at, _)| *at <= t - *window) {
                    *used -= log.pop_front().unwrap().1;
                }
            }
            Limit::Calendar { window, phase, current, used, .. } => {
                let now = ((t + *phase) / *window).floor();
                if now != *current {
                    (*current, *used) = (now, 0.0);
                }
            }
            Limit::Bucket { rate, burst, level, at } => {
                *level = burst.min(*level + (t - *at) * *rate);
                *at = t;
            }
            Limit::Cap { .. } => {}
        }
    }

    fn fits(&mut self, t: f64, cost: f64) -> bool {
        self.expire(t);
        match self {
            Limit::Sliding { limit, used, .. } | Limit::Calendar { limit, used, .. } => *used + cost <= *limit,
            Limit::Bucket { level, .. } => *level >= cost - 1e-9,
            Limit::Cap { limit, used } => used < limit,
        }
    }

    fn take(&mut self, t: f64, cost: f64) {
        match self {
            Limit::Sliding { log, used, .. } => {
                log.push_back((t, cost));
                *used += cost;
            }
            Limit::Calendar { used, .. } => *used += cost,
            Limit::Bucket { level, .. } => *level -= cost,
            Limit::Cap { used, .. } => *used += 1,
        }
    }

    fn next_room(&mut self, t: f64, cost: f64) -> f64 {
        if self.fits(t, cost) {
            return t;
        }
        match self {
            Limit::Sliding { limit, window, log, used } => {
                let mut missing = *used + cost - *limit;
                for (at, amount) in log {
                    missing -= *amount;
                    if missing <= 0.0 {
                        return *at + *window;
                    }
                }
                t
            }
            Limit::Calendar { window, phase, current, .. } => (*current + 1.0) * *window - *phase,
            Limit::Bucket { rate, level, .. } => t + (cost - *level) / *rate + 1e-6,
            Limit::Cap { .. } => NEVER,
        }
    }

    fn scale(&mut self, factor: f64) {
        match self {
            Limit::Sliding { limit, .. } | Limit::Calendar { limit, .. } => *limit *= factor,
            Limit::Bucket { rate, .. } => *rate *= factor,
            Limit::Cap { limit, .. } => *limit = (*limit as f64 * factor) as u64,
        }
    }
}

/// How long an answer takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Latency {
    Fixed(f64),
    /// Log-normal around 0.8 s, between 0.05 s and 6 s.
    Slow,
}

/// What a refusal says beyond its status.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Says {
    Nothing,
    /// In whole seconds.
    RetryAfter,
    /// The first limit and its window.
    Limit,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) limits: Vec<Limit>,
    pub(crate) latency: Latency,
    /// Requests that are served at once; the others wait.
    pub(crate) workers: Option<usize>,
    pub(crate) says: Says,
    /// Refused requests count as well.
    pub(crate) counts_refused: bool,
    /// The limits count tokens, not requests.
    pub(crate) counts_tokens: bool,
    /// When the limits are multiplied, and by how much.
    pub(crate) changes: VecDeque<(f64, f64)>,
    /// When another client sends a request.
    pub(crate) others: VecDeque<f64>,
    pub(crate) outage: Option<(f64, f64)>,
    /// When each worker is free.
    pub(crate) free: Vec<f64>,
}

pub(crate) enum Answer {
    Served { at: f64 },
    Refused { retry_after: Option<f64>, window: Option<(u64, f64)> },
    Failed,
}

impl Server {
    pub(crate) fn new(limits: impl IntoIterator<Item = Limit>) -> Server {
        Server {
            limits: limits.into_iter().collect(),
            latency: Latency::Fixed(0.05),
            workers: None,
            says: Says::Nothing,
            counts_refused: false,
            counts_tokens: false,
            changes: VecDeque::new(),
            others: VecDeque::new(),
            outage: None,
            free: Vec::new(),
        }
    }

    fn cost(&self, tokens: u64) -> f64 {
        if self.counts_tokens { tokens as f64 } else { 1.0 }
    }

    fn advance(&mut self, t: f64) {
        while let Some((_, factor)) = self.changes.front().copied().filter(|(at, _)| *at <= t) {
            self.changes.pop_front();
            self.limits.iter_mut().for_each(|limit| limit.scale(factor));
        }
        while let Some(at) = self.others.front().copied().filter(|at| *at <= t) {
            self.others.pop_front();
            if self.limits.iter_mut().all(|limit| limit.fits(at, 1.0)) {
                self.limits.iter_mut().for_each(|limit| limit.take(at, 1.0));
            }
        }
    }

    fn is_down(&self, t: f64) -> bool {
        self.outage.is_some_and(|(from, to)| from <= t && t < to)
    }

    pub(crate) fn has_room(&mut self, t: f64, tokens: u64) -> bool {
        self.advance(t);
        let cost = self.cost(tokens);
        !self.is_down(t) && self.limits.iter_mut().all(|limit| limit.fits(t, cost))
    }

    /// When a request could be sent, for a client that knows everything.
    pub(crate) fn next_room(&mut self, t: f64, tokens: u64) -> f64 {
        self.advance(t);
        if let Some((_, to)) = self.outage.filter(|_| self.is_down(t)) {
            return to;
        }
        let cost = self.cost(tokens);
        self.limits.iter_mut().map(|limit| limit.next_room(t, cost)).fold(t, f64::max)
    }

    pub(crate) fn arrive(&mut self, t: f64, tokens: u64, random: &mut Random) -> Answer {
        self.advance(t);
        if self.is_down(t) {
            return Answer::Failed;
        }
        let cost = self.cost(tokens);
        if !self.limits.iter_mut().all(|limit| limit.fits(t, cost)) {
            let answer = self.refuse(t, tokens);
            if self.counts_refused {
                self.limits.iter_mut().for_each(|limit| limit.take(t, cost));
            }
            return answer;
        }
        self.limits.iter_mut().for_each(|limit| limit.take(t, cost));
        let takes = match self.latency {
            Latency::Fixed(seconds) => seconds,
            Latency::Slow => random.log_normal(0.8, 0.8).clamp(0.05, 6.0),
        };
        let at = self.begin(t) + takes;
        if self.workers.is_some() {
            self.free.push(at);
        }
        Answer::Served { at }
    }

    fn refuse(&mut self, t: f64, tokens: u64) -> Answer {
        let (mut retry_after, mut window) = (None, None);
        match (self.says, &self.limits[0]) {
            (Says::RetryAfter, _) => {
                let room = self.next_room(t, tokens);
                retry_after = Some(if room < NEVER { (room - t).ceil() } else { 1.0 });
            }
            (Says::Limit, Limit::Sliding { limit, window: length, .. }) => window = Some((*limit as u64, *length)),
            _ => {}
        }
        Answer::Refused { retry_after, window }
    }

    /// When a worker begins with a request that arrives at `t`.
    fn begin(&mut self, t: f64) -> f64 {
        match self.workers {
            Some(workers) if self.free.len() >= workers => {
                let next = (0..workers).min_by(|a, b| self.free[*a].total_cmp(&self.free[*b])).unwrap();
                self.free.swap_remove(next).max(t)
            }
            _ => t,
        }
    }

    /// The answer to a request has left.
    pub(crate) fn end(&mut self) {
        for limit in &mut self.limits {
            if let Limit::Cap { used, .. } = limit {
                *used -= 1;
            }
        }
    }
}
