//! The programs on tidegate, in strict mode under virtual time. What `oracle.py` does, line for line.
//!
//! Python's exceptions are values here: every await that may be cancelled is wrapped in `catch_cancel`, and what it
//! raises is handed on as an `Err` ([`exc::Exc`]). Where an exception leaves a scope of the loop's (a time-out, a
//! group, the task itself), a cancellation is raised again for that scope to see.
//!
//! `mod.rs` is the run as a whole, `world.rs` what the program's numbers stand for, `actions.rs` what never waits,
//! `coroutine.rs` statements, `combine.rs` waiting for tasks, `scopes.rs` time-outs and groups.

mod actions;
mod combine;
mod coroutine;
mod exc;
mod scopes;
mod world;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use tidegate_loop::{
    CleanupError, Duration, EventLoop, LoopEvent, Observer, ReportKind, RunError, Runner, TimerHandle,
};

use crate::program::{Ending, Program, Start};
use world::World;

/// A timer this far out fires only when nothing else is left to do.
const IDLE_TICKS: i64 = 1 << 20;
const ROUNDS_MAX: usize = 32;

/// The transcript of that program on tidegate.
pub(crate) fn run(program: &Program) -> Vec<String> {
    let event_loop = EventLoop::builder().strict(true).virtual_time().build().expect("a loop in virtual time");
    let turns = program.watched.then(|| Turns::watch(&event_loop));
    let world = World::new(program, event_loop.handle(), turns);
    report_to(&event_loop, &world);
    let ended = catch_unwind(AssertUnwindSafe(|| match program.ending {
        Ending::CloseRunner => in_runner(event_loop, &world, &[0]),
        Ending::RunTwice => in_runner(event_loop, &world, &[0, 1]),
        ending => whole(&event_loop, &world, ending),
    }));
    if let Err(panic) = ended {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        world.write("loop", format_args!("PANIC {text}"));
    }
    world.end()
}

/// Counts the turns of a loop since its clock last moved.
#[derive(Clone)]
pub(crate) struct Turns(Rc<Cell<i64>>);

impl Turns {
    fn watch(event_loop: &EventLoop) -> Turns {
        let turns = Turns(Rc::new(Cell::new(-1)));
        event_loop.set_observer(turns.clone());
        turns
    }
}

impl Observer for Turns {
    fn observe(&mut self, _at: Duration, event: &LoopEvent<'_>) {
        if let LoopEvent::Polled { timeout, .. } = event {
            let clock_moved = *timeout != Some(Duration::ZERO);
            self.0.set(if clock_moved { 0 } else { self.0.get() + 1 });
        }
    }
}

fn report_to(event_loop: &EventLoop, world: &Rc<World>) {
    // Weak, because the loop keeps the handler and the world keeps the loop.
    let world_ref = Rc::downgrade(world);
    event_loop.set_exception_handler(move |report| {
        // Errors that were never fetched are reported by CPython when its collector finds them, at no defined time.
        if report.kind() == ReportKind::CallbackPanic
            && let Some(world) = world_ref.upgrade()
        {
            world.write("loop", format_args!("report {}", report.message()));
        }
    });
}

/// Runs those bodies in a runner, one after the other, and closes it.
fn in_runner(event_loop: EventLoop, world: &Rc<World>, bodies: &[usize]) {
    let runner = Runner::new(event_loop).ctrl_c(false);
    for &body in bodies {
        let idle = stop_when_idle(world);
        let main = world.main_record();
        let ended = runner.run(world.clone().main_body(main.clone(), body));
        idle.cancel();
        let is_over = !matches!(ended, Err(RunError::Stopped | RunError::Interrupted(_)));
        world.write(
            "loop",
            match ended {
                Ok(ended) => format!("run {} {}", main.who, exc::show(&ended)),
                Err(RunError::Cancelled) => format!("run {} !Cancelled", main.who),
                Err(RunError::Stopped) => format!("run {} stopped", main.who),
                Err(RunError::Interrupted(_)) => format!("run {} interrupted", main.who),
                Err(error) => format!("run {} failed: {error}", main.who),
            },
        );
        world.tokens.borrow_mut().fill_with(|| None);
        if !is_over && world.shows_vars {
            break;
        }
    }
    let _idle = stop_when_idle(world);
    let closed = runner.close();
    // The loop has dropped its handler; without one, errors that were never fetched would be logged.
    world.handle.set_exception_handler(|_| ());
    // tidegate's runner leaves out turns in which there is nothing to do.
    world.stop_counting_turns();
    match closed {
        Ok(()) => {
            world.write("loop", "close ok");
            world.write_final();
        }
        Err(CleanupError::EndedEarly(RunError::Stopped)) => world.write("loop", "close stopped"),
        Err(CleanupError::EndedEarly(RunError::Interrupted(_))) => world.write("loop", "close interrupted"),
        Err(error) => world.write("loop", format_args!("close failed: {error}")),
    }
}

fn whole(event_loop: &EventLoop, world: &Rc<World>, ending: Ending) {
    world.spawn("loop", None, 0, Start::Queued);
    let main = world.record(0);
    let stop = world.handle.clone();
    main.task().add_done_callback(move |_| stop.stop());
    run_until_idle(event_loop, world);
    world.write("loop", format_args!("main {}", main.state()));
    if ending == Ending::LetRestFinish {
        run_until_idle(event_loop, world);
    }
    for _ in 0..ROUNDS_MAX {
        for record in world.unfinished() {
            let taken = record.task().cancel();
            world.write("loop", format_args!("cancel {} {}", record.who, exc::python_bool(taken)));
        }
        run_until_idle(event_loop, world);
        if world.unfinished().is_empty() {
            break;
        }
    }
    world.write_final();
}

/// A timer that stops the loop when nothing else is left.
fn stop_when_idle(world: &Rc<World>) -> TimerHandle {
    let when = (world.now() / IDLE_TICKS + 1) * IDLE_TICKS;
    let speaker = world.clone();
    world.handle.call_at(world.instant(when), move || {
        speaker.write("loop", "idle");
        speaker.handle.stop();
    })
}

/// Until the loop is stopped, or until only the timer that does so is left.
fn run_until_idle(event_loop: &EventLoop, world: &Rc<World>) {
    let idle = stop_when_idle(world);
    if let Err(error) = event_loop.run_forever() {
        world.write("loop", format_args!("run_forever failed: {error}"));
    }
    idle.cancel();
}
