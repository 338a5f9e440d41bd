//! Children: bounded, replaced, never left behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tidegate_loop::{spawn, timeout};
use tidegate_pdf::{Limits, OpenError, PageError, Reader, Want};

use crate::evil::endless;
use crate::made::{Leaf, document};
use crate::support::{file, reader, run, sample, strict};

/// The processes that a process has started and that still run.
fn children(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{parent}/task")).unwrap().flatten() {
        let list = fs::read_to_string(entry.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}

/// Which of this test's own files a child has been told to read cannot be seen from outside; its limits can.
fn limits_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default()
}

#[test]
fn a_child_cannot_take_more_than_it_was_given() {
    run(async move {
        // A number that no other test uses.
        let document = reader().limits(limits_with(333)).open(sample("tides.pdf")).await.unwrap();
        let ours = limits_of(child_with(333));
        let row = |name: &str| {
            let row = ours.lines().find(|line| line.starts_with(name)).unwrap();
            row[name.len()..].split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let memory = (333_u64 << 20).to_string();
        assert_eq!(row("Max address space"), [memory.clone(), memory]);
        assert_eq!(row("Max cpu time"), ["4322", "4322"]);
        assert_eq!(row("Max file size"), ["0", "0"]);
        assert_eq!(row("Max core file size"), ["0", "0"]);
        assert_eq!(row("Max open files"), ["0", "0"]);
        assert_eq!(row("Max processes"), ["0", "0"]);
        drop(document);
    });
}

/// A limit by which a test's own child can be told from those of the others.
pub(crate) fn limits_with(megabytes: u64) -> tidegate_pdf::Limits {
    tidegate_pdf::Limits {
        memory_bytes: megabytes << 20,
        document_time: Duration::from_secs(4321),
        ..tidegate_pdf::Limits::default()
    }
}

/// The child that was started with [`limits_with`] this number.
pub(crate) fn child_with(megabytes: u64) -> u32 {
    let bytes = (megabytes << 20).to_string();
    let mut children = children(std::process::id()).into_iter();
    children.find(|&pid| limits_of(pid).contains(&bytes)).unwrap()
}

/// The last pages of a large document were left out for want of time, though none of them took long.
#[test]
fn a_large_document_has_time_for_all_of_its_pages() {
    const TIME: Duration = Duration::from_secs(2);
    let pages: Vec<Leaf> = (0..1_501).map(|_| Leaf::saying("one of many")).collect();
    let (_directory, path) = file(&document(&pages));
    run(async move {
        let limits = tidegate_pdf::Limits { document_time: TIME, ..tidegate_pdf::Limits::default() };
        let document = reader().limits(limits).open(&path).await.unwrap();
        let mut number = 0;
        // The time of one process is not raised: there is a second one.
        while document.stats().busy <= TIME + TIME / 10 || document.stats().children == 1 {
            number = number % document.page_count() + 1;
            document.page(number, Want::picture(1_000)).await.unwrap();
        }
    });
}

#[test]
fn many_tasks_may_ask_at_once() {
    run(async move {
        let document = std::rc::Rc::new(reader().open(sample("tides.pdf")).await.unwrap());
        let tasks: Vec<_> = (0..20)
            .map(|index| {
                let document = std::rc::Rc::clone(&document);
                spawn(async move { (index % 4 + 1, document.page(index % 4 + 1, Want::text()).await.unwrap()) })
            })
            .collect();
        for task in tasks {
            let (number, page) = task.await.unwrap();
            assert_eq!(page.number, number);
            assert!(page.text.unwrap().text.ends_with(&format!("\n\n{number}")));
        }
        let stats = document.stats();
        assert_eq!((stats.read, stats.failed, stats.children, stats.asking), (20, 0, 1, 0));
        assert!(stats.busy > Duration::ZERO);
        assert!((1 << 20..1 << 30).contains(&stats.memory_peak_bytes), "{stats:?}");
    });
}

#[test]
fn a_page_that_is_given_up_does_not_answer_somebody_else() {
    run(async move {
        let document = strict().open(sample("tides.pdf")).await.unwrap();
        // The answer to the first is on its way when the second asks.
        for _ in 0..5 {
            let _ = timeout(Duration::from_micros(200), document.page(1, Want::text().and_picture(500))).await;
            let page = document.page(3, Want::text()).await.unwrap();
            assert_eq!(page.number, 3);
            assert!(page.text.unwrap().text.starts_with("Several limits at once"));
        }
        assert!(document.stats().children > 1);
    });
}

#[test]
fn a_file_that_changes_meanwhile_is_noticed() {
    let (_directory, path) = file(&document(&[Leaf::saying("as it was"), Leaf::saying("as it was")]));
    run(async move {
        let opened = strict().open(&path).await.unwrap();
        let _ = timeout(Duration::from_micros(1), opened.page(1, Want::text())).await;
        assert_eq!(opened.stats().children, 1);
        fs::write(&path, document(&[Leaf::saying("as it is now")])).unwrap();
        let error = opened.page(1, Want::text()).await.unwrap_err();
        assert!(matches!(error, PageError::Changed { .. }), "{error}");
        fs::remove_file(&path).unwrap();
        let error = opened.page(1, Want::text()).await.unwrap_err();
        assert!(matches!(error, PageError::Reopen { source: OpenError::Unreadable { .. }, .. }), "{error}");
    });
}

#[test]
fn a_program_that_is_no_reader_is_named_as_what_it_is() {
    run(async move {
        let error = Reader::new().program("true", [""; 0]).open(sample("tides.pdf")).await.unwrap_err();
        assert!(error.to_string().contains("main_if_asked"), "{error}");
        let error = Reader::new().program("/nowhere/reader", [""; 0]).open(sample("tides.pdf")).await.unwrap_err();
        assert!(matches!(error, OpenError::NoChild { .. }), "{error}");
        // One that talks, and means something else.
        let echo = ["-c", "cat <&0 >&0"];
        let error = Reader::new().program("sh", echo).open(sample("tides.pdf")).await.unwrap_err();
        assert!(matches!(error, OpenError::Failed { .. }), "{error}");
    });
}

/// What a program does that has forgotten to begin with `main_if_asked`: all over again, what its parent did.
#[test]
fn forgetful() {
    if std::env::var_os("TIDEGATE_PDF_CHILD").is_none() {
        return;
    }
    run(async move {
        let error = forgetful_reader().open(sample("tides.pdf")).await.unwrap_err();
        assert!(matches!(error, OpenError::NoChild { .. }), "{error}");
    });
}

fn forgetful_reader() -> Reader {
    Reader::new().program(std::env::current_exe().unwrap(), ["--exact", "life::forgetful"])
}

#[test]
fn a_program_that_forgets_to_ask_does_not_start_itself_without_end() {
    run(async move {
        let error = forgetful_reader().open(sample("tides.pdf")).await.unwrap_err();
        // It ended well, because it was refused a child of its own.
        assert!(error.to_string().contains("it did not answer; does its main begin with"), "{error}");
    });
}

#[test]
fn a_child_knows_nothing_of_keys_and_passwords() {
    run(async move {
        let document = reader().limits(limits_with(334)).open(sample("tides.pdf")).await.unwrap();
        let environment = fs::read(format!("/proc/{}/environ", child_with(334))).unwrap();
        let mut names: Vec<&[u8]> =
            environment.split(|&byte| byte == 0).filter_map(|it| it.split(|&byte| byte == b'=').next()).collect();
        names.retain(|name| !name.is_empty() && *name != b"LD_LIBRARY_PATH");
        names.sort();
        assert_eq!(names, [b"MALLOC_ARENA_MAX".as_slice(), b"TIDEGATE_PDF_CHILD"]);
        drop(document);
    });
}

/// Set for a process that reads a document without end, and is killed.
const VICTIM: &str = "TIDEGATE_TEST_VICTIM";

#[test]
fn victim() {
    let Some(path) = std::env::var_os(VICTIM).map(PathBuf::from) else { return };
    run(async move {
        let limits = tidegate_pdf::Limits { page_time: Duration::from_secs(500), ..tidegate_pdf::Limits::default() };
        let document = reader().limits(limits).open(path).await.unwrap();
        println!("\nreading");
        document.page(2, Want::text()).await.unwrap();
    });
}

#[test]
fn a_child_does_not_outlive_a_parent_that_was_killed() {
    let (_directory, path) = file(&endless());
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "life::victim", "--nocapture"])
        .env(VICTIM, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "reading"));
    let children = children(parent.id());
    assert_eq!(children.len(), 1);
    let child = pidfd_open(Pid::from_raw(children[0] as i32).unwrap(), PidfdFlags::empty()).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let limit = rustix::event::Timespec { tv_sec: 100, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&limit)), Ok(1), "the child goes on");
}

/// Sets the processors of this thread, and of those it starts, to one, which as many busy threads share with them.
fn crowd(threads: usize, over: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<()>> {
    let all = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
    sched_setaffinity(None, &one).unwrap();
    let busy = || {
        let over = Arc::clone(over);
        thread::spawn(move || while !over.load(Ordering::Relaxed) {})
    };
    (0..threads).map(|_| busy()).collect()
}

#[test]
fn a_page_does_not_fail_because_other_programs_have_the_processors() {
    run(async {
        let draw = async |limits: Limits| {
            let document = reader().limits(limits).open(sample("tides.pdf")).await.unwrap();
            let began = Instant::now();
            document.page(1, Want::picture(2_000)).await.map(|_| began.elapsed())
        };
        let alone = draw(Limits::default()).await.unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let crowd = crowd(12, &over);
        let limit = 2 * alone + Duration::from_millis(200);
        let limits = Limits { page_time: limit, document_time: 2 * limit, ..Limits::default() };
        let drawn = draw(limits).await;
        over.store(true, Ordering::Relaxed);
        crowd.into_iter().for_each(|thread| thread.join().unwrap());
        drawn.unwrap();
    });
}
