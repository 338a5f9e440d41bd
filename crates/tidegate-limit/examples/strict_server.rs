//! A strict server on loopback, in real time, and clients that each keep to its limit in their own way: tidegate's gate,
//! and three that poll: by a share of the time that is left, with a back-off of 0.1 to 2 s, and every millisecond. Prints
//! how many requests of each were refused, and how much of the quota was used.
//!
//! The server counts requests as they arrive, and serves at most a fixed number in any window. Each request takes a random
//! time to arrive, up to some milliseconds.
//!
//! `cargo run --release -p tidegate-limit --example strict_server`

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_limit::{Cost, Dimension, Gate, Limit, Refusal, ThreadTimer, Window};

/// What the server allows, and how long the race takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Race {
    /// Requests in any window.
    pub(crate) amount: u64,
    /// Its length.
    pub(crate) window: Duration,
    /// How many windows the race lasts.
    pub(crate) windows: u32,
    /// Connections of each client.
    pub(crate) workers: usize,
    /// The longest a request is on the wire.
    pub(crate) wire_max: Duration,
}

/// How a client did.
#[derive(Clone, Debug)]
pub(crate) struct Score {
    /// Its name.
    pub(crate) client: &'static str,
    /// Requests that the server served.
    pub(crate) served: u64,
    /// Requests that it refused.
    pub(crate) refused: u64,
    /// What was served of what could have been.
    pub(crate) share: f64,
}

const SERVED: u8 = b's';
const REFUSED: u8 = b'r';

/// Serves each connection in a thread of its own until it is closed.
fn serve(race: Race) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let arrivals = Arc::new(Mutex::new(VecDeque::new()));
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (Ok(stream), arrivals) = (stream, Arc::clone(&arrivals)) else { continue };
            thread::spawn(move || answer(stream, race, &arrivals, number as u64));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, race: Race, arrivals: &Mutex<VecDeque<Instant>>, seed: u64) {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut request = [0];
    while stream.read_exact(&mut request).is_ok() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The wire.
        thread::sleep(race.wire_max.mul_f64((random % 1_000) as f64 / 1_000.0));
        let verdict = {
            let mut arrivals = arrivals.lock().unwrap();
            let now = Instant::now();
            while arrivals.front().is_some_and(|first| now - *first >= race.window) {
                arrivals.pop_front();
            }
            if (arrivals.len() as u64) < race.amount {
                arrivals.push_back(now);
                SERVED
            } else {
                REFUSED
            }
        };
        if stream.write_all(&[verdict]).is_err() {
            return;
        }
    }
}

/// One request; true if it was served.
fn request(stream: &mut TcpStream) -> io::Result<bool> {
    stream.write_all(b"?")?;
    let mut verdict = [0];
    stream.read_exact(&mut verdict)?;
    Ok(verdict == [SERVED])
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// `workers` threads, each with a connection, until the time is up.
fn race(
    client: &'static str,
    race: Race,
    send: impl Fn(&mut TcpStream, Instant) -> io::Result<Option<bool>> + Sync,
) -> io::Result<Score> {
    let address = serve(race)?;
    let ends = Instant::now() + race.window * race.windows;
    let send = &send;
    let counts = thread::scope(|scope| {
        let workers: Vec<_> = (0..race.workers)
            .map(|_| {
                scope.spawn(move || -> io::Result<(u64, u64)> {
                    let mut stream = TcpStream::connect(address)?;
                    stream.set_nodelay(true)?;
                    let (mut served, mut refused) = (0, 0);
                    while Instant::now() < ends {
                        match send(&mut stream, ends)? {
                            Some(true) => served += 1,
                            Some(false) => refused += 1,
                            None => break,
                        }
                    }
                    Ok((served, refused))
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("workers do not panic")).collect::<io::Result<Vec<_>>>()
    })?;
    let (served, refused) = counts.into_iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    let share = served as f64 / (race.amount * u64::from(race.windows)) as f64;
    Ok(Score { client, served, refused, share })
}

fn with_gate(setting: Race) -> io::Result<Score> {
    let limit = Limit::rate("requests", Dimension::REQUESTS, setting.amount, Window::strict(setting.window));
    let gate = Gate::builder()
        .limit(limit)
        .limit(Limit::found())
        .timer(ThreadTimer::default())
        .build()
        .expect("a limit above zero");
    race("tidegate", setting, |stream, ends| {
        let mut lease = block_on(gate.enter(gate.unscoped(), Cost::request())).expect("a cost within the limit");
        if Instant::now() >= ends {
            return Ok(None);
        }
        lease.sent();
        let served = request(stream)?;
        lease.answered();
        if served {
            lease.served();
        } else {
            lease.refused(Refusal::default());
        }
        Ok(Some(served))
    })
}

/// Sliding window by instants, asked again and again: what pollers have in common.
struct Polled {
    sent: Mutex<VecDeque<Instant>>,
    setting: Race,
}

impl Polled {
    fn new(setting: Race) -> Polled {
        Polled { sent: Mutex::default(), setting }
    }

    /// Takes a place, or says when the oldest is free and how many there are.
    fn take(&self) -> Result<(), (Duration, u32)> {
        let mut sent = self.sent.lock().unwrap();
        let now = Instant::now();
        sent.retain(|at| now - *at < self.setting.window);
        if (sent.len() as u64) < self.setting.amount {
            sent.push_back(now);
            return Ok(());
        }
        Err((self.setting.window - (now - sent[0]), sent.len() as u32))
    }
}

/// Waits for a share of the time until the oldest is free, longer after each poll, at most 2 s.
fn with_back_off(setting: Race) -> io::Result<Score> {
    const WAIT_MAX: f64 = 2.0;
    let polled = Polled::new(setting);
    race("polling, back-off", setting, |stream, ends| {
        let mut looks = 0;
        while let Err((free_in, count)) = polled.take() {
            let mut wait = WAIT_MAX.min(free_in.as_secs_f64() / f64::from(count));
            if looks > 0 {
                wait = WAIT_MAX.min(wait * 1.1_f64.powi(looks.min(10)));
            }
            thread::sleep(Duration::from_secs_f64(wait));
            looks += 1;
            if Instant::now() >= ends {
                return Ok(None);
            }
        }
        request(stream).map(Some)
    })
}

/// Looks again after 0.1 s, then after longer and longer, up to 2 s.
fn with_seconds(setting: Race) -> io::Result<Score> {
    let polled = Polled::new(setting);
    race("polling, 0.1-2 s", setting, |stream, ends| {
        let mut wait = Duration::from_millis(100);
        while polled.take().is_err() {
            thread::sleep(wait.min(ends.saturating_duration_since(Instant::now())));
            wait = wait.mul_f64(1.5).min(Duration::from_secs(2));
            if Instant::now() >= ends {
                return Ok(None);
            }
        }
        request(stream).map(Some)
    })
}

fn with_a_millisecond(setting: Race) -> io::Result<Score> {
    let polled = Polled::new(setting);
    race("polling, 1 ms", setting, |stream, ends| {
        while polled.take().is_err() {
            thread::sleep(Duration::from_millis(1));
            if Instant::now() >= ends {
                return Ok(None);
            }
        }
        request(stream).map(Some)
    })
}

/// All clients, each against a server of its own, one after the other.
pub(crate) fn run(setting: Race) -> io::Result<Vec<Score>> {
    [with_gate, with_back_off, with_seconds, with_a_millisecond].into_iter().map(|client| client(setting)).collect()
}

fn main() -> io::Result<()> {
    let setting = Race {
        amount: 100,
        window: Duration::from_secs(2),
        windows: 5,
        workers: 16,
        wire_max: Duration::from_millis(8),
    };
    println!("{setting:?}\n");
    println!("{:<18} {:>7} {:>8} {:>7}", "client", "served", "refused", "share");
    for score in run(setting)? {
        println!("{:<18} {:>7} {:>8} {:>6.1}%", score.client, score.served, score.refused, score.share * 100.0);
    }
    Ok(())
}
