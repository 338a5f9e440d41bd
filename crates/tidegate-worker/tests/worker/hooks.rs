//! Middleware.

use std::cell::RefCell;
use std::rc::Rc;

use tidegate_worker::{Job, Middleware, Outcome, Settled, Stop, Task, TaskInfo, TaskState, Verdict};

use crate::support::{Yard, handlers, simulate, until};

struct Noted {
    name: &'static str,
    log: Rc<RefCell<Vec<String>>>,
}

impl Noted {
    fn note(&self, what: &str) {
        self.log.borrow_mut().push(format!("{} {what}", self.name));
    }
}

impl Middleware for Noted {
    fn received(&self, task: &TaskInfo) -> Result<(), Outcome> {
        self.note("received");
        match &*task.name {
            "fail" => Err(Outcome::Rejected { reason: "not here".into() }),
            _ => Ok(()),
        }
    }

    fn starting(&self, _task: &TaskInfo, job: &mut Job) {
        self.note("starting");
        job.task.args[0] = 40.into();
    }

    fn ended(&self, _task: &TaskInfo, outcome: &mut Outcome) {
        self.note("ended");
        if let Outcome::Success(value) = outcome {
            *value = (value.as_i64().unwrap() * 10).into();
        }
    }

    fn settled(&self, _task: &TaskInfo, verdict: &Verdict, settled: Settled) {
        self.note(&format!("settled {verdict:?} {settled:?}"));
    }
}

#[test]
fn hooks_are_called_around_every_step_and_may_change_what_passes() {
    simulate(|| async {
        let log = Rc::new(RefCell::new(Vec::new()));
        let outer = Rc::new(Noted { name: "outer", log: Rc::clone(&log) });
        let inner = Rc::new(Noted { name: "inner", log: Rc::clone(&log) });
        let yard = Yard::new(handlers(), |settings| settings.middleware = vec![outer, inner]);
        assert_eq!(yard.run(Task::new("add").arg(1).arg(2)).await.value, 4_200);
        until(|| yard.worker.stats().settled == 1).await;
        let steps = [
            "outer received",
            "inner received",
            "outer starting",
            "inner starting",
            "inner ended",
            "outer ended",
            "inner settled Ack Done",
            "outer settled Ack Done",
        ];
        assert_eq!(*log.borrow(), steps);

        let refused = yard.run(Task::new("fail")).await;
        assert_eq!((refused.state, refused.error.unwrap().message.as_str()), (TaskState::Failed, "not here"));
        assert_eq!(yard.worker.stats().running_peak, 1);
        yard.stop(Stop::Warm).await;
    });
}
