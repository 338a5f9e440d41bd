//! Adaptive limits against a model of a server, in virtual time: so many workers, a queue, refusals when that is full.
//! The client always has work and keeps as many requests under way as the limit lets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use tidegate_limit::Moment;
use tidegate_limit::adaptive::{Adaptive, Aimd, Gradient, Outcome, Sample};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

const SECOND: u64 = 1_000_000_000;
/// A refusal comes back this soon.
const REFUSAL: u64 = SECOND / 100;

/// Workers that serve from a queue, first come, first served.
struct Server {
    workers: usize,
    /// Beyond this many waiting, requests are refused.
    queue_max: usize,
    service: u64,
    /// Service times vary by this share either way.
    spread: f64,
    busy: usize,
    queue: VecDeque<u64>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Served { sent: u64 },
    Refused { sent: u64 },
}

struct World {
    now: u64,
    server: Server,
    random: Random,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    inflight: usize,
    served: u64,
    refused: u64,
    /// At most this many requests under way, whatever the limit: a client that has little to do.
    demand: usize,
}

impl World {
    fn new(workers: usize, queue_max: usize, service: u64, spread: f64) -> World {
        let server = Server { workers, queue_max, service, spread, busy: 0, queue: VecDeque::new() };
        World {
            now: 0,
            server,
            random: Random(7),
            events: BinaryHeap::new(),
            serial: 0,
            inflight: 0,
            served: 0,
            refused: 0,
            demand: usize::MAX,
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((when, self.serial, event)));
    }

    fn start_waiting(&mut self) {
        while self.server.busy < self.server.workers {
            let Some(sent) = self.server.queue.pop_front() else { break };
            self.server.busy += 1;
            let factor = 1.0 + self.server.spread * (2.0 * self.random.unit() - 1.0);
            self.at(self.now + (self.server.service as f64 * factor) as u64, Event::Served { sent });
        }
    }

    fn send(&mut self) {
        self.inflight += 1;
        if self.server.busy >= self.server.workers && self.server.queue.len() >= self.server.queue_max {
            return self.at(self.now + REFUSAL, Event::Refused { sent: self.now });
        }
        self.server.queue.push_back(self.now);
        self.start_waiting();
    }

    /// Runs until `until`; the limits it saw.
    fn run(&mut self, until: u64, adaptive: &mut dyn Adaptive) -> Vec<usize> {
        let mut limits = Vec::new();
        self.start_waiting();
        while self.now < until {
            while self.inflight < adaptive.limit().min(self.demand) {
                self.send();
            }
            let Reverse((when, _, event)) = self.events.pop().expect("a request is always under way");
            self.now = when;
            let (sent, outcome) = match event {
                Event::Served { sent } => {
                    self.served += 1;
                    self.server.busy -= 1;
                    self.start_waiting();
                    (sent, Outcome::Served)
                }
                Event::Refused { sent } => {
                    self.refused += 1;
                    (sent, Outcome::Overloaded)
                }
            };
            let sample = Sample {
                latency: Duration::from_nanos(self.now - sent),
                inflight: self.inflight,
                outcome,
                now: Moment::ZERO + Duration::from_nanos(self.now),
            };
            self.inflight -= 1;
            limits.push(adaptive.on_sample(&sample));
        }
        limits
    }

    /// Runs for `seconds`; the lowest and the highest limit, the share of what the workers could have served, refusals.
    fn measure(&mut self, seconds: u64, adaptive: &mut dyn Adaptive) -> Measured {
        let (served, refused, from) = (self.served, self.refused, self.now);
        let mut limits = self.run(self.now + seconds * SECOND, adaptive);
        limits.sort_unstable();
        let possible = (self.now - from) as f64 / self.server.service as f64 * self.server.workers as f64;
        Measured {
            lowest: limits[0],
            low: limits[limits.len() / 20],
            high: *limits.last().unwrap(),
            share: (self.served - served) as f64 / possible,
            refused: self.refused - refused,
        }
    }
}

#[derive(Debug)]
struct Measured {
    lowest: usize,
    /// Nineteen of twenty samples saw at least this limit.
    low: usize,
    high: usize,
    share: f64,
    refused: u64,
}

#[test]
fn aimd_swings_between_nine_tenths_of_the_knee_and_one_above_it() {
    for (workers, queue) in [(16, 0), (50, 10), (200, 0)] {
        let knee = workers + queue;
        let mut world = World::new(workers, queue, SECOND / 2, 0.2);
        let mut aimd = Aimd::new(4, 1..=1_000);
        world.run(60 * SECOND, &mut aimd);
        let measured = world.measure(300, &mut aimd);
        let low = (knee as f64 * 0.9).floor() as usize - 1;
        assert!(measured.lowest >= low && measured.high <= knee + 1, "{knee}: {measured:?}");
        assert!(measured.share > 0.94, "{knee}: {measured:?}");
        // One cut a round trip at most, and so one refusal or two.
        assert!(measured.refused <= 2 * 300, "{knee}: {measured:?}");
    }
}

#[test]
fn aimd_follows_a_server_that_shrinks_and_grows() {
    let mut world = World::new(64, 0, SECOND / 2, 0.2);
    let mut aimd = Aimd::new(4, 1..=1_000);
    world.run(60 * SECOND, &mut aimd);
    world.server.workers = 16;
    world.run(75 * SECOND, &mut aimd);
    let measured = world.measure(60, &mut aimd);
    assert!(measured.lowest >= 13 && measured.high <= 17, "{measured:?}");
    world.server.workers = 64;
    // A slot a round trip: 48 round trips of half a second.
    world.run(world.now + 30 * SECOND, &mut aimd);
    let measured = world.measure(60, &mut aimd);
    assert!(measured.lowest >= 56 && measured.high <= 65, "{measured:?}");
}

#[test]
fn aimd_takes_late_answers_for_refusals_if_told_to() {
    // A queue without end: nothing is refused, but with 30 workers the 61st request waits a second.
    let mut world = World::new(30, usize::MAX, SECOND, 0.0);
    let mut aimd = Aimd::new(4, 1..=1_000).with_latency_max(Duration::from_millis(2_100));
    world.run(120 * SECOND, &mut aimd);
    let measured = world.measure(300, &mut aimd);
    assert!(measured.lowest >= 45 && measured.high <= 66, "{measured:?}");
    assert!(measured.share > 0.99, "{measured:?}");
}

/// The knee is the number of workers: one more request waits. The band is the one that `Gradient` documents; the lowest is
/// seen while the unloaded latency is measured.
fn assert_near_the_knee(measured: &Measured, knee: usize) {
    let knee = knee as f64;
    assert!(measured.low as f64 >= knee * 0.9, "knee {knee}: {measured:?}");
    assert!(measured.lowest as f64 >= knee * 0.45, "knee {knee}: {measured:?}");
    assert!(measured.high as f64 <= knee * 1.2 + 2.0 * knee.sqrt(), "knee {knee}: {measured:?}");
    assert!(measured.share > 0.95, "knee {knee}: {measured:?}");
}

#[test]
fn gradient_stops_where_queueing_begins() {
    for (workers, spread) in [(16, 0.0), (50, 0.3), (200, 0.5)] {
        let mut world = World::new(workers, usize::MAX, SECOND / 5, spread);
        let mut gradient = Gradient::new(4, 1..=1_000);
        world.run(60 * SECOND, &mut gradient);
        assert_near_the_knee(&world.measure(300, &mut gradient), workers);
    }
}

#[test]
fn gradient_follows_a_server_that_shrinks_and_grows() {
    let mut world = World::new(64, usize::MAX, SECOND / 5, 0.3);
    let mut gradient = Gradient::new(4, 1..=1_000);
    world.run(60 * SECOND, &mut gradient);
    for workers in [16, 64, 32] {
        world.server.workers = workers;
        world.run(world.now + 40 * SECOND, &mut gradient);
        assert_near_the_knee(&world.measure(200, &mut gradient), workers);
    }
}

#[test]
fn gradient_finds_out_that_the_server_has_become_slower_without_becoming_smaller() {
    let mut world = World::new(50, usize::MAX, SECOND / 5, 0.2);
    let mut gradient = Gradient::new(4, 1..=1_000);
    world.run(60 * SECOND, &mut gradient);
    for service in [SECOND / 2, SECOND / 10] {
        world.server.service = service;
        world.run(world.now + 90 * SECOND, &mut gradient);
        assert_near_the_knee(&world.measure(200, &mut gradient), 50);
    }
}

#[test]
fn gradient_comes_down_from_far_above_the_knee() {
    let mut world = World::new(20, usize::MAX, SECOND / 5, 0.1);
    let mut gradient = Gradient::new(300, 1..=1_000);
    world.run(600 * SECOND, &mut gradient);
    assert_near_the_knee(&world.measure(200, &mut gradient), 20);
}

#[test]
fn gradient_heeds_refusals_as_well() {
    // It is refused before anything waits, so the latency never rises.
    let mut world = World::new(40, 0, SECOND / 5, 0.2);
    let mut gradient = Gradient::new(4, 1..=1_000);
    world.run(60 * SECOND, &mut gradient);
    let measured = world.measure(200, &mut gradient);
    assert!(measured.low >= 28 && measured.high <= 48, "{measured:?}");
    assert!((measured.refused as f64) < 0.1 * world.served as f64, "{measured:?}");
}

#[test]
fn a_limit_nobody_leans_on_does_not_grow() {
    let both: [Box<dyn Adaptive>; 2] = [Box::new(Aimd::new(20, 1..=1_000)), Box::new(Gradient::new(20, 1..=1_000))];
    for mut adaptive in both {
        let mut world = World::new(100, usize::MAX, SECOND / 5, 0.1);
        world.demand = 8;
        world.run(300 * SECOND, &mut *adaptive);
        assert!(adaptive.limit() <= 20, "{adaptive:?}");
    }
}

#[test]
fn no_sequence_of_samples_leaves_the_bounds() {
    let mut random = Random(3);
    for round in 0..200 {
        let (low, high) = (random.next() as usize % 20, random.next() as usize % 300);
        let both: [Box<dyn Adaptive>; 2] = [
            Box::new(Aimd::new(random.next() as usize % 400, low..=high)),
            Box::new(Gradient::new(random.next() as usize % 400, low..=high)),
        ];
        let (low, high) = (low.max(1), high.max(low).max(1));
        for mut adaptive in both {
            for _ in 0..2_000 {
                let latency = match random.next() % 8 {
                    0 => Duration::ZERO,
                    1 => Duration::MAX,
                    2 => Duration::from_nanos(random.next()),
                    _ => Duration::from_millis(random.next() % 1_000),
                };
                let sample = Sample {
                    latency,
                    inflight: random.next() as usize % 1_000,
                    outcome: [Outcome::Served, Outcome::Served, Outcome::Overloaded, Outcome::Unrelated]
                        [random.next() as usize % 4],
                    // Time may stand still, jump, and even go back.
                    now: Moment::from_nanos(random.next() >> (random.next() % 64)),
                };
                let limit = adaptive.on_sample(&sample);
                assert!(
                    (low..=high).contains(&limit),
                    "round {round}: {limit} is outside of {low}..={high}: {adaptive:?}"
                );
            }
        }
    }
}
