//! hyper's timer on the loop. hyper requires sleeps that are `Send + Sync`.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tidegate_loop::{LoopHandle, OnLoop, sleep_until};

/// hyper's timer on the loop's clock, virtual or not.
///
/// ```
/// use hyper::rt::Timer;
/// use tidegate_http::rt::LoopTimer;
/// use tidegate_loop::{Duration, EventLoop, LoopHandle};
///
/// EventLoop::simulated(1)
///     .run_until_complete(async {
///         let before = LoopHandle::current().time();
///         LoopTimer.sleep(Duration::from_secs(3600)).await;
///         assert_eq!(LoopTimer.now() - before, Duration::from_secs(3600));
///     })
///     .unwrap();
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct LoopTimer;

impl Timer for LoopTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(LoopSleep { deadline, armed: None })
    }

    fn now(&self) -> Instant {
        tidegate_loop::now()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<LoopSleep>() {
            Some(mut sleep) => {
                sleep.deadline = new_deadline;
                sleep.armed = None;
            }
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

/// A `Send` stand-in for a sleep of the loop, which stays on its loop. Most of hyper's sleeps are dropped unpolled, so the
/// loop's sleep is created at the first poll.
struct LoopSleep {
    deadline: Instant,
    armed: Option<OnLoop<RefCell<tidegate_loop::Sleep>>>,
}

impl Sleep for LoopSleep {}

impl Future for LoopSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        if LoopHandle::current().time() >= deadline {
            return Poll::Ready(());
        }
        let armed = self.armed.get_or_insert_with(|| OnLoop::new(RefCell::new(sleep_until(deadline))));
        armed.with(|sleep| Pin::new(&mut *sleep.borrow_mut()).poll(cx)).expect("a sleep is polled on its own loop")
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tidegate_loop::EventLoop;

    use super::*;

    #[test]
    fn reset_moves_a_sleep_that_runs() {
        EventLoop::simulated(1)
            .run_until_complete(async {
                let start = LoopTimer.now();
                let mut sleep = LoopTimer.sleep(Duration::from_secs(1));
                assert!(poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_pending())).await);
                LoopTimer.reset(&mut sleep, start + Duration::from_secs(10));
                sleep.await;
                assert_eq!(LoopTimer.now() - start, Duration::from_secs(10));
            })
            .unwrap();
    }

    #[test]
    fn sleep_dropped_on_another_thread_leaves_no_timer_behind() {
        let event_loop = EventLoop::new().unwrap();
        event_loop
            .run_until_complete(async {
                let mut sleep = LoopTimer.sleep(Duration::from_secs(3600));
                assert!(poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_pending())).await);
                let handle = LoopHandle::current();
                let live = |handle: &LoopHandle| handle.metrics().timers - handle.metrics().timers_cancelled;
                assert_eq!(live(&handle), 1);
                std::thread::spawn(move || drop(sleep)).join().unwrap();
                while live(&handle) != 0 {
                    tidegate_loop::yield_now().await;
                }
            })
            .unwrap();
    }
}
