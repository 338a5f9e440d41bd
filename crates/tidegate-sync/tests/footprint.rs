//! What a waiter costs: bytes, and no allocation.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use tidegate_sync::{Acquire, Event, Push, Queue, Recv, RecvAllInto, Semaphore, Wait};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, with a counter beside it that itself allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_waiter_is_48_bytes_future_and_all() {
    let sizes = [
        ("Acquire, borrowed", size_of::<Acquire<&Semaphore>>()),
        ("Acquire, owned", size_of::<Acquire<Arc<Semaphore>>>()),
        ("Recv", size_of::<Recv<'_, u64>>()),
        ("RecvAllInto", size_of::<RecvAllInto<'_, u64>>()),
        ("Push of 8 bytes", size_of::<Push<'_, u64>>()),
        ("Wait", size_of::<Wait<'_>>()),
    ];
    for (what, bytes) in sizes {
        println!("{what}: {bytes} bytes");
        assert!(bytes <= 80, "{what}: {bytes} bytes");
    }
    assert_eq!(size_of::<Acquire<&Semaphore>>(), 48);
}

#[test]
fn waiting_being_served_and_cancelling_allocate_nothing() {
    let (semaphore, event, queue) = (Semaphore::new(0), Event::new(), Queue::bounded(1));
    queue.try_push(1).unwrap();
    let (mut one, mut two) = (pin!(semaphore.acquire()), pin!(semaphore.acquire_many(2)));
    let mut wait = pin!(event.wait());
    let mut push = pin!(queue.push(2));
    let mut cx = Context::from_waker(Waker::noop());

    let before = ALLOCATIONS.get();
    {
        let mut cancelled = pin!(semaphore.acquire());
        assert!(one.as_mut().poll(&mut cx).is_pending());
        assert!(cancelled.as_mut().poll(&mut cx).is_pending());
        assert!(two.as_mut().poll(&mut cx).is_pending());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        assert!(push.as_mut().poll(&mut cx).is_pending());
    }
    semaphore.release(3);
    event.set();
    assert_eq!(queue.try_recv(), Ok(1));
    assert!(one.poll(&mut cx).is_ready() && two.poll(&mut cx).is_ready());
    assert!(wait.poll(&mut cx).is_ready() && push.poll(&mut cx).is_ready());
    assert_eq!(ALLOCATIONS.get(), before);
}
