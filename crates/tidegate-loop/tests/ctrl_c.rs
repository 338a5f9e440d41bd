//! Ctrl-C: real processes that get real signals. The parent starts this very program again, on whose main thread a
//! scenario runs, waits until it says that it is ready, and sends SIGINT.

use std::future::pending;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio, exit};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_loop::signal::{SignalKind, signal};
use tidegate_loop::{
    EventLoop, LoopError, RunError, Runner, Task, catch_cancel, run, run_loops, spawn, to_thread, yield_now,
};

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// Says its line when it goes.
struct Says(&'static str);

impl Drop for Says {
    fn drop(&mut self) {
        say(self.0);
    }
}

async fn wait_for_ever(last_words: &'static str) {
    let _says = Says(last_words);
    pending::<()>().await;
}

fn end(result: Result<(), RunError>) {
    match result {
        Ok(()) => say("result: ok"),
        Err(error) => say(&format!("result: {error}")),
    }
}

type Scenario = (&'static str, fn(), fn(Program));

const SCENARIOS: &[Scenario] = &[
    (
        "the_first_ends_the_run_in_order",
        || {
            end(run(async {
                drop(spawn(wait_for_ever("the task has cleaned up")));
                yield_now().await;
                say("ready");
                wait_for_ever("main has cleaned up").await;
            }));
            exit(7);
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            program.expect("main has cleaned up");
            program.expect("the task has cleaned up");
            program.expect("result: interrupted by Ctrl-C");
            assert_eq!(program.end().code(), Some(7));
        },
    ),
    (
        "a_main_that_catches_it_ends_as_it_likes",
        || {
            end(run(async {
                say("ready");
                assert!(catch_cancel(pending::<()>()).await.is_err());
                assert_eq!(Task::current().uncancel(), 0);
                say("caught");
            }));
            exit(0);
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            program.expect("caught");
            program.expect("result: ok");
            assert_eq!(program.end().code(), Some(0));
        },
    ),
    (
        "the_second_ends_the_process_at_once",
        || {
            end(run(async {
                say("ready");
                let _ = catch_cancel(pending::<()>()).await;
                say("caught");
                pending::<()>().await;
            }));
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            program.expect("caught");
            program.interrupt();
            program.ends_at_once();
        },
    ),
    (
        "the_second_ends_the_clean_up_too",
        || {
            end(run(async {
                drop(spawn(async {
                    let _ = catch_cancel(pending::<()>()).await;
                    say("the task does not want to end");
                    pending::<()>().await;
                }));
                yield_now().await;
                say("ready");
                pending::<()>().await;
            }));
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            program.expect("the task does not want to end");
            program.interrupt();
            program.ends_at_once();
        },
    ),
    (
        "the_second_does_not_wait_for_a_stuck_thread",
        || {
            end(run(async {
                let _says = Says("main has cleaned up");
                to_thread(|| {
                    say("ready");
                    loop {
                        std::thread::park();
                    }
                })
                .await
                .unwrap();
            }));
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            program.expect("main has cleaned up");
            program.interrupt();
            program.ends_at_once();
        },
    ),
    (
        "a_blocked_loop_ends_at_the_second_all_the_same",
        || {
            end(run(async {
                say("ready");
                loop {
                    std::thread::park();
                }
            }));
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            program.interrupt();
            program.ends_at_once();
        },
    ),
    (
        "turned_off_it_is_left_alone",
        || {
            let runner = Runner::new(EventLoop::new().unwrap()).ctrl_c(false);
            end(runner.run(async {
                say("ready");
                pending::<()>().await;
            }));
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            assert_eq!(program.end().signal(), Some(libc::SIGINT));
        },
    ),
    (
        "after_the_run_it_is_what_it_was_before",
        || {
            end(run(async {}));
            say("ready");
            loop {
                std::thread::park();
            }
        },
        |mut program| {
            program.expect("result: ok");
            program.expect("ready");
            program.interrupt();
            assert_eq!(program.end().signal(), Some(libc::SIGINT));
        },
    ),
    (
        "each_run_of_a_runner_has_a_first_of_its_own",
        || {
            let runner = Runner::new(EventLoop::new().unwrap());
            for _ in 0..2 {
                end(runner.run(async {
                    say("ready");
                    pending::<()>().await;
                }));
            }
            drop(runner);
            say("ready");
            loop {
                std::thread::park();
            }
        },
        |mut program| {
            for _ in 0..2 {
                program.expect("ready");
                program.interrupt();
                program.expect("result: interrupted by Ctrl-C");
            }
            program.expect("ready");
            program.interrupt();
            assert_eq!(program.end().signal(), Some(libc::SIGINT));
        },
    ),
    (
        "a_program_that_listens_for_it_gets_every_one",
        || {
            end(run(async {
                let mut presses = signal(SignalKind::INTERRUPT).unwrap();
                say("ready");
                for _ in 0..3 {
                    presses.recv().await;
                    say("pressed");
                }
                drop(presses);
                say("no more");
                pending::<()>().await;
            }));
            exit(7);
        },
        |mut program| {
            program.expect("ready");
            for _ in 0..3 {
                program.interrupt();
                program.expect("pressed");
            }
            program.expect("no more");
            program.interrupt();
            program.expect("result: interrupted by Ctrl-C");
            assert_eq!(program.end().code(), Some(7));
        },
    ),
    (
        "ignored_before_it_stays_ignored",
        || {
            end(run(async {
                say("ready");
                let mut line = String::new();
                to_thread(move || std::io::stdin().read_line(&mut line)).await.unwrap().unwrap();
                say("still here");
            }));
            exit(0);
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            program.interrupt();
            program.child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
            program.expect("still here");
            program.expect("result: ok");
            assert_eq!(program.end().code(), Some(0));
        },
    ),
    (
        "in_another_thread_it_is_taken_only_if_asked_for",
        || {
            let asked = std::thread::spawn(|| {
                let runner = Runner::new(EventLoop::new().unwrap()).ctrl_c(true);
                end(runner.run(async {
                    say("ready");
                    pending::<()>().await;
                }));
            });
            asked.join().unwrap();
            let not_asked = std::thread::spawn(|| {
                end(run(async {
                    say("ready");
                    pending::<()>().await;
                }));
            });
            not_asked.join().unwrap();
        },
        |mut program| {
            program.expect("ready");
            program.interrupt();
            program.expect("result: interrupted by Ctrl-C");
            program.expect("ready");
            program.interrupt();
            assert_eq!(program.end().signal(), Some(libc::SIGINT));
        },
    ),
    (
        "runners_in_several_threads_all_end",
        || {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    std::thread::spawn(|| {
                        let runner = Runner::new(EventLoop::new().unwrap()).ctrl_c(true);
                        end(runner.run(async {
                            say("ready");
                            pending::<()>().await;
                        }));
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            exit(7);
        },
        |mut program| {
            (0..3).for_each(|_| program.expect("ready"));
            program.interrupt();
            (0..3).for_each(|_| program.expect("result: interrupted by Ctrl-C"));
            assert_eq!(program.end().code(), Some(7));
        },
    ),
    (
        "several_loops_end_in_order",
        || {
            let ends = run_loops(3, |_| async {
                say("ready");
                wait_for_ever("main has cleaned up").await;
            });
            assert!(ends.iter().all(|end| matches!(end, Err(LoopError::CtrlC))), "{ends:?}");
            exit(7);
        },
        |mut program| {
            (0..3).for_each(|_| program.expect("ready"));
            program.interrupt();
            (0..3).for_each(|_| program.expect("main has cleaned up"));
            assert_eq!(program.end().code(), Some(7));
        },
    ),
];

/// A scenario that runs in a process of its own; killed when the test is over.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(name: &str) -> Program {
        let program = std::env::current_exe().unwrap();
        // A shell that runs the tests in the background may have had it ignored.
        let disposition = if name.starts_with("ignored") { "--ignore-signal=INT" } else { "--default-signal=INT" };
        let mut command = Command::new("env");
        command.arg(disposition).arg(program);
        let command = command.env("TIDEGATE_SCENARIO", name);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Program { child, output }
    }

    #[track_caller]
    fn expect(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        if line.trim_end() != expected {
            let mut errors = String::new();
            let _ = kill_process(self.pid(), Signal::KILL);
            let _ = self.child.stderr.take().unwrap().read_to_string(&mut errors);
            panic!("expected {expected:?}, but it said {line:?}; on standard error: {errors}");
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends SIGINT, and waits until the process has taken notice: two that are pending are one.
    fn interrupt(&self) {
        kill_process(self.pid(), Signal::INT).unwrap();
        let path = format!("/proc/{}/status", self.child.id());
        while std::fs::read_to_string(&path).is_ok_and(|status| is_pending(&status)) {
            std::thread::yield_now();
        }
    }

    fn end(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    #[track_caller]
    fn ends_at_once(mut self) {
        let status = self.end();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(status.code(), Some(130), "{status}; on standard error: {errors}");
        assert_eq!(errors, "tidegate: interrupted again, ending at once\n");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether SIGINT is among the pending signals of a `/proc/<pid>/status`. A process that was killed keeps it for ever.
fn is_pending(status: &str) -> bool {
    if status.lines().any(|line| line.starts_with("State:\tZ")) {
        return false;
    }
    let pending = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    pending.into_iter().any(|mask| mask & (1 << (libc::SIGINT - 1)) != 0)
}

fn main() {
    if let Ok(scenario) = std::env::var("TIDEGATE_SCENARIO") {
        let (_, child, _) = SCENARIOS.iter().find(|(name, ..)| *name == scenario).expect("a scenario");
        return child();
    }
    let mut arguments = std::env::args().skip(1);
    if arguments.any(|argument| argument == "--list") {
        SCENARIOS.iter().for_each(|(name, ..)| println!("{name}: test"));
        return;
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let chosen: Vec<_> = SCENARIOS.iter().filter(|(name, ..)| name.contains(&filter)).collect();
    println!("\nrunning {} tests", chosen.len());
    watch_over();
    let mut failed = 0;
    for (name, _, parent) in chosen {
        let outcome = std::panic::catch_unwind(|| parent(Program::start(name)));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        failed += u32::from(outcome.is_err());
    }
    println!("\ntest result: {}. {failed} failed\n", if failed == 0 { "ok" } else { "FAILED" });
    exit(i32::from(failed > 0));
}

/// A scenario that hangs must fail, not hang.
fn watch_over() {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(300));
        eprintln!("the scenarios did not end within five minutes");
        exit(1);
    });
}
