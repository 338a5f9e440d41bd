//! How others keep to a limit: by looking again and again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tidegate_http::{Body, Client};
use tidegate_loop::sleep;
use tidegate_sync::Semaphore;

use super::client::{Kind, Work};

/// After a refusal, this share of the window is sat out: 15 s of a minute, as the best-known script does.
const PAUSE: f64 = 0.25;

pub(super) struct Polled {
    client: Client,
    url: String,
    work: Work,
    slots: Semaphore,
    /// Of the bucket that starts full.
    level: Cell<f64>,
    filled: Cell<Instant>,
    paused_until: Cell<Instant>,
    /// Of the sliding window.
    sent: RefCell<VecDeque<Instant>>,
}

impl Polled {
    pub(super) fn new(client: Client, base: &str, work: Work) -> Polled {
        let now = Instant::now();
        Polled {
            client,
            url: format!("{base}/v1/chat/completions"),
            work,
            slots: Semaphore::new(usize::try_from(work.concurrency).unwrap_or(usize::MAX)),
            level: Cell::new(work.amount as f64),
            filled: Cell::new(now),
            paused_until: Cell::new(now),
            sent: RefCell::default(),
        }
    }

    /// Until it is answered.
    pub(super) async fn ask(&self, body: String) {
        loop {
            match self.work.kind {
                Kind::Millisecond => self.wait_a_millisecond_at_a_time().await,
                _ => self.wait_longer_and_longer().await,
            }
            let slot = self.slots.acquire().await.expect("never closed");
            let request = http::Request::post(&self.url).header("content-type", "application/json");
            let request = request.body(Body::from(body.clone())).expect("a request");
            let response = self.client.request(request).await.expect("the server answers");
            let status = response.status();
            let _ = response.into_body().bytes_up_to(1 << 20).await.expect("a whole answer");
            drop(slot);
            if status.as_u16() != 429 {
                return;
            }
            self.paused_until.set(Instant::now() + self.work.window.mul_f64(PAUSE));
        }
    }

    async fn wait_a_millisecond_at_a_time(&self) {
        loop {
            let now = Instant::now();
            let rate = self.work.amount as f64 / self.work.window.as_secs_f64();
            let level = self.level.get() + rate * (now - self.filled.get()).as_secs_f64();
            self.level.set(level.min(self.work.amount as f64));
            self.filled.set(now);
            if self.level.get() >= 1.0 && now >= self.paused_until.get() {
                self.level.set(self.level.get() - 1.0);
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn wait_longer_and_longer(&self) {
        let mut wait = Duration::from_millis(100);
        loop {
            if self.send_within_window(Instant::now()) {
                return;
            }
            sleep(wait).await;
            wait = wait.mul_f64(1.5).min(Duration::from_secs(2));
        }
    }

    fn send_within_window(&self, now: Instant) -> bool {
        let mut sent = self.sent.borrow_mut();
        sent.retain(|at| now - *at < self.work.window);
        let room = (sent.len() as u64) < self.work.amount;
        if room {
            sent.push_back(now);
        }
        room
    }
}
