//! What a child cannot do. The confinement is tried from inside: the test program runs itself once more, confines itself with
//! the sources of the child, and attempts what is forbidden.

#[allow(dead_code, unreachable_pub, reason = "the parent's side of it is not needed here")]
#[path = "../../src/child/confinement.rs"]
mod confinement;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::TcpStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use tidegate_pdf::{Confinement, Guard, Want};

use crate::life::{child_with, limits_with};
use crate::support::{reader, run, sample};

/// Set for a process that confines itself and attempts something.
const ATTEMPT: &str = "TIDEGATE_TEST_ATTEMPT";
const SIGSYS: i32 = 31;
/// For an attempt that succeeded.
const SUCCEEDED: i32 = 77;

fn outcome(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

type Attempt = (&'static str, fn() -> io::Result<()>);

/// What a child attempts that runs injected code.
const ATTEMPTS: [Attempt; 11] = [
    ("open a file", || File::open("/etc/passwd").map(drop)),
    ("list a directory", || fs::read_dir("/").map(drop)),
    ("make a file", || File::create("/tmp/tidegate-confined").map(drop)),
    // The port of the parent's listener.
    ("connect", || TcpStream::connect(("127.0.0.1", std::env::var("PORT").unwrap().parse().unwrap())).map(drop)),
    ("execute", || Err(Command::new("/bin/true").exec())),
    // SAFETY: of the two processes the new one does nothing but end; numbers otherwise.
    ("fork", || match unsafe { libc::fork() } {
        0 => std::process::abort(),
        other => outcome(other.into()),
    }),
    ("start a thread", || thread::Builder::new().spawn(|| ()).map(drop)),
    // SAFETY: numbers only.
    ("trace the parent", || outcome(unsafe { libc::ptrace(libc::PTRACE_ATTACH, libc::getppid(), 0, 0) })),
    // SAFETY: as above.
    ("signal the parent", || outcome(unsafe { libc::kill(libc::getppid(), 0) }.into())),
    // SAFETY: as above.
    ("make a socket", || outcome(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) }.into())),
    ("map memory to execute", || {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory that is not used.
        outcome(unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) } as i64)
    }),
];

/// Runs in the process that attempts: `first|second|both NAME`, where the name is that of an attempt or `nothing`.
#[test]
fn attempt() {
    let Ok(words) = std::env::var(ATTEMPT) else { return };
    let (steps, name) = words.split_once(' ').unwrap();
    if steps != "second" {
        confinement::enter().unwrap();
    }
    if steps != "first" {
        assert_eq!(confinement::seal(), confinement::Guard::Full);
    }
    let attempt = ATTEMPTS.into_iter().find(|(known, _)| *known == name).map(|(_, attempt)| attempt);
    let result = attempt.map_or(Err(io::Error::from_raw_os_error(0)), |attempt| attempt());
    std::process::exit(result.map_or_else(|error| error.raw_os_error().unwrap(), |()| SUCCEEDED));
}

/// How a process ended that was confined by `steps` and attempted something.
fn attempted(steps: &str, name: &str) -> ExitStatus {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "confined::attempt", "--nocapture"])
        .env(ATTEMPT, format!("{steps} {name}"))
        .env("PORT", listener.local_addr().unwrap().port().to_string())
        .stdout(Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn a_forbidden_system_call_ends_the_process() {
    for steps in ["second", "both"] {
        assert_eq!(attempted(steps, "nothing").code(), Some(0));
        for (name, _) in ATTEMPTS {
            assert_eq!(attempted(steps, name).signal(), Some(SIGSYS), "{steps} {name}");
        }
    }
}

/// The version of the kernel's Landlock; 0 where there is none.
fn landlock_version() -> i64 {
    const VERSION: u32 = 1;
    // SAFETY: a question without arguments in memory.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) }.max(0)
}

#[test]
fn landlock_denies_files_connections_and_other_processes_where_there_is_no_filter() {
    assert_eq!(attempted("first", "nothing").code(), Some(0));
    for (name, denied, since) in [
        ("open a file", Errno::ACCESS, 1),
        ("list a directory", Errno::ACCESS, 1),
        ("make a file", Errno::ACCESS, 1),
        ("execute", Errno::ACCESS, 1),
        ("trace the parent", Errno::PERM, 1),
        ("connect", Errno::ACCESS, 4),
        ("signal the parent", Errno::PERM, 6),
    ] {
        if landlock_version() < since {
            println!("skipped: {name}; this kernel's Landlock is older than version {since}");
            continue;
        }
        assert_eq!(attempted("first", name).code(), Some(denied.raw_os_error()), "{name}");
    }
}

/// A file of the child's, for each of its threads.
fn statuses(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    threads.map(|thread| fs::read_to_string(thread.path().join("status")).unwrap()).collect()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")).unwrap()
}

#[test]
fn every_thread_of_a_child_is_confined() {
    run(async move {
        let document = reader().limits(limits_with(335)).open(sample("tides.pdf")).await.unwrap();
        let Confinement { landlock, seccomp, .. } = document.confinement();
        assert_eq!(*seccomp, Guard::Full);
        match landlock_version() {
            0 => assert!(matches!(landlock, Guard::Missing { .. }), "{landlock}"),
            1..6 => assert_eq!(*landlock, Guard::Partial),
            _ => assert_eq!(document.confinement().to_string(), "Landlock full, seccomp full"),
        }
        assert_eq!(document.confinement().is_complete(), landlock_version() > 0);
        let statuses = statuses(child_with(335));
        for status in &statuses {
            assert_eq!((field(status, "NoNewPrivs"), field(status, "Seccomp")), ("1", "2"), "{status}");
        }
        let reader = statuses.iter().find(|status| field(status, "Name") == "pdf").unwrap();
        for set in ["CapEff", "CapPrm", "CapInh"] {
            assert_eq!(field(reader, set), "0000000000000000", "{set}");
        }
    });
}

#[test]
fn a_child_has_the_descriptors_that_it_needs_and_no_other() {
    // As a shell leaves them open for what it starts.
    let foreign = File::open("/etc/hostname").unwrap();
    fcntl_setfd(&foreign, FdFlags::empty()).unwrap();
    for without in [None, Some(libc::SYS_close_range)] {
        on_a_kernel_without(without.into_iter().collect(), || {
            run(async move {
                let document = reader().limits(limits_with(336)).open(sample("tides.pdf")).await.unwrap();
                let links = fs::read_dir(format!("/proc/{}/fd", child_with(336))).unwrap().flatten();
                let names: Vec<String> =
                    links.map(|link| fs::read_link(link.path()).unwrap().to_string_lossy().into_owned()).collect();
                for name in &names {
                    let known = ["socket:", "pipe:", "/dev/null"].iter().any(|known| name.starts_with(known))
                        || ["tides.pdf", "/status", "NotoSansCJK-Regular.ttc"].iter().any(|end| name.ends_with(end));
                    assert!(known, "{without:?}: {name} of {names:?}");
                }
                assert!(names.len() <= 7, "{names:?}");
                drop(document);
            });
        });
    }
    drop(foreign);
}

/// Runs `test` in a thread for which, and for whose children, the kernel does not know some system calls.
fn on_a_kernel_without(calls: Vec<i64>, test: impl FnOnce() + Send) {
    let rules: BTreeMap<i64, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    thread::scope(|scope| {
        let tested = scope.spawn(move || {
            if !calls.is_empty() {
                let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
                seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
            }
            test();
        });
        tested.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_kernel_without_landlock_or_seccomp_reads_documents_and_says_what_is_missing() {
    let (landlock, seccomp) = (libc::SYS_landlock_create_ruleset, libc::SYS_seccomp);
    for missing in [vec![landlock], vec![seccomp], vec![landlock, seccomp]] {
        let without = missing.clone();
        on_a_kernel_without(missing, move || {
            run(async move {
                let document = reader().open(sample("chaoxi.pdf")).await.unwrap();
                let page = document.page(1, Want::text().and_picture(64)).await.unwrap();
                assert!(page.text.unwrap().text.contains("潮汐与闸门"));
                let Confinement { landlock: files, seccomp: calls, .. } = document.confinement();
                assert_eq!(matches!(files, Guard::Missing { .. }), without.contains(&landlock), "{files}");
                assert_eq!(matches!(calls, Guard::Missing { .. }), without.contains(&seccomp), "{calls}");
                assert!(!document.confinement().is_complete());
                assert!(document.confinement().to_string().contains("missing ("), "{}", document.confinement());
            });
        });
    }
}
