//! Signals: SIGTERM stops warm; SIGINT warm, and cold the second time; SIGHUP recycles; SIGUSR1 shows every task.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use tidegate_loop::signal::{Signal, SignalKind, signal};
use tidegate_loop::{LoopHandle, TaskDump};

use crate::master::{MasterHandle, Stop};

/// Listens for signals on behalf of a worker, for as long as it is not dropped.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Listens from now on, on the running loop. Task dumps go to standard error.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> io::Result<Signals> {
        Signals::listen_and_dump(|dump| eprintln!("{dump}"))
    }

    /// Listens from now on, on the running loop. Task dumps go to `dump`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen_and_dump(dump: impl Fn(&TaskDump) + 'static) -> io::Result<Signals> {
        LoopHandle::current().dump_on_signal(SignalKind::USER1.as_raw(), dump)?;
        Ok(Signals {
            terminate: signal(SignalKind::TERMINATE)?,
            interrupt: signal(SignalKind::INTERRUPT)?,
            hangup: signal(SignalKind::HANGUP)?,
        })
    }

    /// Runs `future` to its end, or until a stop is asked for: then it is dropped, and the signal returned.
    ///
    /// # Errors
    /// The signal that came first.
    ///
    /// # Cancel safety
    /// As `future`; no signal is lost.
    pub async fn interrupt<T>(&mut self, future: impl Future<Output = T>) -> Result<T, SignalKind> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.terminate.poll_recv(cx).is_ready() {
                return Poll::Ready(Err(SignalKind::TERMINATE));
            }
            if self.interrupt.poll_recv(cx).is_ready() {
                return Poll::Ready(Err(SignalKind::INTERRUPT));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Passes them on to a worker, for ever.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn pass_to(&mut self, worker: &MasterHandle) {
        let mut interrupts = 0;
        loop {
            let heard = {
                let mut terminate = pin!(self.terminate.recv());
                let mut interrupt = pin!(self.interrupt.recv());
                let mut hangup = pin!(self.hangup.recv());
                poll_fn(|cx| {
                    if terminate.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(SignalKind::TERMINATE);
                    }
                    if let Poll::Ready(count) = interrupt.as_mut().poll(cx) {
                        interrupts += count;
                        return Poll::Ready(SignalKind::INTERRUPT);
                    }
                    hangup.as_mut().poll(cx).map(|_| SignalKind::HANGUP)
                })
                .await
            };
            match heard {
                SignalKind::HANGUP => {
                    tracing::info!("SIGHUP: recycling");
                    worker.recycle();
                }
                SignalKind::INTERRUPT if interrupts > 1 => {
                    tracing::info!("SIGINT again: stopping at once");
                    worker.stop(Stop::Cold);
                }
                kind => {
                    let name =
                        if kind == SignalKind::INTERRUPT { "SIGINT; once more stops at once" } else { "SIGTERM" };
                    tracing::info!("{name}: stopping, running tasks may finish");
                    worker.stop(Stop::Warm);
                }
            }
        }
    }
}
