//! Deadlines: waiting until an instant at most.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

pub(crate) use tidegate_loop::now;
use tidegate_loop::{Sleep, race, sleep_until};

/// A deadline that moves often and is seldom reached. Moving it later costs nothing: the timer stays as it is, and when it
/// fires, the deadline is checked again.
#[derive(Default)]
pub(crate) struct Watchdog {
    armed: Option<(Instant, Sleep)>,
}

impl Watchdog {
    /// Returns `Ready` once `deadline` has passed. Otherwise the task is woken then, or earlier.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        loop {
            // A timer after the deadline would fire too late; one before it only causes another check.
            if self.armed.as_ref().is_none_or(|(at, _)| *at > deadline) {
                if now() >= deadline {
                    return Poll::Ready(());
                }
                self.armed = Some((deadline, sleep_until(deadline)));
            }
            let Some((at, sleep)) = &mut self.armed else { unreachable!("armed above") };
            let reached = *at;
            if Pin::new(sleep).poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.armed = None;
            if reached >= deadline {
                return Poll::Ready(());
            }
        }
    }

    pub(crate) fn disarm(&mut self) {
        self.armed = None;
    }
}

/// Returns `future`'s output, or `None` if `deadline` passes first. Unlike the loop's time-out, this does not cancel a task,
/// so it works with any future. The caller pins the future: passed by value, it would take its memory twice, as an argument
/// and where it is polled.
pub(crate) async fn until<F: Future>(deadline: Option<Instant>, future: Pin<&mut F>) -> Option<F::Output> {
    match deadline {
        Some(deadline) => race(future, sleep_until(deadline)).await.left(),
        None => Some(future.await),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use tidegate_loop::{EventLoop, sleep};

    use super::*;

    #[test]
    fn deadline_moved_later_while_armed_is_kept_to_the_instant() {
        EventLoop::simulated(1)
            .run_until_complete(async {
                let start = now();
                let mut watchdog = Watchdog::default();
                let mut looks = 0;
                std::future::poll_fn(|cx| {
                    looks += 1;
                    let seconds = if looks == 1 { 1 } else { 10 };
                    watchdog.poll(cx, start + Duration::from_secs(seconds))
                })
                .await;
                assert_eq!(now() - start, Duration::from_secs(10));
                assert_eq!(looks, 3);
            })
            .unwrap();
    }

    #[test]
    fn until_ends_at_the_deadline_or_with_the_future() {
        EventLoop::simulated(1)
            .run_until_complete(async {
                let start = now();
                assert_eq!(until(Some(start + Duration::from_secs(5)), pin!(std::future::pending::<()>())).await, None);
                assert_eq!(now() - start, Duration::from_secs(5));
                let later = now() + Duration::from_secs(5);
                assert_eq!(until(Some(later), pin!(sleep(Duration::from_secs(1)))).await, Some(()));
                assert_eq!(now() - start, Duration::from_secs(6));
            })
            .unwrap();
    }
}
