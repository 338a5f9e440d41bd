//! Schedules on several workers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::sleep;
use tidegate_worker::{Coroutines, HandlerError, Handlers, MemoryBroker, Stop, TaskContext};

use crate::support::{Yard, simulate};

#[test]
fn every_occurrence_is_run_once_however_many_workers_there_are() {
    simulate(|| async {
        let broker = MemoryBroker::new();
        let runs = Rc::new(RefCell::new(Vec::new()));
        let handlers = Handlers::new().task("beat", {
            let runs = Rc::clone(&runs);
            move |context: TaskContext, text: String| {
                runs.borrow_mut().push(context.id().to_string());
                async move { Ok::<_, HandlerError>(text) }
            }
        });
        let workers: Vec<Yard> = (0..3)
            .map(|_| {
                let mode = Rc::new(Coroutines::new(handlers.clone()));
                Yard::on(&broker, mode, |settings| {
                    let quarter = "quarter: */15 * * * * => beat [\"tick\"]".parse().unwrap();
                    let never = "never: 0 0 30 2 * => beat".parse().unwrap();
                    settings.schedules = vec![quarter, never];
                })
            })
            .collect();
        sleep(Duration::from_secs(3_600 + 60)).await;
        let mut seen = runs.borrow().clone();
        seen.sort();
        let expected = ["00:15", "00:30", "00:45", "01:00"].map(|time| format!("quarter@2026-01-01T{time}:00Z"));
        assert_eq!(seen, expected);
        for worker in workers {
            worker.stop(Stop::Warm).await;
        }
    });
}
