//! The loop's inbox and its sleep: no wake-up is lost between the last check and the sleep, wherever the loop sleeps; each
//! sleep is rung for at most once; and each message is either delivered, handed back, or left for the thread that closes
//! the inbox.

/// Stands in for `tidegate-loop/src/mailbox/shim.rs`.
mod shim {
    use std::time::Duration;

    use loom::sync::Condvar;
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::Ordering;

    /// Loom takes `SeqCst` accesses for `AcqRel` ones and would find faults that are none. A sequentially consistent
    /// access is at least a full fence before an ordinary one (that is how several machines implement it), and
    /// fences loom knows. Relaxed accesses stay what they are.
    pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        pub(crate) fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        fn fence(order: Ordering) {
            if order == Ordering::SeqCst {
                loom::sync::atomic::fence(Ordering::SeqCst);
            }
        }

        pub(crate) fn load(&self, order: Ordering) -> bool {
            Self::fence(order);
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: bool, order: Ordering) {
            Self::fence(order);
            self.0.store(value, order);
        }
    }

    /// A word with the queue that Linux keeps for those who sleep on it.
    pub(crate) struct AtomicU32 {
        word: loom::sync::atomic::AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl AtomicU32 {
        pub(crate) fn new(value: u32) -> Self {
            let word = loom::sync::atomic::AtomicU32::new(value);
            Self { word, queue: Mutex::new(()), woken: Condvar::new() }
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            AtomicBool::fence(order);
            self.word.load(order)
        }

        pub(crate) fn store(&self, value: u32, order: Ordering) {
            AtomicBool::fence(order);
            self.word.store(value, order);
        }

        /// A swap that finds what it brings changes nothing. Loom keeps its write all the same, and lets others read
        /// it after writes that came later; so here it leaves no write behind.
        pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
            AtomicBool::fence(order);
            let mut found = self.word.load(Ordering::SeqCst);
            while found != value {
                match self.word.compare_exchange(found, value, order, Ordering::SeqCst) {
                    Ok(before) => return before,
                    Err(other) => found = other,
                }
            }
            found
        }
    }

    /// The kernel looks at the word under the lock that a waker takes after it has changed it.
    pub(crate) fn wait_while(word: &AtomicU32, value: u32, _timeout: Option<Duration>) {
        let queue = word.queue.lock().unwrap();
        if word.word.load(Ordering::Relaxed) == value {
            drop(word.woken.wait(queue).unwrap());
        }
    }

    pub(crate) fn wake_one(word: &AtomicU32) {
        let _queue = word.queue.lock().unwrap();
        word.woken.notify_one();
    }
}

#[path = "../../tidegate-loop/src/mailbox/inbox.rs"]
mod inbox;

mod support;

use std::sync::Arc;

use inbox::{Bed, Inbox, Posted};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use support::check;

const OWNER: u32 = 1;

/// The eventfd: every ring is an edge, and it is never read.
struct Bell {
    rings: Mutex<u32>,
    rung: Condvar,
}

/// A loop's mailbox as other threads see it.
struct Mailbox {
    inbox: Inbox<u32>,
    bell: Bell,
}

impl Mailbox {
    fn new() -> Arc<Mailbox> {
        let bell = Bell { rings: Mutex::new(0), rung: Condvar::new() };
        let mailbox = Mailbox { inbox: Inbox::new(), bell };
        mailbox.inbox.open(OWNER);
        Arc::new(mailbox)
    }

    /// As `Mailbox::post` of the loop; whether it rang.
    fn post(&self, message: u32) -> Result<bool, u32> {
        let ring = self.inbox.post(Some(OWNER), message)? == Posted::Ring;
        if ring {
            self.ring();
        }
        Ok(ring)
    }

    fn ring(&self) {
        *self.bell.rings.lock().unwrap() += 1;
        self.bell.rung.notify_one();
    }

    fn poster(self: &Arc<Self>, messages: impl IntoIterator<Item = u32> + Send + 'static) -> thread::JoinHandle<u32> {
        let mailbox = self.clone();
        thread::spawn(move || messages.into_iter().map(|message| u32::from(mailbox.post(message).unwrap())).sum())
    }

    /// At the selector it sleeps until the bell has rung more often than `heard` counts.
    fn sleep_once(&self, bed: Bed, heard: &mut u32) {
        let sleeps = self.inbox.before_sleep(bed);
        if bed == Bed::Inbox {
            if sleeps {
                self.inbox.sleep(None);
            }
        } else {
            let mut rings = self.bell.rings.lock().unwrap();
            if sleeps {
                while *rings == *heard {
                    rings = self.bell.rung.wait(rings).unwrap();
                }
            }
            *heard = *rings;
        }
        self.inbox.after_sleep();
    }

    fn receive(&self, count: usize) -> (Vec<u32>, u32) {
        self.receive_from(|_| Bed::Selector, count)
    }

    /// The loop's side, as `tick` and `sleep` do it: until that many messages have come. How often it was about to
    /// sleep.
    fn receive_from(&self, bed: impl Fn(u32) -> Bed, count: usize) -> (Vec<u32>, u32) {
        let (mut messages, mut heard, mut attempts) = (Vec::new(), 0, 0);
        loop {
            if self.inbox.is_posted() {
                self.inbox.take(&mut messages);
            }
            if messages.len() >= count {
                return (messages, attempts);
            }
            attempts += 1;
            // Nothing else would ever wake it: a lost wake-up is a deadlock, which loom reports.
            self.sleep_once(bed(attempts), &mut heard);
        }
    }
}

#[test]
fn no_wake_up_is_lost_between_the_look_and_the_sleep() {
    for bed in [Bed::Selector, Bed::Inbox] {
        check(move || {
            let mailbox = Mailbox::new();
            let poster = mailbox.poster([7]);
            assert_eq!(mailbox.receive_from(|_| bed, 1).0, [7]);
            poster.join().unwrap();
        });
    }
}

#[test]
fn two_posters_are_both_heard_and_ring_once_a_sleep_at_most() {
    for bed in [Bed::Selector, Bed::Inbox] {
        check(move || {
            let mailbox = Mailbox::new();
            let posters = [mailbox.poster([1]), mailbox.poster([2])];
            let (mut messages, attempts) = mailbox.receive_from(|_| bed, 2);
            messages.sort_unstable();
            assert_eq!(messages, [1, 2]);
            let rings: u32 = posters.map(|poster| poster.join().unwrap()).iter().sum();
            assert!(rings <= attempts, "{rings} rings for {attempts} times it meant to sleep");
        });
    }
}

fn now_here_now_there(attempt: u32) -> Bed {
    if attempt % 2 == 1 { Bed::Inbox } else { Bed::Selector }
}

/// A thread that has to ring may be late and find the loop asleep in the other place. The loop is woken there, or need not
/// be woken.
#[test]
fn no_wake_up_is_lost_when_the_loop_sleeps_now_here_now_there() {
    check(|| {
        let mailbox = Mailbox::new();
        let poster = mailbox.poster([1, 2]);
        assert_eq!(mailbox.receive_from(now_here_now_there, 2).0, [1, 2]);
        poster.join().unwrap();
    });
    check(|| {
        let mailbox = Mailbox::new();
        let posters = [mailbox.poster([1]), mailbox.poster([2])];
        let mut messages = mailbox.receive_from(now_here_now_there, 2).0;
        messages.sort_unstable();
        assert_eq!(messages, [1, 2]);
        for poster in posters {
            poster.join().unwrap();
        }
    });
}

#[test]
fn a_sleep_is_rung_for_exactly_once() {
    check(|| {
        let mailbox = Mailbox::new();
        assert!(mailbox.inbox.before_sleep(Bed::Selector));
        let posters = [mailbox.poster([1]), mailbox.poster([2])];
        let rings: u32 = posters.map(|poster| poster.join().unwrap()).iter().sum();
        assert_eq!(rings, 1);
        mailbox.inbox.after_sleep();
        assert!(mailbox.inbox.is_posted());
        assert!(!mailbox.inbox.before_sleep(Bed::Selector), "what was posted keeps it awake");
    });
}

/// A timer or a descriptor ends the sleep just when another thread posts: the message is found before the next sleep, or
/// rung for.
#[test]
fn a_post_is_not_lost_when_something_else_ends_the_sleep() {
    check(|| {
        let mailbox = Mailbox::new();
        let poster = mailbox.poster([7]);
        mailbox.inbox.before_sleep(Bed::Selector);
        mailbox.inbox.after_sleep();
        assert_eq!(mailbox.receive(1).0, [7]);
        poster.join().unwrap();
    });
}

/// What a signal handler does: a flag of its own, then the nudge. The loop looks at the flag when it was nudged.
#[test]
fn a_nudge_without_a_message_is_not_slept_through() {
    check(|| {
        let mailbox = Mailbox::new();
        let signalled = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let (handler_mailbox, flag) = (mailbox.clone(), signalled.clone());
        let handler = thread::spawn(move || {
            flag.store(true, shim::Ordering::SeqCst);
            if handler_mailbox.inbox.nudge() == Posted::Ring {
                handler_mailbox.ring();
            }
        });
        let mut heard = 0;
        loop {
            if mailbox.inbox.is_posted() {
                mailbox.inbox.take(&mut Vec::new());
                if signalled.swap(false, shim::Ordering::SeqCst) {
                    break;
                }
            }
            mailbox.sleep_once(Bed::Selector, &mut heard);
        }
        handler.join().unwrap();
    });
}

#[test]
fn messages_of_one_poster_stay_in_order() {
    check(|| {
        let mailbox = Mailbox::new();
        let poster = mailbox.poster([1, 2]);
        assert_eq!(mailbox.receive(2).0, [1, 2]);
        poster.join().unwrap();
    });
    check(|| {
        let mailbox = Mailbox::new();
        let posters = [mailbox.poster([1, 2]), mailbox.poster([11, 12])];
        let mut messages = Vec::new();
        mailbox.inbox.take(&mut messages);
        for poster in posters {
            poster.join().unwrap();
        }
        mailbox.inbox.take(&mut messages);
        let (first, second): (Vec<u32>, Vec<u32>) = messages.into_iter().partition(|message| *message < 10);
        assert_eq!((first, second), (vec![1, 2], vec![11, 12]));
    });
}

#[test]
fn a_message_posted_while_the_inbox_closes_is_taken_handed_out_or_given_back() {
    check(|| {
        let mailbox = Mailbox::new();
        let posting = mailbox.clone();
        let poster = thread::spawn(move || [1, 2].map(|message| posting.post(message).err()));
        let mut found = Vec::new();
        if mailbox.inbox.is_posted() {
            mailbox.inbox.take(&mut found);
        }
        found.extend(mailbox.inbox.close());
        let refused = poster.join().unwrap();
        found.extend(refused.into_iter().flatten());
        assert_eq!(found, [1, 2], "each exactly once, and a refusal is never followed by an acceptance");
        assert!(mailbox.inbox.close().is_empty(), "nothing slips in after the close");
    });
}

/// Ids come back, and with them mailboxes: what was meant for the loop before must not reach the one after.
#[test]
fn a_message_for_the_owner_before_does_not_reach_the_one_after() {
    check(|| {
        let mailbox = Mailbox::new();
        let posting = mailbox.clone();
        let poster = thread::spawn(move || posting.post(1).err());
        let mut found = mailbox.inbox.close();
        mailbox.inbox.open(OWNER + 1);
        let mut strays = Vec::new();
        mailbox.inbox.take(&mut strays);
        assert!(strays.is_empty(), "{strays:?}");
        found.extend(poster.join().unwrap());
        mailbox.inbox.take(&mut strays);
        assert_eq!((found, strays), (vec![1], vec![]));
    });
}

/// A flag that a former owner's last poster left up costs the next owner one look, and hides nothing.
#[test]
fn the_next_owner_is_woken_whatever_flags_it_inherits() {
    check(|| {
        let mailbox = Mailbox::new();
        let stray = mailbox.clone();
        let late = thread::spawn(move || stray.post(1).is_ok());
        drop(mailbox.inbox.close());
        mailbox.inbox.open(OWNER);
        // Of the same number, so that the late one may be accepted as well: it is a message like any other then.
        let poster = mailbox.poster([2]);
        let mut messages = mailbox.receive(1).0;
        late.join().unwrap();
        poster.join().unwrap();
        mailbox.inbox.take(&mut messages);
        assert!(messages.contains(&2), "{messages:?}");
    });
}
