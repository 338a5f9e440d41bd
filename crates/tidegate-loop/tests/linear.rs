//! What must stay linear: a task dump, and the end of a group's children.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::pending;

use tidegate_loop::net::UnixStream;
use tidegate_loop::{LoopHandle, TaskGroup, run, spawn, yield_now};

struct Counting;

thread_local! {
    /// Bytes this thread has ever allocated.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counter is a plain thread-local number that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that a dump of `tasks` tasks allocates, each waiting at a socket of its own.
fn bytes_of_a_dump(tasks: usize) -> usize {
    run(async move {
        let mut peers = Vec::new();
        for _ in 0..tasks {
            let (mine, theirs) = UnixStream::pair().unwrap();
            peers.push(theirs);
            drop(spawn(async move { mine.read(&mut [0; 1]).await.map(drop) }));
        }
        yield_now().await;
        yield_now().await;
        let before = ALLOCATED.get();
        let dump = LoopHandle::current().dump();
        let bytes = ALLOCATED.get() - before;
        assert_eq!(dump.to_string().matches("something to read").count(), tasks);
        bytes
    })
    .unwrap()
}

#[test]
fn a_dump_of_tasks_at_descriptors_is_linear() {
    let (few, many) = (bytes_of_a_dump(25), bytes_of_a_dump(200));
    assert!(many < 8 * few * 2, "{few} bytes for 25 tasks, {many} for 200");
}

/// CPU seconds of this thread.
fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` and keeps nothing.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// CPU time in which the children of a group are spawned and end.
fn cpu_seconds_of_a_group(children: usize) -> f64 {
    let before = now();
    run(async move {
        let result = TaskGroup::scope(async |group| {
            for _ in 0..children {
                drop(group.spawn(pending::<Result<(), u32>>()).unwrap());
            }
            yield_now().await;
            Err::<(), _>(1)
        });
        assert_eq!(result.await.unwrap_err().failures.len(), 1);
    })
    .unwrap();
    now() - before
}

#[test]
fn the_end_of_a_group_is_linear_in_its_children() {
    let (few, many) = (cpu_seconds_of_a_group(5_000), cpu_seconds_of_a_group(40_000));
    assert!(many < 8.0 * few * 3.0, "{few} s for 5,000 children, {many} s for 40,000");
}
