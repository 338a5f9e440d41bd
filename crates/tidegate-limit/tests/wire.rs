//! The margin for the wire: a strict server counts arrivals, and requests take different times to get there. As long as they
//! differ by no more than the margin, the server never sees more than its limit in any window. No clock: time is an argument.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, SystemTime};

use tidegate_limit::{Booking, Cost, Limit, Limits, Moment, Until, Window};

const AMOUNT: u64 = 20;
const REQUESTS: usize = 200;
const WINDOW: Duration = Duration::from_secs(5);
const MARGIN: Duration = Duration::from_millis(120);

struct Random(u64);

impl Random {
    /// A time up to `most`, with its ends more often than chance has it.
    fn up_to(&mut self, most: Duration) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (self.0 >> 33) % 4 {
            0 => Duration::ZERO,
            1 => most,
            _ => most.mul_f64((self.0 >> 40) as f64 / (1_u64 << 24) as f64),
        }
    }
}

/// All requests, as early as the limits admit them. Each is sent up to two margins after it was admitted, and is then on its
/// way for up to `on_the_way`. When they arrive, in order.
fn arrivals(seed: u64, on_the_way: Duration) -> Vec<Moment> {
    let limit = Limit::rpm(AMOUNT).window(Window::strict(WINDOW));
    let mut limits = Limits::new([limit], Moment::ZERO, SystemTime::UNIX_EPOCH).unwrap();
    limits.set_margin(MARGIN);
    let mut random = Random(seed);
    let (mut now, mut admitted) = (Moment::ZERO, Vec::<Option<(Moment, Booking)>>::new());
    let mut to_send = BinaryHeap::new();
    let mut arrived = Vec::new();
    while arrived.len() < REQUESTS {
        let mut next = None;
        while admitted.len() < REQUESTS {
            match limits.admit(&Cost::request(), now) {
                Ok(booking) => {
                    to_send.push(Reverse((now + random.up_to(2 * MARGIN), admitted.len())));
                    admitted.push(Some((now, booking)));
                }
                Err(denied) => {
                    let Until::At(at) = denied.until else { panic!("{denied:?}") };
                    next = Some(at);
                    break;
                }
            }
        }
        match to_send.peek() {
            Some(Reverse((at, number))) if next.is_none_or(|next| *at <= next) => {
                now = *at;
                let (since, mut booking) = admitted[*number].take().unwrap();
                // As a lease does: a quarter of the margin is left to the way from the gate to the wire.
                if now > since + MARGIN / 4 {
                    limits.restamp(&mut booking, now);
                }
                limits.release(booking);
                arrived.push(now + random.up_to(on_the_way));
                to_send.pop();
            }
            _ => now = next.expect("something is to be waited for"),
        }
    }
    arrived.sort_unstable();
    arrived
}

/// The most arrivals in any window, wherever it begins.
fn most_in_a_window(arrivals: &[Moment]) -> usize {
    let within = |from: usize| arrivals[from..].iter().take_while(|at| **at < arrivals[from] + WINDOW).count();
    (0..arrivals.len()).map(within).max().unwrap()
}

#[test]
fn requests_whose_ways_differ_by_no_more_than_the_margin_never_exceed_a_window_where_they_arrive() {
    for seed in 0..300 {
        let most = most_in_a_window(&arrivals(seed, MARGIN - MARGIN / 4));
        assert!(most as u64 <= AMOUNT, "seed {seed}: {most} in a window");
    }
}

#[test]
fn requests_whose_ways_differ_by_more_than_the_margin_do() {
    let exceeds = |seed| most_in_a_window(&arrivals(seed, 3 * MARGIN)) as u64 > AMOUNT;
    assert!((0..300).any(exceeds), "nothing would be noticed");
}
