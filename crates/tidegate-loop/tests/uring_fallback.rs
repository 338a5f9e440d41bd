//! A loop that asks for io_uring where the kernel refuses it uses epoll, says why, and works. The refusal is real: a
//! seccomp filter on a thread of its own.

use std::sync::Mutex;

use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{EventLoop, SelectorKind, spawn};

/// What was logged, with its level.
static LOGGED: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.lock().unwrap().push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

/// From now on this thread's calls of `io_uring_setup` fail with `errno`.
fn forbid_io_uring(errno: i32) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // The call's number is the first field of what a filter sees.
        step(LOAD, 0, 0, 0),
        step(JUMP_IF, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the arguments are what the two calls want, and the filter outlives the second, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// An echo on a loop that asked for a ring; which selector it got.
fn echo() -> SelectorKind {
    let event_loop = EventLoop::builder().selector(SelectorKind::IoUring).build().unwrap();
    let echoed = event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 64];
            let count = stream.read(&mut buffer).await.unwrap();
            stream.write_all(&buffer[..count]).await.unwrap();
        });
        let stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).await.unwrap();
        reply
    });
    assert_eq!(&echoed.unwrap(), b"hello");
    event_loop.selector()
}

fn echo_without_io_uring(errno: i32) -> SelectorKind {
    let thread = std::thread::spawn(move || {
        forbid_io_uring(errno);
        echo()
    });
    thread.join().unwrap()
}

#[test]
fn where_io_uring_is_refused_the_loop_uses_epoll_and_says_why_once() {
    log::set_logger(&Log).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    assert_eq!(echo_without_io_uring(libc::EPERM), SelectorKind::Epoll);
    let told = LOGGED.lock().unwrap().clone();
    let [(level, message)] = &told[..] else { panic!("one message, not {told:?}") };
    assert_eq!(*level, log::Level::Warn);
    assert!(message.contains("epoll instead of io_uring") && message.contains("seccomp"), "{message}");
    // Not there at all, and there but too old: the same, and nothing more is said.
    assert_eq!(echo_without_io_uring(libc::ENOSYS), SelectorKind::Epoll);
    assert_eq!(echo_without_io_uring(libc::EINVAL), SelectorKind::Epoll);
    assert_eq!(echo_without_io_uring(libc::ENOMEM), SelectorKind::Epoll);
    assert_eq!(LOGGED.lock().unwrap().len(), 1);
}

#[test]
fn a_clock_that_jumps_needs_no_ring() {
    let event_loop = EventLoop::builder().selector(SelectorKind::IoUring).virtual_time().build().unwrap();
    assert_eq!(event_loop.selector(), SelectorKind::Epoll);
}
