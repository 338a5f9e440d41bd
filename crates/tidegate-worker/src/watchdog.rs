//! The last resort of a stop: a handler that never comes back to the loop holds up the loop, and with it the stop. So a
//! thread of its own listens too, and ends the process when the stop's time is over.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::process;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use tidegate_loop::signal::{SignalKind, signal};
use tidegate_loop::{EventLoop, Sleep, sleep};
use tidegate_sync::Event;

/// What the process exits with when it had to be ended: as after SIGKILL, because that is what it amounts to.
const EXIT_CODE: i32 = 137;

/// Ends this process if it is still there `limit` after the first SIGTERM or SIGINT. Dropped, it does nothing.
///
/// Tasks that were running then return to their queue when their leases run out, or when the broker sees the connection
/// gone: nothing is lost.
#[derive(Debug)]
pub struct Watchdog {
    called_off: Arc<Event>,
}

impl Watchdog {
    /// Begins to listen, in a thread.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(limit: Duration) -> io::Result<Watchdog> {
        let called_off = Arc::new(Event::new());
        let over = Arc::clone(&called_off);
        thread::Builder::new().name("tidegate-watchdog".to_owned()).spawn(move || match EventLoop::new() {
            Ok(watching) => drop(watching.run_until_complete(watch(limit, over))),
            Err(error) => tracing::warn!(%error, "no watchdog: a handler that never comes back could hold up a stop"),
        })?;
        Ok(Watchdog { called_off })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.called_off.set();
    }
}

async fn watch(limit: Duration, over: Arc<Event>) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::TERMINATE), signal(SignalKind::INTERRUPT)) else {
        return;
    };
    let mut over = pin!(over.wait());
    let mut patience: Option<Sleep> = None;
    let called_off = poll_fn(|cx| {
        if over.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        while patience.is_none() {
            if terminate.poll_recv(cx).is_pending() && interrupt.poll_recv(cx).is_pending() {
                return Poll::Pending;
            }
            patience = Some(sleep(limit));
        }
        patience.as_mut().map_or(Poll::Pending, |patience| Pin::new(patience).poll(cx).map(|()| false))
    });
    if !called_off.await {
        eprintln!(
            "tidegate: the stop took longer than {limit:?}; a handler does not come back. The process ends now, unfinished tasks return to their queues"
        );
        process::exit(EXIT_CODE);
    }
}
