//! What the tests share.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{EventLoop, SelectorKind};

/// Descriptors are the process's: a test that counts them, or must stay below 1,024, has to be alone.
pub(crate) fn alone(test: impl FnOnce()) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    allow_many_descriptors();
    test();
}

/// Runs a test of the suite on a selector. Even the loop that finds out whether there is one takes descriptors.
pub(crate) fn run_on(kind: SelectorKind, test: impl FnOnce(SelectorKind)) {
    alone(|| {
        let had = EventLoop::builder().selector(kind).build().unwrap().selector();
        // Containers often forbid it; then it is the fall-back that a loop has, and that is tested under its own name.
        if kind == SelectorKind::IoUring && had != kind {
            assert!(std::env::var_os("TIDEGATE_IO_URING").is_none(), "io_uring is asked for, and cannot be had");
            eprintln!("not tested: there is no io_uring here");
            return;
        }
        test(kind);
    });
}

fn allow_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

pub(crate) fn loop_of(kind: SelectorKind) -> EventLoop {
    let event_loop = EventLoop::builder().selector(kind).build().unwrap();
    assert_eq!(event_loop.selector(), kind);
    event_loop
}

/// Runs `future` on a loop of that kind.
pub(crate) fn on<F: Future + 'static>(kind: SelectorKind, future: F) -> F::Output {
    loop_of(kind).run_until_complete(future).unwrap()
}

pub(crate) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Both ends of a connection.
pub(crate) async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, near.local_addr().unwrap());
    (near, far)
}

/// As many connections as are asked for, or as the selector has room for: each has two ends here.
pub(crate) fn connections(kind: SelectorKind, wanted: usize) -> usize {
    if kind == SelectorKind::Select { wanted.min(490) } else { wanted }
}

pub(crate) fn is_soak() -> bool {
    std::env::var_os("TIDEGATE_SOAK").is_some_and(|value| value == "1")
}

pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Reads until the end.
pub(crate) async fn read_to_end(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(all),
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
}

/// SplitMix64, for tests that draw their steps from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

struct Counting;

thread_local! {
    /// Bytes allocated by this thread and not freed by it.
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

pub(crate) fn live_bytes() -> isize {
    LIVE.get()
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counter is a plain thread-local number that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get() + layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
