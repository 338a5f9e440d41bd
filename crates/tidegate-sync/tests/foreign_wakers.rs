//! Wakers are foreign code: they may call back into the primitive that clones, wakes or drops them.

mod support;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, RawWaker, RawWakerVTable, Wake, Waker};

use support::Hand;
use tidegate_sync::{Event, Queue, Semaphore};

/// Runs on each clone, wake and drop of a [`meddling`] waker. The tests below hang if a lock is held meanwhile.
type Meddle = Arc<dyn Fn() + Send + Sync>;

fn meddling(meddle: Meddle) -> Waker {
    fn raw(meddle: Meddle) -> RawWaker {
        RawWaker::new(Box::into_raw(Box::new(meddle)).cast(), &VTABLE)
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            // SAFETY: `data` is the box made by `raw`, borrowed.
            let meddle = unsafe { &*data.cast::<Meddle>() };
            meddle();
            raw(Arc::clone(meddle))
        },
        |data| {
            // SAFETY: as above; the caller passes on its ownership.
            let meddle = unsafe { Box::from_raw(data.cast_mut().cast::<Meddle>()) };
            meddle();
        },
        // SAFETY: as above, borrowed.
        |data| unsafe { &*data.cast::<Meddle>() }(),
        |data| {
            // SAFETY: as above; the caller passes on its ownership.
            let meddle = unsafe { Box::from_raw(data.cast_mut().cast::<Meddle>()) };
            meddle();
        },
    );
    // SAFETY: the vtable keeps the contract: each raw waker owns its box.
    unsafe { Waker::from_raw(raw(meddle)) }
}

#[test]
fn a_semaphore_may_be_used_from_within_its_wakers() {
    let semaphore = Arc::new(Semaphore::new(0));
    let inner = Arc::clone(&semaphore);
    let meddle: Meddle = Arc::new(move || {
        inner.release(1);
        let _ = inner.try_acquire().map(tidegate_sync::Permit::forget);
        assert!(!format!("{inner:?}").is_empty());
        inner.stats();
    });
    let (one, two) = (meddling(Arc::clone(&meddle)), meddling(meddle));
    {
        let mut first = pin!(semaphore.acquire());
        let mut second = pin!(semaphore.acquire_many(1000));
        let _ = first.as_mut().poll(&mut Context::from_waker(&one));
        let _ = second.as_mut().poll(&mut Context::from_waker(&one));
        // Another waker: the old one is replaced.
        let _ = second.as_mut().poll(&mut Context::from_waker(&two));
        semaphore.release(2);
        semaphore.close();
    }
    assert_eq!(semaphore.waiters(), 0);
}

#[test]
fn a_queue_may_be_used_from_within_its_wakers() {
    let queue = Arc::new(Queue::bounded(2));
    let inner = Arc::clone(&queue);
    let meddle: Meddle = Arc::new(move || {
        let _ = inner.try_push(1);
        let _ = inner.try_recv();
        assert!(!format!("{inner:?}").is_empty());
        inner.stats();
    });
    let (one, two) = (meddling(Arc::clone(&meddle)), meddling(meddle));
    {
        let mut receive = pin!(queue.recv());
        let _ = receive.as_mut().poll(&mut Context::from_waker(&one));
        let mut another = pin!(queue.recv_all());
        let _ = another.as_mut().poll(&mut Context::from_waker(&one));
        let _ = another.as_mut().poll(&mut Context::from_waker(&two));
        let mut push = pin!(queue.push(1));
        let _ = push.as_mut().poll(&mut Context::from_waker(&two));
        queue.close();
    }
    assert_eq!(queue.stats().waiting, 0);
}

#[test]
fn an_event_may_be_used_from_within_its_wakers() {
    let event = Arc::new(Event::new());
    let inner = Arc::clone(&event);
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let meddle: Meddle = Arc::new(move || {
        counter.fetch_add(1, SeqCst);
        inner.notify_all();
        inner.clear();
        inner.stats();
    });
    let waker = meddling(meddle);
    let mut wait = pin!(event.wait());
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(calls.swap(0, SeqCst), 1, "the waker is cloned once");
    event.set();
    assert_eq!(calls.load(SeqCst), 1, "the waker is woken once");
    assert!(!event.is_set(), "the waker cleared the event");
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready(), "a wait that was ended stays ended");
    assert_eq!((event.stats().total, event.stats().waiting), (1, 0));
}

/// A waker that panics the first time.
struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        if self.0.fetch_add(1, SeqCst) == 0 {
            std::panic::resume_unwind(Box::new("the waker's own fault"));
        }
    }
}

#[test]
fn a_waker_that_panics_does_not_cost_the_others_their_wake_up() {
    let semaphore = Semaphore::new(0);
    let mut first = Box::pin(semaphore.acquire());
    let panics = Waker::from(Arc::new(Panics(AtomicUsize::new(0))));
    assert!(first.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
    let mut others: Vec<_> = (0..50).map(|_| Hand::waiting(semaphore.acquire())).collect();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| semaphore.release(51)));
    assert!(caught.is_err());
    assert!(others.iter().all(|hand| hand.wakes() == 1));
    assert!(others.iter_mut().all(|hand| hand.poll().is_some()));
}

#[test]
fn wakers_are_called_in_the_order_of_the_line() {
    struct Records(usize, Arc<Mutex<Vec<usize>>>);
    impl Wake for Records {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }
    let semaphore = Semaphore::new(0);
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(semaphore.acquire())).collect();
    for (n, acquire) in waiting.iter_mut().enumerate() {
        let waker = Waker::from(Arc::new(Records(n, Arc::clone(&order))));
        assert!(acquire.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    semaphore.release(50);
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
}

#[test]
fn no_push_overtakes_the_line_while_its_producers_are_being_woken() {
    const ROOM: usize = 40;
    let queue = Arc::new(Queue::bounded(ROOM));
    for _ in 0..ROOM {
        queue.try_push(0).unwrap();
    }
    // Each waker tries to push once more, before those behind its task.
    let inner = Arc::clone(&queue);
    let slips_in = meddling(Arc::new(move || _ = inner.try_push(99)));
    let mut waiting: Vec<_> = (1..=ROOM).map(|n| Box::pin(queue.push(n))).collect();
    for push in &mut waiting {
        assert!(push.as_mut().poll(&mut Context::from_waker(&slips_in)).is_pending());
    }
    let all = |queue: &Queue<usize>| futures_lite::future::block_on(queue.recv_all()).unwrap();
    assert_eq!(all(&queue).len(), ROOM);
    assert_eq!(all(&queue), (1..=ROOM).collect::<Vec<_>>());
}

#[test]
fn skipping_ahead_is_for_when_the_head_does_not_fit_and_not_while_a_crowd_is_being_woken() {
    const CROWD: usize = 20;
    let semaphore = Arc::new(Semaphore::new(0).with_skip_ahead(CROWD));
    let passed = Arc::new(Mutex::new(Vec::new()));
    let (inner, taken) = (Arc::clone(&semaphore), Arc::clone(&passed));
    let mut first = Box::pin(semaphore.acquire());
    let slips_in = meddling(Arc::new(move || {
        let mut late = Hand::new(inner.acquire_owned());
        taken.lock().unwrap().extend(late.poll());
    }));
    assert!(first.as_mut().poll(&mut Context::from_waker(&slips_in)).is_pending());
    let others: Vec<_> = (1..CROWD).map(|_| Hand::waiting(semaphore.acquire())).collect();
    semaphore.release(CROWD);
    assert!(others.iter().all(|hand| hand.wakes() == 1), "there was one permit for each of them");
    assert_eq!(passed.lock().unwrap().len(), 0);
}
