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

use tidegate_loop::{Duration, Event, EventLoop, Observer, ReportKind};

use crate::program::{Ending, Program, Start};
use world::World;

/// A timer this far out fires only when nothing else is left to do.
const IDLE_TICKS: i64 = 1 << 20;
const ROUNDS_MAX: usize = 32;

/// The transcript of that program on tidegate.
pub(crate) fn run(program: &Program) -> Vec<String> {
    let event_loop = EventLoop::builder().strict(true).virtual_time().build().expect("a loop in virtual time");
    let turns = program.watched.then(|| Turns::watch(&event_loop));
    let world = World::new(program, event_loop.clone(), turns);
    let ended = catch_unwind(AssertUnwindSafe(|| whole(&event_loop, &world, program.ending)));
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
    fn observe(&mut self, _at: Duration, event: &Event<'_>) {
        if let Event::Polled { timeout, .. } = event {
            let clock_moved = *timeout != Some(Duration::ZERO);
            self.0.set(if clock_moved { 0 } else { self.0.get() + 1 });
        }
    }
}

fn whole(event_loop: &EventLoop, world: &Rc<World>, ending: Ending) {
    // Weak, because the loop keeps the handler and the world keeps the loop.
    let world_ref = Rc::downgrade(world);
    event_loop.set_exception_handler(move |report| {
        // Errors that nobody asked for are reported by CPython when its collector finds them, at no defined time.
        if report.kind() == ReportKind::CallbackPanic
            && let Some(world) = world_ref.upgrade()
        {
            world.write("loop", format_args!("report {}", report.message()));
        }
    });
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

/// Until somebody stops the loop, or until only the timer that says so is left.
fn run_until_idle(event_loop: &EventLoop, world: &Rc<World>) {
    let when = (world.now() / IDLE_TICKS + 1) * IDLE_TICKS;
    let speaker = world.clone();
    let idle = world.handle.call_at(world.instant(when), move || {
        speaker.write("loop", "idle");
        speaker.handle.stop();
    });
    if let Err(error) = event_loop.run_forever() {
        world.write("loop", format_args!("run_forever failed: {error}"));
    }
    idle.cancel();
}
