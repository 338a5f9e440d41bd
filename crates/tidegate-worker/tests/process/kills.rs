//! Children killed at random moments of a flow: every task has exactly one outcome, and no more have crashed than were
//! killed. And a worker that is killed takes its children along.

use std::cell::Cell;
use std::rc::Rc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tidegate_loop::process::{Command, Stdio};
use tidegate_loop::{gather_all, spawn, yield_now};
use tidegate_worker::{Mode, Outcome, ProcessMode};

use crate::support::*;

struct Flow {
    mode: Rc<ProcessMode>,
    /// Tasks that were not begun yet.
    left: Cell<u64>,
    succeeded: Cell<u64>,
    crashed: Cell<u64>,
}

impl Flow {
    fn ended(&self) -> u64 {
        self.succeeded.get() + self.crashed.get()
    }

    /// One task after the other, as a slot of the pool does it.
    async fn run(self: Rc<Flow>) {
        while self.left.get() > 0 {
            let number = self.left.get();
            self.left.set(number - 1);
            match run(&self.mode, "add", json!([number, 1])).await {
                Outcome::Success(value) => {
                    assert_eq!(value, json!(number + 1), "the answer of another run");
                    self.succeeded.set(self.succeeded.get() + 1);
                }
                Outcome::Crashed { message } => {
                    assert!(message.contains("signal 9"), "{message}");
                    self.crashed.set(self.crashed.get() + 1);
                }
                other => panic!("task {number}: {other:?}"),
            }
        }
    }

    /// Kills a child each time `tasks` tasks have ended, at a moment that a seed chooses.
    async fn kill(self: Rc<Flow>, kills: u64, tasks: u64, seed: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut killed = 0;
        for kill in 0..kills {
            while self.ended() < (kill + 1) * tasks / (kills + 2) {
                yield_now().await;
            }
            for _ in 0..random.usize(..50) {
                yield_now().await;
            }
            let pids = self.mode.pids();
            if let Some(pid) = random.choice(pids) {
                // Not yet reaped, as it is in the list: the number is its own.
                kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
                killed += 1;
            }
        }
        killed
    }
}

fn rounds(pipeline: usize, kills: u64, tasks: u64, seed: u64) {
    on_loop(async move {
        let mut options = python(2);
        options.pipeline = pipeline;
        let mode = started(options).await;
        let flow = Rc::new(Flow {
            mode: mode.clone(),
            left: Cell::new(tasks),
            succeeded: Cell::new(0),
            crashed: Cell::new(0),
        });
        let runs: Vec<_> = (0..mode.slots()).map(|_| spawn(flow.clone().run())).collect();
        let killed = spawn(flow.clone().kill(kills, tasks, seed)).await.unwrap();
        for run in gather_all(runs).await {
            run.unwrap();
        }
        assert_eq!(flow.ended(), tasks, "seed {seed}");
        assert!(flow.crashed.get() <= killed, "seed {seed}: {} crashed, {killed} killed", flow.crashed.get());
        mode.stop().await;
        let stats = mode.stats();
        assert_eq!((stats.children, mode.waiting()), (0, 0), "seed {seed}");
        assert!(stats.died <= killed, "seed {seed}: {stats:?}, {killed} killed");
    });
}

#[test]
fn every_task_has_one_outcome_though_children_are_killed() {
    let (kills, tasks) = if std::env::var_os("TIDEGATE_SOAK").is_some() { (100, 10_000) } else { (5, 1_000) };
    for pipeline in [1, 4] {
        let seed = fastrand::u64(..);
        rounds(pipeline, kills, tasks, seed);
    }
}

/// Says to this program, started again, that it is the worker, and where to note its child.
const WORKER: &str = "TIDEGATE_TEST_NOTE";

#[test]
fn children_die_with_a_worker_that_is_killed() {
    if let Some(note) = std::env::var_os(WORKER) {
        on_loop(async move {
            let mode = started(python(1)).await;
            run(&mode, "stubborn", json!([note.to_str().unwrap()])).await;
        });
        return;
    }
    on_loop(async {
        let mut note = Note::new();
        let mut worker = Command::new(std::env::current_exe().unwrap());
        worker.args(["--exact", "kills::children_die_with_a_worker_that_is_killed"]).stdout(Stdio::null());
        let mut worker = worker.env(WORKER, note.path().as_str().unwrap()).kill_on_drop(true).spawn().unwrap();
        let child = note.pid().await;
        worker.kill().unwrap();
        ended(child).await;
        worker.wait().await.unwrap();
    });
}
