//! A world of dice that performs the steps: each may fail before it was done, fail although it was, or be done in part.

use fastrand::Rng;
use jiff::Timestamp;

use super::*;
use crate::broker::TaskState;
use crate::task::TaskId;

fn stored(id: &str) -> Stored {
    let mut envelope = Envelope::new("mail", Vec::new());
    envelope.id = TaskId::from(id);
    Stored { envelope: Arc::new(envelope), retries: 0, crashes: 0, published: Timestamp::UNIX_EPOCH, dead: None }
}

fn note() -> Step {
    Step::Note(Attempt { id: TaskId::from("t"), retries: 0, crashes: 0 })
}

fn result() -> TaskResult {
    let (id, value, ttl) = (TaskId::from("t"), serde_json::Value::Null, Duration::ZERO);
    TaskResult { id, state: TaskState::Succeeded, value, error: None, ttl }
}

/// A task that fails for the last time: everything there is to do.
fn dead() -> Vec<Step> {
    vec![
        Step::Result(result()),
        Step::Follow(["a", "b", "c"].map(|id| (stored(id), Place::Queue)).into()),
        Step::Copy(Box::new((stored("t"), Place::Dead))),
        Step::Ack,
        Step::Release(Arc::clone(&stored("t").envelope)),
    ]
}

/// What happened in the world, in order.
#[derive(Debug, Default)]
struct World {
    log: Vec<String>,
    waits: usize,
}

impl World {
    fn count(&self, what: &str) -> usize {
        self.log.iter().filter(|done| *done == what).count()
    }

    fn at(&self, what: &str) -> usize {
        self.log.iter().position(|done| done == what).unwrap_or_else(|| panic!("{what} is not in {:?}", self.log))
    }

    /// Runs a plan to its end. `fault` says, step by step, what goes wrong.
    fn run(&mut self, mut plan: Plan, mut fault: impl FnMut(usize) -> Fault) {
        for number in 0.. {
            assert!(number < 10_000, "it does not end: {:?}", plan.step());
            let Some(step) = plan.take() else { return };
            let outcome = self.perform(&step, fault(number));
            if let Next::Wait { wait, .. } = plan.handle(step, outcome) {
                assert!((BACKOFF_MIN..=BACKOFF_MAX).contains(&wait));
                self.waits += 1;
            }
        }
    }

    fn perform(&mut self, step: &Step, fault: Fault) -> Outcome {
        let again = || Outcome::Again { reason: "away".to_owned() };
        let name = match step {
            Step::Result(_) => "result",
            Step::Copy(_) => "copy",
            Step::Ack => "ack",
            Step::Requeue => "requeue",
            Step::Note(_) => "note",
            Step::Release(_) => "release",
            Step::Follow(tasks) => {
                let fates = tasks.iter().enumerate().map(|(at, (task, _))| match fault {
                    Fault::None => Some(task),
                    Fault::Part(first) if at < first => Some(task),
                    _ => None,
                });
                let fates: Vec<Fate> = fates
                    .map(|stored| match stored {
                        Some(task) => {
                            self.log.push(format!("follow {}", task.envelope.id));
                            Fate::Stored
                        }
                        None => Fate::Refused { reason: "full".to_owned() },
                    })
                    .collect();
                return Outcome::Fates(fates);
            }
            other => panic!("not in these plans: {other:?}"),
        };
        // The broker takes acks without an answer; what is lost with them comes again as a whole.
        let fault = if matches!(step, Step::Ack | Step::Requeue) { Fault::None } else { fault };
        match fault {
            Fault::None => {
                self.log.push(name.to_owned());
                match step {
                    Step::Copy(_) => Outcome::Fates(vec![Fate::Stored]),
                    _ => Outcome::Done,
                }
            }
            Fault::Part(_) | Fault::Before if matches!(step, Step::Copy(_)) => {
                Outcome::Fates(vec![Fate::Refused { reason: "full".to_owned() }])
            }
            Fault::Part(_) | Fault::Before => again(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// Nothing was done.
    Before,
    /// Of several messages, only the first ones were stored.
    Part(usize),
}

fn check(world: &World, what: &str) {
    for once in ["result", "follow a", "follow b", "follow c", "copy", "ack"] {
        assert_eq!(world.count(once), 1, "{what}: {once} in {:?}", world.log);
    }
    assert_eq!(world.at("copy") + 1, world.at("ack"), "{what}: the ack follows the copy: {:?}", world.log);
    assert!(world.count("release") <= 1);
}

#[test]
fn a_done_step_stays_done_whichever_step_fails_and_however_often() {
    for step in 0..6 {
        for times in [1, 2, 40] {
            for fault in [Fault::Before, Fault::Part(1), Fault::Part(2)] {
                let mut world = World::default();
                world.run(
                    Plan::new(dead()),
                    |number| if (step..step + times).contains(&number) { fault } else { Fault::None },
                );
                check(&world, &format!("step {step}, {times} times {fault:?}"));
            }
        }
    }
}

#[test]
fn a_done_step_stays_done_by_seed() {
    for seed in 0..5_000 {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::default();
        world.run(Plan::new(dead()), |_| match rng.u8(..4) {
            0 => Fault::Before,
            1 => Fault::Part(rng.usize(..3)),
            _ => Fault::None,
        });
        check(&world, &format!("seed {seed}"));
    }
}

#[test]
fn a_note_or_a_release_that_fails_holds_up_nothing() {
    let mut world = World::default();
    world.run(Plan::new([note(), Step::Requeue]), |_| Fault::Before);
    assert_eq!((world.log.as_slice(), world.waits), (&["requeue".to_owned()][..], 0));
    let mut world = World::default();
    let release = Step::Release(Arc::clone(&stored("t").envelope));
    world.run(Plan::new([Step::Ack, release]), |_| Fault::Before);
    assert_eq!((world.log.as_slice(), world.waits), (&["ack".to_owned()][..], 0));
}

fn handle(plan: &mut Plan, outcome: Outcome) -> Next {
    let step = plan.take().expect("there is a step");
    plan.handle(step, outcome)
}

#[test]
fn a_follow_up_that_no_queue_takes_is_left_out_and_a_copy_is_not() {
    let returned = || Outcome::Fates(vec![Fate::Returned { reason: "no queue".to_owned() }]);
    let mut plan = Plan::new([Step::Follow(vec![(stored("a"), Place::Queue)]), Step::Ack]);
    assert_eq!(handle(&mut plan, returned()), Next::Perform);
    assert!(matches!(plan.step(), Some(Step::Ack)));
    let mut plan = Plan::new([Step::Copy(Box::new((stored("t"), Place::Dead))), Step::Ack]);
    assert!(matches!(handle(&mut plan, returned()), Next::Wait { .. }));
    assert!(matches!(plan.step(), Some(Step::Copy(_))));
}

#[test]
fn what_a_step_adds_comes_before_the_rest() {
    let mut plan = Plan::new([note(), Step::Ack]);
    let then = Outcome::Then(vec![Step::Result(result()), Step::Follow(Vec::new())]);
    assert_eq!(handle(&mut plan, then), Next::Perform);
    assert!(matches!(plan.step(), Some(Step::Result(_))));
    handle(&mut plan, Outcome::Done);
    assert!(matches!(plan.step(), Some(Step::Ack)), "an empty step is none: {:?}", plan.step());
}

#[test]
fn a_message_without_an_answer_is_not_taken_for_stored() {
    let mut plan = Plan::new([Step::Copy(Box::new((stored("t"), Place::Dead))), Step::Ack]);
    assert!(matches!(handle(&mut plan, Outcome::Fates(Vec::new())), Next::Wait { .. }));
    assert!(matches!(plan.step(), Some(Step::Copy(_))), "{:?}", plan.step());
}
