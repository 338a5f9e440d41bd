//! Sleeping.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context as PollContext, Poll, Waker};
use std::time::{Duration, Instant};

use crate::kernel::TimerJob;
use crate::kernel::clock::nanos_of;
use crate::kernel::current;
use crate::kernel::timers::TimerKey;
use crate::mailbox::waker;
use crate::task::cancel;
use crate::task::raw::Waiting;

/// Waits for `duration`, counted from the first poll. Zero only yields, as in asyncio. Exact: the deadline is not
/// rounded to anything.
///
/// # Cancel safety
/// Safe: dropped, its timer is disarmed.
///
/// ```
/// use tidegate_loop::{run, sleep, Duration};
/// run(async { sleep(Duration::from_micros(50)).await }).unwrap();
/// ```
#[inline]
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { state: SleepState::After(duration), _here: PhantomData }
}

/// Waits until `deadline`; if that has passed it only yields.
///
/// # Cancel safety
/// Safe: dropped, its timer is disarmed.
///
/// ```
/// use tidegate_loop::{run, sleep_until, Duration, LoopHandle};
/// run(async {
///     let deadline = LoopHandle::current().time() + Duration::from_micros(50);
///     sleep_until(deadline).await;
///     assert!(LoopHandle::current().time() >= deadline);
/// })
/// .unwrap();
/// ```
#[inline]
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { state: SleepState::At(deadline), _here: PhantomData }
}

/// One enum, not two: the smaller a sleep is, the less there is to move into place.
enum SleepState {
    /// Not polled yet.
    After(Duration),
    At(Instant),
    Armed {
        loop_serial: u32,
        key: TimerKey,
    },
    /// Yielded, for want of anything to wait for.
    Yielded,
    Done,
}

/// A task of a loop's is woken by its name, which costs nothing to keep.
#[inline]
fn wake_job(waker: &Waker) -> TimerJob {
    match waker::name_of(waker) {
        Some(name) => TimerJob::Task(name),
        None => TimerJob::Wake(Box::new(waker.clone())),
    }
}

/// The future of [`sleep`] and [`sleep_until`]. Belongs to the loop it was first polled on.
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    state: SleepState,
    /// Keeps it on its thread: it knows its loop by number only.
    _here: PhantomData<*const ()>,
}

impl Sleep {
    fn start(&mut self, waker: &Waker) -> Poll<()> {
        current::with(|kernel| {
            let kernel = kernel.expect(NO_LOOP);
            let deadline = match self.state {
                SleepState::After(duration) => kernel.now().saturating_add(nanos_of(duration)),
                SleepState::At(deadline) => {
                    let deadline = kernel.clock.nanos(deadline);
                    if deadline <= kernel.now() {
                        self.state = SleepState::Yielded;
                        kernel.give_turn_away(waker);
                        return Poll::Pending;
                    }
                    deadline
                }
                _ => unreachable!("started once"),
            };
            let key = kernel.timers.borrow_mut().arm(deadline, wake_job(waker));
            kernel.watch.timer_armed(kernel, deadline, None);
            self.state = SleepState::Armed { loop_serial: kernel.registration.serial, key };
            if let Some(task) = kernel.current_task() {
                task.wait_for(Waiting::TIMER);
            }
            Poll::Pending
        })
    }

    /// A function of its own, so that what only yields stays small enough to become part of its caller.
    #[inline(never)]
    fn poll_timer(&mut self, waker: &Waker) -> Poll<()> {
        let SleepState::Armed { loop_serial, key } = self.state else { return self.start(waker) };
        let stale = current::on(loop_serial, |kernel| {
            let mut timers = kernel.timers.borrow_mut();
            match timers.job_mut(key) {
                // Gone means that it has run.
                None => None,
                Some(TimerJob::Task(name)) if waker::name_of(waker) == Some(*name) => Some(None),
                Some(TimerJob::Wake(known)) if known.will_wake(waker) => Some(None),
                Some(job) => Some(Some(std::mem::replace(job, wake_job(waker)))),
            }
        });
        let stale = stale.expect("a sleep is polled on its loop's thread, while the loop is there");
        match stale {
            None => {
                self.state = SleepState::Done;
                Poll::Ready(())
            }
            Some(old_job) => {
                drop(old_job);
                cancel::wait_for(Waiting::TIMER);
                Poll::Pending
            }
        }
    }

    #[inline(never)]
    fn disarm(loop_serial: u32, key: TimerKey) {
        let job = current::on(loop_serial, |kernel| kernel.timers.borrow_mut().cancel(key));
        drop(job);
    }
}

const NO_LOOP: &str = "sleep needs a running loop: await it inside run(...)";

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<()> {
        match self.state {
            SleepState::After(Duration::ZERO) => {
                self.state = SleepState::Yielded;
                current::with(|kernel| kernel.expect(NO_LOOP).give_turn_away(cx.waker()));
                Poll::Pending
            }
            SleepState::Yielded | SleepState::Done => {
                self.state = SleepState::Done;
                Poll::Ready(())
            }
            _ => self.poll_timer(cx.waker()),
        }
    }
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        if let SleepState::Armed { loop_serial, key } = self.state {
            Sleep::disarm(loop_serial, key);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").finish_non_exhaustive()
    }
}
