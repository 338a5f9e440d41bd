//! Signals: every listener on every loop receives them, handlers follow asyncio's rules, and what the process did with a
//! signal before is kept and put back. Each test has a real-time signal of its own, because they run side by side.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use tidegate_loop::signal::{Signal, SignalKind, signal};
use tidegate_loop::{ContextVar, EventLoop, LoopHandle, interrupt, spawn, yield_now};

/// The `number`th real-time signal: unlike the others they are not merged while they are pending.
fn own_signal(number: i32) -> SignalKind {
    SignalKind::from_raw(libc::SIGRTMIN() + number)
}

/// To this very thread: it has been handled when this returns.
fn raise(signal: SignalKind) {
    // SAFETY: sends a signal that is listened for.
    assert_eq!(unsafe { libc::raise(signal.as_raw()) }, 0);
}

/// What the process does with the signal.
fn disposition(signal: SignalKind) -> usize {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, and all zeros is a valid answer.
    unsafe {
        assert_eq!(libc::sigaction(signal.as_raw(), std::ptr::null(), found.as_mut_ptr()), 0);
        found.assume_init().sa_sigaction
    }
}

fn set_disposition(signal: SignalKind, handler: usize) {
    // SAFETY: an empty mask and no flags; the handlers of this file only touch atomics.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        assert_eq!(libc::sigaction(signal.as_raw(), &action, std::ptr::null_mut()), 0);
    }
}

fn watched() -> EventLoop {
    let event_loop = EventLoop::new().unwrap();
    event_loop.call_later(120.0, || interrupt("nothing happened for two minutes"));
    event_loop
}

/// Counts what comes until there were that many.
async fn count(listener: &mut Signal, wanted: u64) {
    let mut seen = 0;
    while seen < wanted {
        seen += listener.recv().await;
    }
    assert_eq!(seen, wanted);
}

#[test]
fn every_listener_on_every_loop_is_told_every_time() {
    const LOOPS: usize = 4;
    const ROUNDS: u64 = 200;
    let kind = own_signal(0);
    let (ready, readies) = mpsc::channel();
    let threads: Vec<_> = (0..LOOPS)
        .map(|_| {
            let ready = ready.clone();
            thread::spawn(move || {
                watched()
                    .run_until_complete(async move {
                        let listeners: Vec<_> = (0..3).map(|_| signal(kind).unwrap()).collect();
                        ready.send(()).unwrap();
                        let tasks: Vec<_> = listeners
                            .into_iter()
                            .map(|mut listener| {
                                spawn(async move {
                                    count(&mut listener, ROUNDS).await;
                                })
                            })
                            .collect();
                        for task in tasks {
                            task.await.unwrap();
                        }
                    })
                    .unwrap();
            })
        })
        .collect();
    for _ in 0..LOOPS {
        readies.recv().unwrap();
    }
    // Keeps the handler: the first loop to be done must not bring the default back while others wait.
    let keeper = EventLoop::new().unwrap();
    keeper.add_signal_handler(kind, || ()).unwrap();
    for _ in 0..ROUNDS {
        // To the process: any thread may get it.
        rustix::process::kill_process(rustix::process::getpid(), rustix_signal(kind)).unwrap();
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

fn rustix_signal(kind: SignalKind) -> rustix::process::Signal {
    // SAFETY: a signal that is listened for, and that nothing else in the process is about.
    unsafe { rustix::process::Signal::from_raw_unchecked(kind.as_raw()) }
}

#[test]
fn a_listener_is_told_how_many_have_come() {
    let kind = own_signal(1);
    watched()
        .run_until_complete(async move {
            let mut early = signal(kind).unwrap();
            assert_eq!(early.try_recv(), 0);
            raise(kind);
            let mut late = signal(kind).unwrap();
            raise(kind);
            raise(kind);
            assert_eq!((early.recv().await, late.recv().await), (3, 2));
            assert_eq!((early.try_recv(), late.try_recv()), (0, 0));
        })
        .unwrap();
}

#[test]
fn a_signal_wakes_a_loop_that_sleeps() {
    let kind = own_signal(2);
    for _ in 0..200 {
        watched()
            .run_until_complete(async move {
                let mut listener = signal(kind).unwrap();
                let sender = thread::spawn(move || {
                    rustix::process::kill_process(rustix::process::getpid(), rustix_signal(kind)).unwrap();
                });
                assert_eq!(listener.recv().await, 1);
                sender.join().unwrap();
            })
            .unwrap();
    }
}

#[test]
fn a_handler_runs_once_for_each_in_the_context_it_was_added_in() {
    static USER: ContextVar<u32> = ContextVar::new("user");
    let kind = own_signal(3);
    watched()
        .run_until_complete(async move {
            let handle = LoopHandle::current();
            let seen = Rc::new(RefCell::new(Vec::new()));
            let said = seen.clone();
            USER.set(1);
            handle.add_signal_handler(kind, move || said.borrow_mut().push(USER.get())).unwrap();
            USER.set(2);
            raise(kind);
            raise(kind);
            yield_now().await;
            yield_now().await;
            assert_eq!(*seen.borrow(), [Some(1), Some(1)]);
        })
        .unwrap();
}

#[test]
fn a_second_handler_replaces_the_first_and_removing_it_brings_the_default_back() {
    let kind = own_signal(4);
    watched()
        .run_until_complete(async move {
            let handle = LoopHandle::current();
            let seen = Rc::new(Cell::new(0));
            handle.add_signal_handler(kind, || unreachable!("it was replaced")).unwrap();
            let counter = seen.clone();
            handle.add_signal_handler(kind, move || counter.set(counter.get() + 1)).unwrap();
            raise(kind);
            yield_now().await;
            yield_now().await;
            assert_eq!(seen.get(), 1);
            assert!(handle.remove_signal_handler(kind));
            assert!(!handle.remove_signal_handler(kind));
            assert_eq!(disposition(kind), libc::SIG_DFL);
        })
        .unwrap();
}

#[test]
fn a_handler_that_was_removed_does_not_run_though_its_signal_came() {
    let kind = own_signal(5);
    watched()
        .run_until_complete(async move {
            let handle = LoopHandle::current();
            let keeper = signal(kind).unwrap();
            handle.add_signal_handler(kind, || unreachable!("it was removed")).unwrap();
            raise(kind);
            handle.remove_signal_handler(kind);
            yield_now().await;
            yield_now().await;
            drop(keeper);
        })
        .unwrap();
}

#[test]
fn the_default_comes_back_with_the_last_listener_or_with_the_loop() {
    let kind = own_signal(6);
    let event_loop = watched();
    event_loop
        .run_until_complete(async move {
            let (one, two) = (signal(kind).unwrap(), signal(kind).unwrap());
            assert_ne!(disposition(kind), libc::SIG_DFL);
            drop(one);
            assert_ne!(disposition(kind), libc::SIG_DFL);
            drop(two);
            assert_eq!(disposition(kind), libc::SIG_DFL);
            LoopHandle::current().add_signal_handler(kind, || ()).unwrap();
        })
        .unwrap();
    let outlives = event_loop.run_until_complete(async move { signal(kind).unwrap() }).unwrap();
    assert_ne!(disposition(kind), libc::SIG_DFL);
    event_loop.close().unwrap();
    assert_eq!(disposition(kind), libc::SIG_DFL);
    drop(outlives);
    assert_eq!(disposition(kind), libc::SIG_DFL);
}

static EARLIER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn earlier(_: i32) {
    EARLIER.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_handler_the_program_had_before_is_called_too_and_is_put_back() {
    let kind = own_signal(7);
    let address = earlier as extern "C" fn(i32) as *const () as usize;
    set_disposition(kind, address);
    watched()
        .run_until_complete(async move {
            let mut listener = signal(kind).unwrap();
            raise(kind);
            assert_eq!(listener.recv().await, 1);
            assert_eq!(EARLIER.load(Ordering::SeqCst), 1);
        })
        .unwrap();
    assert_eq!(disposition(kind), address);
    raise(kind);
    assert_eq!(EARLIER.load(Ordering::SeqCst), 2);
}

static BEHIND: AtomicUsize = AtomicUsize::new(0);

/// As well-behaved libraries do it: calls the handler that was there before.
extern "C" fn later(signal: i32) {
    let before = BEHIND.load(Ordering::SeqCst);
    // SAFETY: the address of the crate's handler, as the system gave it; it looks at the number only.
    let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = unsafe { std::mem::transmute(before) };
    before(signal, std::ptr::null_mut(), std::ptr::null_mut());
}

#[test]
fn a_handler_that_came_later_is_neither_removed_nor_put_in_a_circle() {
    let kind = own_signal(8);
    let address = later as extern "C" fn(i32) as *const () as usize;
    watched()
        .run_until_complete(async move {
            let mut listener = signal(kind).unwrap();
            BEHIND.store(disposition(kind), Ordering::SeqCst);
            set_disposition(kind, address);
            raise(kind);
            assert_eq!(listener.recv().await, 1);
            drop(listener);
            assert_eq!(disposition(kind), address, "it is not ours to remove");
            let mut again = signal(kind).unwrap();
            assert_eq!(disposition(kind), address);
            raise(kind);
            assert_eq!(again.recv().await, 1);
        })
        .unwrap();
}

#[test]
fn signals_that_cannot_be_awaited_are_refused_with_a_reason() {
    watched()
        .run_until_complete(async {
            for (number, reason) in [
                (libc::SIGKILL, "SIGKILL cannot be handled"),
                (libc::SIGSTOP, "SIGSTOP cannot be handled"),
                (libc::SIGSEGV, "tells of a fault"),
                (0, "is not a signal"),
                (-1, "is not a signal"),
                (9999, "is not a signal"),
            ] {
                let kind = SignalKind::from_raw(number);
                let refused = signal(kind).unwrap_err();
                assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
                assert!(refused.to_string().contains(reason), "{refused}");
                assert!(LoopHandle::current().add_signal_handler(kind, || ()).is_err());
            }
        })
        .unwrap();
}

#[test]
fn a_listener_is_a_stream() {
    use futures_core::Stream;
    let kind = own_signal(9);
    watched()
        .run_until_complete(async move {
            let mut listener = signal(kind).unwrap();
            raise(kind);
            let next = std::future::poll_fn(|cx| std::pin::Pin::new(&mut listener).poll_next(cx)).await;
            assert_eq!(next, Some(1));
        })
        .unwrap();
}
