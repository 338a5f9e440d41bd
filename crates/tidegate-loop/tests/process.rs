//! Child processes: their ends, pipes, time limits and signals; that none stays a zombie and no descriptor is lost. Each
//! case runs in a process of its own (this program, started again), because it counts what the whole process has.

use std::collections::HashSet;
use std::future::pending;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command as StdCommand;
use std::thread;

use tidegate_loop::process::{Command, ProcessError, Stdio};
use tidegate_loop::signal::SignalKind;
use tidegate_loop::stream::StreamReader;
use tidegate_loop::{Duration, EventLoop, LoopHandle, SelectorKind, gather_all, interrupt, spawn, yield_now};

const LONG: Duration = Duration::from_secs(600);

/// The children of this process that have ended and were not reaped.
fn zombies() -> usize {
    children().filter(|(_, state)| *state == 'Z').count()
}

/// The process ids and states of this process's children.
fn children() -> impl Iterator<Item = (u32, char)> {
    let own = std::process::id();
    std::fs::read_dir("/proc").unwrap().filter_map(move |entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before may hold anything, also spaces and brackets.
        let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
        let state = fields.next()?.chars().next()?;
        (fields.next()?.parse() == Ok(own)).then_some((pid, state))
    })
}

fn descriptors() -> HashSet<PathBuf> {
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn watched() -> EventLoop {
    let event_loop = EventLoop::new().unwrap();
    event_loop.call_later(240.0, || interrupt("nothing happened for four minutes"));
    event_loop
}

fn on_loop<F: Future + 'static>(future: F) -> F::Output {
    watched().run_until_complete(future).unwrap()
}

/// Waits until no child is left, alive or not, by looking again and again: nothing tells when a child is reaped.
async fn all_reaped() {
    while children().count() > 0 {
        yield_now().await;
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// A shell that ignores SIGTERM and says when it does; it ends with its input.
fn stubborn() -> Command {
    let mut command = shell("trap '' TERM; echo ready; while read line; do :; done; exit 9");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

async fn line_of(child: &mut tidegate_loop::process::Child) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    let output = child.stdout.as_mut().unwrap();
    while output.read(&mut byte).await.unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

fn the_end_of_a_child_is_told_with_code_or_signal() {
    on_loop(async {
        assert!(Command::new("true").status().await.unwrap().success());
        assert_eq!(shell("exit 42").status().await.unwrap().code(), Some(42));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.signal(SignalKind::USER1).unwrap();
        let status = child.wait().await.unwrap();
        assert_eq!((status.signal(), status.code()), (Some(libc::SIGUSR1), None));
        // It is known from now on, and signals reach no process.
        assert_eq!((child.wait().await.unwrap(), child.try_wait().unwrap()), (status, Some(status)));
        child.kill().unwrap();
        assert_eq!(child.id(), None);
    });
    assert_eq!(children().count(), 0);
}

fn arguments_environment_and_directory_reach_the_child() {
    on_loop(async {
        let mut command = shell("echo \"$1 $COLOUR $(pwd) ${HOME-none}\"");
        command.args(["name", "one two"]).env("COLOUR", "green").env_remove("HOME").current_dir("/usr");
        assert_eq!(command.output().await.unwrap().stdout, b"one two green /usr none\n");
        let cleared = Command::new("/usr/bin/env").env_clear().env("ONLY", "this").output().await.unwrap();
        assert_eq!(cleared.stdout, b"ONLY=this\n");
    });
}

fn huge_outputs_on_both_pipes_do_not_block_each_other() {
    const BYTES: usize = 20_000_000;
    on_loop(async {
        let script = format!(
            "(head -c {BYTES} /dev/zero | tr '\\0' e >&2) & head -c {BYTES} /dev/zero | tr '\\0' o; wait; \
             head -c {BYTES} /dev/zero | tr '\\0' e >&2; head -c {BYTES} /dev/zero | tr '\\0' o"
        );
        let output = shell(&script).output().await.unwrap();
        assert!(output.status.success());
        assert_eq!((output.stdout.len(), output.stderr.len()), (2 * BYTES, 2 * BYTES));
        assert!(output.stdout.iter().all(|byte| *byte == b'o') && output.stderr.iter().all(|byte| *byte == b'e'));
    });
}

fn a_child_is_fed_and_read_at_the_same_time() {
    const BYTES: usize = 10_000_000;
    on_loop(async {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let data: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        let sent = data.clone();
        let feeder = spawn(async move { stdin.write_all(&sent).await });
        let output = child.wait_with_output().await.unwrap();
        feeder.await.unwrap().unwrap();
        assert_eq!(output.stdout, data);
    });
}

fn input_that_nobody_reads_is_a_broken_pipe() {
    on_loop(async {
        let mut child = shell("exec 0<&-; echo closed; read line <&1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(line_of(&mut child).await, "closed");
        let mut stdin = child.stdin.take().unwrap();
        let error = stdin.write_all(b"hello?").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        stdin.close();
        assert_eq!(stdin.write(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        child.kill().unwrap();
        child.wait().await.unwrap();
    });
}

/// The writer waits for room when the reader goes: it must be woken to find out.
fn a_writer_that_waits_hears_that_the_reader_has_gone() {
    on_loop(async {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = spawn(async move { stdin.write_all(&vec![0; 10_000_000]).await });
        yield_now().await;
        assert!(!writer.is_finished());
        child.kill().unwrap();
        assert_eq!(writer.await.unwrap().unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        child.wait().await.unwrap();
    });
}

fn a_thousand_short_children_leave_neither_zombies_nor_descriptors() {
    let event_loop = watched();
    event_loop
        .run_until_complete(async {
            Command::new("true").status().await.unwrap();
            let before = descriptors();
            for batch in 0..20 {
                let tasks = (0..50).map(|number| {
                    spawn(async move {
                        let output = shell(&format!("echo {number}; exit {}", number % 7)).output().await.unwrap();
                        assert_eq!(output.stdout, format!("{number}\n").as_bytes());
                        assert_eq!(output.status.code(), Some(number % 7));
                    })
                });
                for ended in gather_all(tasks.collect::<Vec<_>>()).await {
                    ended.unwrap();
                }
                assert_eq!(children().count(), 0, "after batch {batch}");
            }
            assert_eq!(descriptors(), before);
        })
        .unwrap();
}

fn dropped_children_are_reaped_on_the_loop() {
    let event_loop = watched();
    event_loop
        .run_until_complete(async {
            Command::new("true").status().await.unwrap();
            let (before, threads_before) = (descriptors(), threads());
            for _ in 0..100 {
                drop(Command::new("true").spawn().unwrap());
            }
            all_reaped().await;
            assert_eq!((descriptors(), threads()), (before, threads_before), "no helper was needed");
        })
        .unwrap();
}

fn children_that_outlive_their_loop_are_reaped_all_the_same() {
    let pids: Vec<u32> = {
        let event_loop = watched();
        let pids = event_loop.run_until_complete(async {
            let mut pids = Vec::new();
            for number in 0..20 {
                let child = Command::new("sleep").arg("1000").spawn().unwrap();
                pids.push(child.id().unwrap());
                if number % 2 == 0 {
                    drop(child);
                } else {
                    // Dropped by the loop as it closes.
                    drop(spawn(async move {
                        let _child = child;
                        pending::<()>().await;
                    }));
                }
            }
            yield_now().await;
            pids
        });
        pids.unwrap()
    };
    assert_eq!((children().count(), zombies()), (20, 0), "they live");
    for pid in pids {
        // SAFETY: children of ours that have not been reaped: they sleep.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
    }
    while children().count() > 0 {
        thread::yield_now();
    }
    // The reaper leaves when it has nothing to wait for, and comes again.
    while threads() > 1 {
        thread::yield_now();
    }
    let late = watched().run_until_complete(async { Command::new("sleep").arg("0.01").spawn().unwrap() }).unwrap();
    drop(late);
    while children().count() > 0 {
        thread::yield_now();
    }
}

fn kill_on_drop_kills() {
    on_loop(async {
        let mut child = Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
        assert!(child.try_wait().unwrap().is_none());
        drop(child);
        all_reaped().await;
        // Also when it is the future that is dropped.
        let task = spawn(async { Command::new("sleep").arg("1000").kill_on_drop(true).status().await });
        yield_now().await;
        assert_eq!(children().count(), 1);
        task.cancel();
        assert!(task.await.is_err());
        all_reaped().await;
    });
}

fn without_it_a_dropped_child_goes_on() {
    on_loop(async {
        let mut child = stubborn().spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        assert_eq!(line_of(&mut child).await, "ready");
        drop(child);
        yield_now().await;
        assert_eq!(children().map(|(_, state)| state != 'Z').collect::<Vec<_>>(), [true]);
        stdin.close();
        all_reaped().await;
    });
}

fn a_child_that_ignores_sigterm_is_killed_after_the_grace() {
    on_loop(async {
        let mut child = stubborn().spawn().unwrap();
        // Kept here: it would end with its input.
        let _stdin = child.stdin.take();
        assert_eq!(line_of(&mut child).await, "ready");
        let status = child.stop(Duration::from_millis(20)).await.unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    });
}

fn a_child_that_obeys_sigterm_is_not_killed() {
    on_loop(async {
        let mut child = shell("trap 'echo bye; exit 3' TERM; echo ready; while :; do read line; done")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let _stdin = child.stdin.take();
        assert_eq!(line_of(&mut child).await, "ready");
        assert_eq!(child.stop(LONG).await.unwrap().code(), Some(3));
        assert_eq!(line_of(&mut child).await, "bye");
    });
}

fn a_time_limit_ends_the_child_and_keeps_what_it_said() {
    on_loop(async {
        let mut command = shell("trap '' TERM; echo out; echo err >&2; while :; do sleep 1000 & wait; done");
        command.own_group(true).time_limit(Duration::from_secs(2)).grace(Duration::from_millis(20));
        let error = command.output().await.unwrap_err();
        let ProcessError::TimedOut { program, limit, output } = &error else { panic!("{error}") };
        assert_eq!((program.as_str(), *limit), ("sh", Duration::from_secs(2)));
        assert_eq!(output.status.signal(), Some(libc::SIGKILL));
        assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
        assert!(error.to_string().starts_with("`sh` did not end within 2s and was ended"), "{error}");
        all_reaped().await;
    });
}

/// A grandchild keeps the pipe open: that must not keep a child whose time is over.
fn a_time_limit_does_not_wait_for_those_who_hold_the_pipe() {
    on_loop(async {
        let mut command = shell("sleep 1000 & echo $!; exec sleep 1000");
        command.time_limit(Duration::from_secs(2));
        let error = command.output().await.unwrap_err();
        let ProcessError::TimedOut { output, .. } = &error else { panic!("{error}") };
        let grandchild: i32 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        // SAFETY: the grandchild that has just reported; it sleeps.
        assert_eq!(unsafe { libc::kill(grandchild, libc::SIGKILL) }, 0);
    });
}

fn a_group_is_ended_as_a_whole() {
    on_loop(async {
        let mut command = shell("sleep 1000 & echo $!; wait");
        let mut child = command.own_group(true).stdout(Stdio::piped()).spawn().unwrap();
        let _grandchild = line_of(&mut child).await;
        child.kill().unwrap();
        child.wait().await.unwrap();
        // The grandchild held the pipe: its end is the pipe's.
        assert_eq!(StreamReader::new(child.stdout.take().unwrap()).read_to_end().await.unwrap(), b"");
    });
}

fn what_a_child_leaves_in_its_group_is_killed_when_it_has_ended() {
    on_loop(async {
        let mut command = shell("sleep 1000 & echo $!");
        let mut child = command.sweep_group(true).stdout(Stdio::piped()).spawn().unwrap();
        assert!(child.wait().await.unwrap().success());
        // The grandchild holds the pipe: without its end there would be none here.
        let left = StreamReader::new(child.stdout.take().unwrap()).read_to_end().await.unwrap();
        assert!(String::from_utf8(left).unwrap().trim().parse::<u32>().is_ok());
    });
}

fn a_descriptor_is_inherited_by_the_child_it_was_given_to_and_no_other() {
    on_loop(async {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = shell("echo hello >&$NUMBER");
        let number = command.inherit(writer.into()).unwrap().to_string();
        let mut stranger = shell("test -e /proc/self/fd/$NUMBER");
        assert_eq!(stranger.env("NUMBER", &number).status().await.unwrap().code(), Some(1));
        assert!(command.env("NUMBER", &number).status().await.unwrap().success());
        drop(command);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "hello\n");
    });
}

fn a_child_that_dies_with_its_parent_is_gone_when_the_thread_is() {
    let (reader, writer) = std::io::pipe().unwrap();
    let parent = thread::spawn(move || {
        on_loop(async {
            let mut command = Command::new("sleep");
            command.inherit(writer.into()).unwrap();
            drop(command.arg("1000").die_with_parent().spawn().unwrap());
        });
    });
    parent.join().unwrap();
    assert_eq!(std::io::read_to_string(reader).unwrap(), "");
}

fn errors_name_the_program_and_what_is_missing() {
    on_loop(async {
        let directory = std::env::temp_dir().join(format!("tidegate-process-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let script = directory.join("script");
        std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
        let fails = |program: &std::path::Path| Command::new(program).spawn().unwrap_err();

        let error = fails(&script);
        assert!(matches!(error, ProcessError::NotAllowed { .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("cannot run `{}`: not allowed", script.display())), "{error}");
        let mut permissions = std::fs::metadata(&script).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        std::fs::set_permissions(&script, permissions).unwrap();
        assert!(fails(&script).to_string().ends_with("its interpreter is not there"));
        assert!(fails(&directory.join("nothing")).to_string().ends_with("there is no such file"));
        let error = Command::new("true").current_dir(directory.join("gone")).status().await.unwrap_err();
        assert!(error.to_string().starts_with("cannot run `true`: its working directory "), "{error}");
        let error = Command::new("no-such-program").output().await.unwrap_err();
        assert_eq!(error.to_string(), "cannot run `no-such-program`: not found in PATH");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&directory).unwrap();
    });
    assert_eq!(children().count(), 0);
}

fn too_many_descriptors_is_an_error_that_passes() {
    on_loop(async {
        Command::new("true").status().await.unwrap();
        let mut hoard = Vec::new();
        let error = loop {
            match std::fs::File::open("/dev/null") {
                Ok(file) => hoard.push(file),
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        let error = Command::new("true").output().await.unwrap_err();
        assert!(matches!(error, ProcessError::Exhausted { .. }), "{error}");
        drop(hoard);
        assert!(Command::new("true").output().await.unwrap().status.success());
    });
    assert_eq!(children().count(), 0);
}

fn sigchld_is_left_alone() {
    on_loop(async {
        Command::new("true").output().await.unwrap();
        drop(Command::new("true").spawn().unwrap());
        all_reaped().await;
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        assert_eq!(caught & (1 << (libc::SIGCHLD - 1)), 0);
    });
}

fn a_program_that_listens_for_sigchld_and_this_crate_get_along() {
    on_loop(async {
        let mut ends = tidegate_loop::signal::signal(SignalKind::CHILD).unwrap();
        assert_eq!(shell("exit 5").status().await.unwrap().code(), Some(5));
        assert!(ends.recv().await >= 1);
    });
}

/// The system reaps such a program's children by itself, and their numbers go to others.
fn a_status_that_is_gone_is_an_error_and_the_number_is_not_used_any_more() {
    // SAFETY: to be ignored is a disposition as good as any.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    on_loop(async {
        let mut child = Command::new("true").spawn().unwrap();
        for _ in 0..2 {
            let error = child.wait().await.unwrap_err();
            assert!(
                error.to_string().starts_with("cannot wait for `true`: its status is gone: this program ignores"),
                "{error}"
            );
        }
        assert_eq!(child.id(), None);
        child.kill().unwrap();
        assert!(child.try_wait().is_err());
        drop(Command::new("true").spawn().unwrap());
        all_reaped().await;
    });
}

fn every_selector_waits_for_children() {
    let selectors = [SelectorKind::Select, SelectorKind::EpollLevel, SelectorKind::Epoll, SelectorKind::IoUring];
    for kind in selectors {
        let event_loop = EventLoop::builder().selector(kind).build().unwrap();
        event_loop.call_later(240.0, || interrupt("nothing happened for four minutes"));
        event_loop
            .run_until_complete(async {
                let tasks = (0..20).map(|_| spawn(async { shell("cat /proc/self/status; exit 4").output().await }));
                for ended in gather_all(tasks.collect::<Vec<_>>()).await {
                    let output = ended.unwrap().unwrap();
                    assert_eq!(output.status.code(), Some(4));
                    assert!(output.stdout.starts_with(b"Name:\tcat\n"));
                }
                drop(Command::new("true").spawn().unwrap());
                all_reaped().await;
            })
            .unwrap();
    }
}

fn nothing_runs_on_an_idle_loop_while_a_child_lives() {
    on_loop(async {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let waiting = spawn(child.wait_with_output());
        yield_now().await;
        yield_now().await;
        let ticks = LoopHandle::current().metrics().ticks;
        // As long as it takes, the loop sleeps: this wakes it once.
        tidegate_loop::sleep(Duration::from_millis(50)).await;
        assert!(LoopHandle::current().metrics().ticks - ticks <= 3);
        stdin.write_all(b"x").await.unwrap();
        drop(stdin);
        assert_eq!(waiting.await.unwrap().unwrap().stdout, b"x");
    });
}

type Case = (&'static str, fn());

macro_rules! cases {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}

const CASES: &[Case] = cases![
    the_end_of_a_child_is_told_with_code_or_signal,
    arguments_environment_and_directory_reach_the_child,
    huge_outputs_on_both_pipes_do_not_block_each_other,
    a_child_is_fed_and_read_at_the_same_time,
    input_that_nobody_reads_is_a_broken_pipe,
    a_writer_that_waits_hears_that_the_reader_has_gone,
    a_thousand_short_children_leave_neither_zombies_nor_descriptors,
    dropped_children_are_reaped_on_the_loop,
    children_that_outlive_their_loop_are_reaped_all_the_same,
    kill_on_drop_kills,
    without_it_a_dropped_child_goes_on,
    a_child_that_ignores_sigterm_is_killed_after_the_grace,
    a_child_that_obeys_sigterm_is_not_killed,
    a_time_limit_ends_the_child_and_keeps_what_it_said,
    a_time_limit_does_not_wait_for_those_who_hold_the_pipe,
    a_group_is_ended_as_a_whole,
    what_a_child_leaves_in_its_group_is_killed_when_it_has_ended,
    a_descriptor_is_inherited_by_the_child_it_was_given_to_and_no_other,
    a_child_that_dies_with_its_parent_is_gone_when_the_thread_is,
    errors_name_the_program_and_what_is_missing,
    too_many_descriptors_is_an_error_that_passes,
    sigchld_is_left_alone,
    a_program_that_listens_for_sigchld_and_this_crate_get_along,
    a_status_that_is_gone_is_an_error_and_the_number_is_not_used_any_more,
    every_selector_waits_for_children,
    nothing_runs_on_an_idle_loop_while_a_child_lives,
];

/// Those that hold without pidfds too, where threads wait instead.
const WITHOUT_PIDFD: &[&str] = &[
    "the_end_of_a_child_is_told_with_code_or_signal",
    "huge_outputs_on_both_pipes_do_not_block_each_other",
    "a_thousand_short_children_leave_neither_zombies_nor_descriptors",
    "children_that_outlive_their_loop_are_reaped_all_the_same",
    "kill_on_drop_kills",
    "without_it_a_dropped_child_goes_on",
    "a_child_that_ignores_sigterm_is_killed_after_the_grace",
    "a_time_limit_ends_the_child_and_keeps_what_it_said",
    "what_a_child_leaves_in_its_group_is_killed_when_it_has_ended",
    "sigchld_is_left_alone",
    "a_status_that_is_gone_is_an_error_and_the_number_is_not_used_any_more",
    "every_selector_waits_for_children",
];

/// Whether the case passes in a process of its own.
fn passes(name: &str, pidfd: bool) -> bool {
    let mut command = StdCommand::new(std::env::current_exe().unwrap());
    command.env("TIDEGATE_CASE", name).env("TIDEGATE_PIDFD", if pidfd { "1" } else { "0" });
    let passed = command.status().unwrap().success();
    println!(
        "test {name}{} ... {}",
        if pidfd { "" } else { " (without pidfds)" },
        if passed { "ok" } else { "FAILED" }
    );
    passed
}

fn main() {
    if let Ok(wanted) = std::env::var("TIDEGATE_CASE") {
        let (_, case) = CASES.iter().find(|(name, _)| *name == wanted).expect("a case");
        return case();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        CASES.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).map_or("", String::as_str);
    let chosen = || CASES.iter().map(|(name, _)| *name).filter(|name| name.contains(filter));
    let failed = chosen().filter(|name| !passes(name, true)).count()
        + chosen().filter(|name| WITHOUT_PIDFD.contains(name)).filter(|name| !passes(name, false)).count();
    println!("\ntest result: {}. {failed} failed\n", if failed == 0 { "ok" } else { "FAILED" });
    std::process::exit(i32::from(failed > 0));
}
