//! Random schedules against a model simple enough to be believed. A failing seed is printed.

mod support;

use std::collections::VecDeque;

use support::{Hand, Rng};
use tidegate_sync::{Acquire, Permit, Push, PushError, Queue, Recv, Semaphore};

const SEEDS: u64 = if cfg!(miri) { 3 } else { 300 };
const STEPS: usize = 300;

/// Says which seed failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

/// What a semaphore is: some free permits and a line.
#[derive(Default)]
struct Model {
    free: i64,
    held: i64,
    line: VecDeque<(usize, i64)>,
    overtaken: usize,
    skip_ahead: usize,
    granted: Vec<usize>,
}

impl Model {
    fn serve(&mut self) {
        while let Some(at) = self.next() {
            let (id, need) = self.line.remove(at).unwrap();
            self.overtaken = if at == 0 { 0 } else { self.overtaken + 1 };
            self.free -= need;
            self.held += need;
            self.granted.push(id);
        }
    }

    /// The waiter to serve next: the head if it fits, or one of those that may overtake it.
    fn next(&self) -> Option<usize> {
        let window = 1 + self.skip_ahead.saturating_sub(self.overtaken);
        self.line.iter().take(window).position(|(_, need)| *need <= self.free)
    }

    fn leave(&mut self, id: usize) {
        if let Some(at) = self.line.iter().position(|waiter| waiter.0 == id) {
            self.line.remove(at);
            if at == 0 {
                self.overtaken = 0;
            }
        }
        self.serve();
    }

    fn give(&mut self, n: i64) {
        self.held -= n;
        self.free += n;
        self.serve();
    }

    fn forget(&mut self, n: i64) {
        self.held -= n;
        self.free = self.free.max(-self.held);
    }
}

struct Waiter<'a> {
    id: usize,
    need: i64,
    hand: Hand<Acquire<&'a Semaphore>>,
}

#[test]
fn semaphore_does_what_its_model_does_at_every_step() {
    for seed in 0..SEEDS {
        let seed = Seed(seed);
        let mut rng = Rng(seed.0);
        let skip_ahead = rng.below(4) * rng.below(2);
        let start = rng.below(5);
        let semaphore = Semaphore::new(start).with_skip_ahead(skip_ahead);
        let mut model = Model { free: start as i64, skip_ahead, ..Model::default() };
        let mut waiters: Vec<Waiter<'_>> = Vec::new();
        let mut permits: Vec<Permit<&Semaphore>> = Vec::new();
        for id in 0..STEPS {
            step(&mut rng, id, &semaphore, &mut model, &mut waiters, &mut permits);
            assert_eq!(semaphore.available() as i64, model.free.max(0));
            assert_eq!(semaphore.capacity() as i64, model.free + model.held);
            let stats = semaphore.stats();
            assert_eq!((stats.current as i64, stats.waiting), (model.held, model.line.len()));
            for waiter in &waiters {
                assert_eq!(waiter.hand.wakes() == 1, model.granted.contains(&waiter.id));
            }
        }
        let capacity = semaphore.capacity();
        drop((waiters, permits));
        assert_eq!((semaphore.available(), semaphore.waiters()), (capacity, 0));
    }
}

fn step<'a>(
    rng: &mut Rng,
    id: usize,
    semaphore: &'a Semaphore,
    model: &mut Model,
    waiters: &mut Vec<Waiter<'a>>,
    permits: &mut Vec<Permit<&'a Semaphore>>,
) {
    match rng.below(10) {
        0..=2 => {
            let need = 1 + rng.below(4) as i64;
            model.line.push_back((id, need));
            model.serve();
            let mut hand = Hand::new(semaphore.acquire_many(need as usize));
            if let Some(permit) = hand.poll() {
                permits.push(permit.unwrap());
                assert_eq!(model.granted.pop(), Some(id));
            } else {
                waiters.push(Waiter { id, need, hand });
            }
        }
        3 if !waiters.is_empty() => {
            let mut waiter = waiters.swap_remove(rng.below(waiters.len()));
            let polled = if rng.below(2) == 0 { waiter.hand.poll() } else { waiter.hand.poll_as_another_task() };
            let granted = model.granted.iter().position(|granted| *granted == waiter.id);
            assert_eq!(polled.is_some(), granted.is_some());
            if let (Some(permit), Some(at)) = (polled, granted) {
                permits.push(permit.unwrap());
                model.granted.swap_remove(at);
            } else {
                waiters.push(waiter);
            }
        }
        4 if !waiters.is_empty() => {
            let waiter = waiters.swap_remove(rng.below(waiters.len()));
            match model.granted.iter().position(|granted| *granted == waiter.id) {
                Some(at) => {
                    model.granted.swap_remove(at);
                    model.give(waiter.need);
                }
                None => model.leave(waiter.id),
            }
        }
        5 if !permits.is_empty() => {
            let permit = permits.swap_remove(rng.below(permits.len()));
            model.give(permit.count() as i64);
        }
        6 => {
            let n = rng.below(4);
            model.free += n as i64;
            let before = model.granted.len();
            model.serve();
            let receipt = semaphore.release_confirmed(n).unwrap();
            assert_eq!(receipt.woken, model.granted.len() - before);
            assert_eq!(receipt.available as i64, model.free.max(0));
        }
        7 => {
            let n = rng.below(3);
            if semaphore.reduce_permits(n).is_ok() {
                model.free -= n as i64;
            } else {
                assert!((n as i64) > model.free + model.held);
            }
        }
        8 if !permits.is_empty() => {
            let mut permit = permits.swap_remove(rng.below(permits.len()));
            let part = permit.split(rng.below(permit.count() + 1)).unwrap();
            if rng.below(2) == 0 {
                permit.merge(part).unwrap();
            } else {
                model.forget(part.count() as i64);
                part.forget();
            }
            permits.push(permit);
        }
        _ => {
            let need = 1 + rng.below(3);
            let taken = semaphore.try_acquire_many(need);
            assert_eq!(taken.is_ok(), model.line.is_empty() && model.free >= need as i64);
            if let Ok(permit) = taken {
                model.free -= need as i64;
                model.held += need as i64;
                permits.push(permit);
            }
        }
    }
}

#[test]
fn queue_loses_nothing_keeps_the_order_and_ends_every_wait() {
    for seed in 0..SEEDS {
        let seed = Seed(seed);
        let mut rng = Rng(seed.0);
        let queue = Queue::bounded(1 + rng.below(4));
        let mut run = Run {
            queue: &queue,
            pushing: Vec::new(),
            receiving: Vec::new(),
            lost: 0,
            received: Vec::new(),
            batch: VecDeque::new(),
        };
        let mut pushed = 0;
        for item in 0..STEPS {
            pushed += run.step(&mut rng, item);
            run.check(pushed);
        }
        run.finish(pushed);
    }
}

struct Run<'a> {
    queue: &'a Queue<usize>,
    /// With the number of the item, which is the order of the pushes.
    pushing: Vec<(usize, Hand<Push<'a, usize>>)>,
    receiving: Vec<Hand<Recv<'a, usize>>>,
    /// Items dropped with the pushes that brought them.
    lost: usize,
    received: Vec<usize>,
    batch: VecDeque<usize>,
}

impl Run<'_> {
    /// How many items it brought.
    fn step(&mut self, rng: &mut Rng, item: usize) -> usize {
        match rng.below(8) {
            0 | 1 => {
                let mut hand = Hand::new(self.queue.push(item));
                match hand.poll() {
                    Some(pushed) => pushed.unwrap(),
                    None => self.pushing.push((item, hand)),
                }
                return 1;
            }
            2 => return usize::from(self.queue.try_push(item).is_ok()),
            3 => {
                let mut hand = Hand::new(self.queue.recv());
                match hand.poll() {
                    Some(received) => self.received.push(received.unwrap()),
                    None => self.receiving.push(hand),
                }
            }
            4 => self.received.extend(self.queue.try_recv()),
            5 if !self.receiving.is_empty() => {
                let at = rng.below(self.receiving.len());
                if rng.below(2) == 0 {
                    drop(self.receiving.swap_remove(at));
                } else if let Some(received) = self.receiving[at].poll() {
                    self.received.push(received.unwrap());
                    drop(self.receiving.swap_remove(at));
                }
            }
            6 if !self.pushing.is_empty() => {
                let (_, mut hand) = self.pushing.swap_remove(rng.below(self.pushing.len()));
                // Not served yet: its value goes with it.
                self.lost += usize::from(hand.wakes() == 0);
                if rng.below(2) == 0 {
                    assert_eq!(hand.poll().is_some(), hand.wakes() == 1);
                }
            }
            7 if rng.below(4) == 0 => {
                let mut hand = Hand::new(self.queue.recv_all());
                if let Some(received) = hand.poll() {
                    self.received.extend(received.unwrap());
                }
            }
            7 if rng.below(4) == 0 => {
                let polled = Hand::new(self.queue.recv_all_into(&mut self.batch)).poll();
                assert_eq!(polled.map_or(0, Result::unwrap), self.batch.len());
                self.received.extend(self.batch.drain(..));
            }
            _ => {
                let mut hand = Hand::new(self.queue.recv_up_to(rng.below(3)));
                if let Some(received) = hand.poll() {
                    self.received.extend(received.unwrap());
                }
            }
        }
        0
    }

    fn check(&self, pushed: usize) {
        assert!(self.queue.len() <= self.queue.capacity().unwrap());
        let outside = self.pushing.iter().filter(|(_, hand)| hand.wakes() == 0).count();
        let stats = self.queue.stats();
        assert_eq!(stats.total as usize, pushed - self.lost - outside);
        assert_eq!(stats.current, stats.total as usize - self.received.len());
        assert!(stats.peak >= stats.current);
        assert!(self.received.is_sorted(), "out of order: {:?}", self.received);
        let promised = self.receiving.iter().filter(|hand| hand.wakes() == 1).count();
        if promised < self.receiving.len() {
            assert_eq!(self.queue.len(), promised, "a receiver waits beside an item");
        }
        if self.pushing.iter().any(|(_, hand)| hand.wakes() == 0) {
            assert_eq!(self.queue.len(), self.queue.capacity().unwrap(), "a pusher waits beside room");
        }
    }

    fn finish(mut self, pushed: usize) {
        self.queue.close();
        for (item, mut hand) in self.pushing {
            if let Some(Err(PushError(refused))) = hand.poll() {
                assert_eq!(refused, item);
                self.lost += 1;
            }
        }
        drop(self.receiving);
        while let Ok(item) = self.queue.try_recv() {
            self.received.push(item);
        }
        assert!(self.received.is_sorted());
        assert_eq!(self.received.len() + self.lost, pushed);
    }
}
