//! A run: a queue of requests, at most 200 of them in flight, a wire that takes its time, and a server.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, SystemTime};

use tidegate_limit::{Booking, Cost, Dimension, Found, Limit, Limits, Moment, Refusal, Until, Window};

use crate::random::Random;
use crate::servers::{Answer, NEVER, Server};

const IN_FLIGHT_MAX: usize = 200;
const HORIZON: f64 = 3_000.0;

#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) server: Server,
    pub(crate) requests: usize,
    /// Seconds from the client to the server, and back.
    pub(crate) there: (f64, f64),
    pub(crate) back: (f64, f64),
    /// What is stated to the client: requests per seconds.
    pub(crate) stated: Option<(u64, f64)>,
    pub(crate) remembered: Option<Found>,
    /// Of each request, if the server counts them.
    pub(crate) tokens: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) seconds: f64,
    pub(crate) served: usize,
    pub(crate) refused: usize,
    pub(crate) failed: usize,
    pub(crate) found: Found,
}

/// What the requests ask before they go.
enum Client {
    Gate(Box<Limits>),
    /// Knows the server; its requests need no time to arrive.
    AllKnowing,
}

enum Event {
    Wake,
    Requeue(usize),
    Arrive(usize),
    Leave,
    Answer(usize, Answer),
}

pub(crate) struct Run {
    random: Random,
    server: Server,
    client: Client,
    tokens: Vec<u64>,
    there: (f64, f64),
    back: (f64, f64),
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: Vec<Option<Event>>,
    queue: VecDeque<usize>,
    bookings: Vec<Option<Booking>>,
    in_flight: usize,
    wake_at: f64,
    pub(crate) outcome: Outcome,
    /// When each answer came, and each refusal.
    pub(crate) served_at: Vec<f64>,
    pub(crate) refused_at: Vec<f64>,
    /// When each request was sent.
    pub(crate) sent_at: Vec<f64>,
}

fn moment(t: f64) -> Moment {
    // An hour of head start, as a gate has it: instants before the first request exist.
    Moment::ZERO + Duration::from_secs_f64(3_600.0 + t)
}

impl Setting {
    pub(crate) fn new(server: Server, requests: usize) -> Setting {
        Setting {
            server,
            requests,
            there: (0.010, 0.030),
            back: (0.005, 0.015),
            stated: None,
            remembered: None,
            tokens: Vec::new(),
        }
    }

    pub(crate) fn run(&self, seed: u64) -> Outcome {
        let mut run = self.start(seed);
        run.until(HORIZON);
        run.outcome
    }

    /// How long a client takes that knows everything.
    pub(crate) fn ideal(&self, seed: u64) -> f64 {
        let mut run = self.with(Client::AllKnowing, seed);
        run.until(HORIZON);
        assert_eq!(run.outcome.served, self.requests, "the ideal is not one");
        run.outcome.seconds
    }

    pub(crate) fn start(&self, seed: u64) -> Run {
        let stated = self.stated.map(|(amount, seconds)| {
            let window = Window::strict(Duration::from_secs_f64(seconds));
            Limit::rate("rpm", Dimension::REQUESTS, amount, window)
        });
        let limits = stated.into_iter().chain([Limit::found()]);
        let mut limits = Limits::new(limits, moment(0.0), SystemTime::UNIX_EPOCH).unwrap();
        if let Some(found) = &self.remembered {
            limits.remember(found);
        }
        self.with(Client::Gate(Box::new(limits)), seed)
    }

    fn with(&self, client: Client, seed: u64) -> Run {
        let mut run = Run {
            random: Random::new(seed),
            server: self.server.clone(),
            client,
            tokens: self.tokens.clone(),
            there: self.there,
            back: self.back,
            events: BinaryHeap::new(),
            pending: Vec::new(),
            queue: (0..self.requests).collect(),
            bookings: (0..self.requests).map(|_| None).collect(),
            in_flight: 0,
            wake_at: NEVER,
            outcome: Outcome::default(),
            served_at: Vec::new(),
            refused_at: Vec::new(),
            sent_at: Vec::new(),
        };
        run.pump(0.0);
        run
    }
}

impl Run {
    fn push(&mut self, t: f64, event: Event) {
        self.events.push(Reverse(((t * 1e9).ceil() as u64, self.pending.len() as u64)));
        self.pending.push(Some(event));
    }

    /// Goes on until everything is served, or until this second.
    pub(crate) fn until(&mut self, horizon: f64) {
        while self.outcome.served < self.bookings.len() {
            let Some(Reverse((nanos, _))) = self.events.peek() else { break };
            let t = *nanos as f64 / 1e9;
            if t > horizon {
                self.outcome.seconds = horizon;
                break;
            }
            let Some(Reverse((_, index))) = self.events.pop() else { break };
            let event = self.pending[index as usize].take().expect("happens once");
            self.happen(t, event);
        }
        if let Client::Gate(limits) = &self.client {
            self.outcome.found = limits.found(moment(self.outcome.seconds)).unwrap();
        }
    }

    fn tokens(&self, request: usize) -> u64 {
        self.tokens.get(request).copied().unwrap_or(1)
    }

    fn happen(&mut self, t: f64, event: Event) {
        match event {
            Event::Wake => {
                // Events are kept in whole nanoseconds.
                if t >= self.wake_at - 1e-8 {
                    self.wake_at = NEVER;
                }
            }
            Event::Requeue(request) => self.queue.push_front(request),
            Event::Arrive(request) => return self.arrive(t, request),
            Event::Leave => self.server.end(),
            Event::Answer(request, answer) => self.answer(t, request, answer),
        }
        self.pump(t);
    }

    fn arrive(&mut self, t: f64, request: usize) {
        let tokens = self.tokens(request);
        let answer = self.server.arrive(t, tokens, &mut self.random);
        let back = self.random.uniform(self.back);
        match answer {
            Answer::Served { at } => {
                self.push(at, Event::Leave);
                self.push(at + back, Event::Answer(request, answer));
            }
            _ => self.push(t + back, Event::Answer(request, answer)),
        }
    }

    fn answer(&mut self, t: f64, request: usize, answer: Answer) {
        self.in_flight -= 1;
        let now = moment(t);
        let mut again_after = None;
        let booking = self.bookings[request].take();
        if let (Client::Gate(limits), Some(booking)) = (&mut self.client, booking) {
            match &answer {
                Answer::Served { .. } => limits.served(&booking, now),
                Answer::Failed => {
                    limits.failed(&booking, now);
                    again_after = Some(0.0);
                }
                Answer::Refused { retry_after, window } => {
                    let refusal = Refusal {
                        delay: retry_after.map(Duration::from_secs_f64),
                        window: window.map(|(amount, length)| (amount, Duration::from_secs_f64(length))),
                    };
                    limits.refused(&booking, refusal, now);
                    again_after = Some(retry_after.unwrap_or(0.0));
                }
            }
            limits.release(booking);
        }
        match answer {
            Answer::Served { .. } => {
                self.outcome.served += 1;
                self.served_at.push(t);
            }
            Answer::Refused { .. } => {
                self.outcome.refused += 1;
                self.refused_at.push(t);
            }
            Answer::Failed => self.outcome.failed += 1,
        }
        self.outcome.seconds = t;
        match again_after {
            Some(seconds) if seconds > 0.0 => self.push(t + seconds, Event::Requeue(request)),
            Some(_) => self.queue.push_front(request),
            None => {}
        }
    }

    fn pump(&mut self, t: f64) {
        while self.in_flight < IN_FLIGHT_MAX
            && let Some(&request) = self.queue.front()
        {
            let tokens = self.tokens(request);
            let ready_at = match &mut self.client {
                Client::Gate(limits) => match limits.admit(&Cost::request(), moment(t)) {
                    Ok(booking) => {
                        self.bookings[request] = Some(booking);
                        t
                    }
                    Err(denied) => match denied.until {
                        Until::At(at) => at.since(moment(0.0)).as_secs_f64() + 1e-9,
                        _ => NEVER,
                    },
                },
                Client::AllKnowing if self.server.has_room(t, tokens) => t,
                Client::AllKnowing => {
                    let other = self.server.others.front().map_or(NEVER, |other| other.max(t + 0.001) + 1e-6);
                    self.server.next_room(t, tokens).min(other).max(t + 1e-6)
                }
            };
            if ready_at > t {
                if ready_at < self.wake_at {
                    self.wake_at = ready_at;
                    self.push(ready_at, Event::Wake);
                }
                return;
            }
            self.queue.pop_front();
            self.in_flight += 1;
            self.sent_at.push(t);
            match &self.client {
                Client::AllKnowing => self.arrive(t, request),
                Client::Gate(_) => {
                    let there = self.random.uniform(self.there);
                    self.push(t + there, Event::Arrive(request));
                }
            }
        }
    }
}
