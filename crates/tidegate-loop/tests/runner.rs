//! How a run ends: no error is lost, what is queued still runs, and the clean-up shows only the program's own tasks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{
    ContextVar, EventLoop, LoopHandle, ReportKind, RunError, Runner, Task, TaskGroup, catch_cancel, interrupt, run,
    sleep, spawn, spawn_fallible, yield_now,
};

const LONG: Duration = Duration::from_secs(60);

fn strict() -> Runner {
    Runner::new(EventLoop::builder().strict(true).virtual_time().build().unwrap())
}

/// Lines that callbacks and tasks leave behind.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.borrow_mut().push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }
}

/// Keeps what the loop reports, as "kind: message".
fn reports(runner: &Runner) -> Log {
    let log = Log::default();
    let sink = log.clone();
    runner
        .event_loop()
        .set_exception_handler(move |report| sink.add(format!("{:?}: {}", report.kind(), report.message())));
    log
}

/// A group of which a child cannot save what it has when it is cancelled.
async fn group_that_cannot_save() -> Result<(), String> {
    let group = TaskGroup::scope(async |group| {
        let child = async {
            let _ = catch_cancel(sleep(LONG)).await;
            Err::<(), _>("could not save".to_owned())
        };
        group.spawn(child).unwrap();
        sleep(LONG).await;
        Ok(())
    });
    group.await.map_err(|error| error.to_string())
}

#[test]
fn a_run_returns_the_error_of_a_group_that_was_cancelled_from_outside() {
    let runner = strict();
    let result = runner.run(async {
        let main = Task::current();
        LoopHandle::current().call_later(Duration::from_secs(1), move || {
            main.cancel();
        });
        group_that_cannot_save().await
    });
    assert_eq!(result.unwrap(), Err("1 of the group's tasks failed: could not save".to_owned()));
}

#[test]
fn a_run_returns_what_main_returned_with_a_request_pending() {
    let result = strict().run(async {
        Task::current().cancel();
        Err::<(), _>("the reason")
    });
    assert_eq!(result.unwrap(), Err("the reason"));
    let event_loop = EventLoop::simulated(1);
    let result = event_loop.run_until_complete(async {
        Task::current().cancel();
        5
    });
    assert_eq!(result.unwrap(), 5);
}

#[test]
fn a_main_that_returned_nothing_is_cancelled() {
    let result = strict().run(async {
        Task::current().cancel();
        sleep(LONG).await;
    });
    assert!(matches!(result, Err(RunError::Cancelled)));
}

#[test]
fn a_result_that_a_plain_task_loses_to_a_request_is_reported() {
    let runner = strict();
    let log = reports(&runner);
    let lost = runner.run(async {
        let task = spawn(async {
            Task::current().cancel();
            Err::<(), _>("the reason")
        });
        let plain = spawn(async {
            Task::current().cancel();
            5
        });
        let kept = spawn_fallible(async {
            Task::current().cancel();
            Err::<(), _>("kept")
        });
        (task.await.is_err(), plain.await.is_err(), kept.await.unwrap())
    });
    assert_eq!(lost.unwrap(), (true, true, Err("kept")));
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("LostResult: core::result::Result<(), &str>"), "{lines:?}");
}

#[test]
fn a_result_that_is_lost_to_an_interrupt_is_reported() {
    let runner = strict();
    let log = reports(&runner);
    let result = runner.run(async {
        LoopHandle::current().call_soon(|| interrupt("enough"));
        Err::<(), _>("the reason")
    });
    assert!(matches!(result, Err(RunError::Interrupted(_))));
    assert_eq!(log.lines(), ["LostResult: core::result::Result<(), &str>"]);
}

#[test]
fn done_callbacks_of_a_task_that_ends_in_the_last_tick_run() {
    let log = Log::default();
    let called = log.clone();
    strict()
        .run(async move {
            let task = spawn(async { yield_now().await });
            task.task().add_done_callback(move |_| called.add("done"));
            yield_now().await;
        })
        .unwrap();
    assert_eq!(log.lines(), ["done"]);
}

fn chain(handle: &LoopHandle, link: usize, log: Log) {
    let next = handle.clone();
    handle.call_soon(move || {
        log.add(link.to_string());
        chain(&next, link + 1, log);
    });
}

/// asyncio's `Runner.close` runs its loop twice, two ticks each, before it closes it; the first link runs in the last
/// tick of the run itself.
#[test]
fn a_chain_of_calls_gets_as_far_as_in_asyncio() {
    let log = Log::default();
    let called = log.clone();
    strict().run(async move { chain(&LoopHandle::current(), 1, called) }).unwrap();
    assert_eq!(log.lines(), ["1", "2", "3", "4", "5"]);
}

#[test]
fn the_clean_up_shows_only_the_tasks_of_the_program() {
    let seen = Rc::new(Cell::new(0));
    let slot = seen.clone();
    strict()
        .run(async move {
            drop(spawn(async move {
                let _ = catch_cancel(sleep(LONG)).await;
                yield_now().await;
                slot.set(LoopHandle::current().all_tasks().len());
            }));
            drop(spawn(async {
                let _ = catch_cancel(sleep(LONG)).await;
                sleep(Duration::from_secs(1)).await;
            }));
            yield_now().await;
        })
        .unwrap();
    assert_eq!(seen.get(), 2);
}

async fn interrupts_the_clean_up() {
    drop(spawn(async {
        let _ = catch_cancel(sleep(LONG)).await;
        interrupt("cut short");
    }));
    yield_now().await;
}

#[test]
fn close_says_that_the_clean_up_was_interrupted() {
    let runner = strict();
    runner.run(interrupts_the_clean_up()).unwrap();
    let error = runner.close().unwrap_err();
    assert_eq!(error.to_string(), "the clean-up ended early: interrupted: cut short");
}

#[test]
fn close_says_that_the_clean_up_was_stopped() {
    let runner = strict();
    runner
        .run(async {
            drop(spawn(async {
                let _ = catch_cancel(sleep(LONG)).await;
                LoopHandle::current().stop();
                sleep(LONG).await;
            }));
            yield_now().await;
        })
        .unwrap();
    assert!(runner.close().unwrap_err().to_string().starts_with("the clean-up ended early: the loop was stopped"));
}

#[test]
fn a_runner_that_is_dropped_reports_that_its_clean_up_was_interrupted() {
    let runner = strict();
    let log = reports(&runner);
    runner.run(interrupts_the_clean_up()).unwrap();
    drop(runner);
    assert_eq!(log.lines(), ["CleanupCut: interrupted: cut short"]);
}

static VAR: ContextVar<u32> = ContextVar::with_default("var", || 0);

#[test]
fn a_runner_keeps_its_context_between_runs() {
    let runner = strict();
    runner.run(async { drop(VAR.set(1)) }).unwrap();
    assert_eq!(runner.run(async { VAR.get() }).unwrap(), Some(1));
    assert_eq!(VAR.get(), Some(0), "what a run sets does not leak out of it");
}

#[test]
fn a_runner_takes_its_context_from_where_it_runs_first() {
    let runner = strict();
    let token = VAR.set(7);
    assert_eq!(runner.run(async { VAR.get() }).unwrap(), Some(7));
    VAR.reset(token).unwrap();
    assert_eq!(runner.run(async { VAR.get() }).unwrap(), Some(7));
}

#[test]
fn the_report_kinds_are_the_ones_promised() {
    let runner = strict();
    let kinds = Rc::new(RefCell::new(Vec::new()));
    let sink = kinds.clone();
    runner.event_loop().set_exception_handler(move |report| sink.borrow_mut().push(report.kind()));
    runner
        .run(async {
            drop(spawn_fallible(async {
                let _ = catch_cancel(sleep(LONG)).await;
                Err::<(), _>("at the end")
            }));
            yield_now().await;
        })
        .unwrap();
    drop(runner);
    assert_eq!(*kinds.borrow(), [ReportKind::UnseenError]);
}

#[test]
fn run_on_a_real_loop_runs_what_is_queued_before_it_closes() {
    let log = Log::default();
    let called = log.clone();
    run(async move { chain(&LoopHandle::current(), 1, called) }).unwrap();
    assert_eq!(log.lines(), ["1", "2", "3", "4", "5"]);
}
