use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use super::*;

const GRACE: Duration = Duration::from_secs(5);

fn rules(depth: usize) -> Rules {
    Rules { ready_limit: Duration::from_secs(30), grace: GRACE, max_tasks: None, depth, max_frame: 1 << 20 }
}

fn frame(message: &Value) -> Vec<u8> {
    let content = message.to_string();
    [&u32::try_from(content.len()).unwrap().to_be_bytes()[..], content.as_bytes()].concat()
}

/// An overseer with a clock of its own, and a child that reads whatever is written before it says something.
struct Case {
    overseer: Overseer<u32>,
    now: Instant,
    read: Vec<Value>,
}

impl Case {
    fn new(rules: Rules) -> Case {
        let now = Instant::now();
        Case { overseer: Overseer::new(rules, now), now, read: Vec::new() }
    }

    fn ready(rules: Rules) -> Case {
        let mut case = Case::new(rules);
        case.hear(&json!({"type": "ready", "version": 1, "interrupt": true}));
        case
    }

    fn hear(&mut self, message: &Value) -> Vec<Action<u32>> {
        self.read();
        self.hear_blindly(message)
    }

    /// From a child that has read nothing since the last time.
    fn hear_blindly(&mut self, message: &Value) -> Vec<Action<u32>> {
        self.overseer.receive(&frame(message));
        while self.overseer.next_message(self.now) {}
        self.actions()
    }

    fn actions(&mut self) -> Vec<Action<u32>> {
        std::iter::from_fn(|| self.overseer.next_action()).collect()
    }

    /// Lets time pass up to the next deadline.
    fn wait(&mut self) -> Vec<Action<u32>> {
        self.now = self.overseer.deadline().expect("something is due");
        self.overseer.tick(self.now);
        self.actions()
    }

    fn assign(&mut self, key: u32, soft: Option<u64>, hard: Option<u64>) -> u64 {
        let limits = (soft.map(Duration::from_secs), hard.map(Duration::from_secs));
        self.overseer.assign(key, &Task::new("task"), limits, self.now).unwrap()
    }

    fn done(&mut self, run: u64) -> Vec<Action<u32>> {
        self.hear(&json!({"type": "done", "run": run, "value": run}))
    }

    fn exited(&mut self) -> Vec<Action<u32>> {
        self.overseer.exited("was killed by signal 9", "last words");
        self.actions()
    }

    /// The child reads what there is.
    fn read(&mut self) {
        let mut frames = super::super::frame::Frames::new(1 << 20);
        let output = self.overseer.output().to_vec();
        self.overseer.wrote(output.len());
        frames.push(&output);
        while let Some(range) = frames.next().unwrap() {
            self.read.push(serde_json::from_slice(frames.content(range)).unwrap());
        }
    }

    /// What the child has read since this was last asked.
    fn said(&mut self) -> Vec<Value> {
        self.read();
        std::mem::take(&mut self.read)
    }
}

fn crashed(key: u32) -> Action<u32> {
    let message = "its child was killed by signal 9; its last words:\nlast words".to_owned();
    Action::Finish(key, Outcome::Crashed { message })
}

#[test]
fn limits_count_from_when_a_run_is_the_first() {
    let mut case = Case::ready(rules(2));
    let first = case.assign(1, Some(10), Some(20));
    case.assign(2, Some(10), Some(20));
    assert_eq!(case.said().len(), 3);
    let start = case.now;
    assert_eq!(case.wait(), [Action::Poke]);
    assert_eq!(case.said(), [json!({"type": "soft", "run": first})]);
    case.now = start + Duration::from_secs(19);
    assert_eq!(case.done(first), [Action::Finish(1, Outcome::Success(json!(1)))]);
    assert_eq!(case.wait(), [Action::Poke]);
    assert_eq!(case.now - start, Duration::from_secs(29));
    assert_eq!(case.wait(), [Action::Terminate]);
    assert_eq!(case.wait(), [Action::Kill]);
    assert_eq!(case.now - start, Duration::from_secs(39) + GRACE);
    assert_eq!(case.exited(), [Action::Finish(2, Outcome::TimedOut { limit: Duration::from_secs(20) })]);
    assert_eq!(case.overseer.deadline(), None);
}

#[test]
fn of_the_runs_of_a_dead_child_only_the_first_has_crashed() {
    let mut case = Case::ready(rules(3));
    for key in 1..=3 {
        case.assign(key, None, None);
    }
    assert_eq!(case.exited(), [Action::GiveBack(3), Action::GiveBack(2), crashed(1)]);
}

#[test]
fn what_was_answered_before_the_death_counts() {
    let mut case = Case::ready(rules(2));
    let first = case.assign(1, None, None);
    case.assign(2, None, None);
    assert_eq!(case.done(first), [Action::Finish(1, Outcome::Success(json!(1)))]);
    assert_eq!(case.exited(), [crashed(2)]);
}

#[test]
fn a_late_answer_does_not_undo_a_limit() {
    let mut case = Case::ready(rules(1));
    let run = case.assign(1, None, Some(1));
    assert_eq!(case.wait(), [Action::Terminate]);
    let limit = Duration::from_secs(1);
    assert_eq!(case.done(run), [Action::Finish(1, Outcome::TimedOut { limit })]);
    assert_eq!(case.exited(), []);
}

#[test]
fn who_was_begun_by_a_child_that_was_to_end_for_another_is_not_to_blame() {
    let mut case = Case::ready(rules(2));
    let first = case.assign(1, None, None);
    case.assign(2, None, None);
    case.overseer.stop_run(first, StopReason::Revoked, case.now);
    assert_eq!(case.actions(), [Action::Terminate]);
    assert_eq!(case.done(first), [Action::Finish(1, Outcome::Revoked)]);
    assert_eq!(case.exited(), [Action::GiveBack(2)]);
}

#[test]
fn one_that_waits_is_asked_back_and_ends_the_child_only_if_it_was_begun() {
    for begun in [false, true] {
        let mut case = Case::ready(rules(2));
        let (first, second) = (case.assign(1, None, None), case.assign(2, None, None));
        case.said();
        case.overseer.stop_run(second, StopReason::Revoked, case.now);
        assert_eq!(case.actions(), [Action::Poke]);
        assert_eq!(case.said(), [json!({"type": "recall", "run": second})]);
        if begun {
            let finished = Action::Finish(1, Outcome::Success(json!(1)));
            assert_eq!(case.done(first), [finished, Action::Terminate]);
            assert_eq!(case.exited(), [Action::Finish(2, Outcome::Revoked)]);
        } else {
            let returned = case.hear(&json!({"type": "returned", "run": second}));
            assert_eq!(returned, [Action::Finish(2, Outcome::Revoked)]);
            assert_eq!(case.done(first), [Action::Finish(1, Outcome::Success(json!(1)))]);
        }
    }
}

/// The run ends with its child, which is replaced for breaking the protocol, and is given to no other child: there its time
/// limits would begin anew.
#[track_caller]
fn ends_with_its_child(mut case: Case, actions: &[Action<u32>], fault: &str) {
    assert_eq!((actions, case.overseer.fault()), (&[Action::Terminate][..], Some(fault)));
    assert_eq!(case.overseer.room(), 0);
    let ends = case.exited();
    let [Action::Finish(1, Outcome::Crashed { message })] = &ends[..] else { panic!("{ends:?}") };
    assert!(message.starts_with(&format!("its child broke the protocol: {fault}")), "{message}");
}

#[test]
fn a_run_that_was_not_recalled_cannot_be_given_back() {
    let mut case = Case::ready(rules(1));
    let run = case.assign(1, None, Some(1));
    let actions = case.hear(&json!({"type": "returned", "run": run}));
    ends_with_its_child(case, &actions, "it gave back run 1, which was not recalled");

    // Nor one whose recall it cannot have read.
    let mut case = Case::ready(rules(2));
    let (first, second) = (case.assign(2, None, None), case.assign(1, None, None));
    case.read();
    case.overseer.stop_run(second, StopReason::Revoked, case.now);
    assert_eq!(case.actions(), [Action::Poke]);
    let actions = case.hear_blindly(&json!({"type": "returned", "run": second}));
    assert_eq!(actions, [Action::Terminate]);
    assert_eq!(case.overseer.fault(), Some("it gave back run 2, which was not recalled"));
    assert_eq!(case.exited().len(), 2, "{first} and {second} have one end each");
}

#[test]
fn an_answer_before_the_run_was_sent_is_a_fault() {
    for kind in ["done", "failed", "retry", "soft-limit", "rejected"] {
        let mut case = Case::ready(rules(1));
        case.read();
        let run = case.assign(1, None, Some(1));
        let unread = case.overseer.output().len();
        // All but the last byte.
        case.overseer.wrote(unread - 1);
        let actions = case.hear_blindly(&json!({"type": kind, "run": run}));
        ends_with_its_child(case, &actions, "it answered run 1 before that was sent to it");
    }
}

#[test]
fn an_answer_without_any_run_replaces_the_child() {
    for kind in ["done", "returned"] {
        let mut case = Case::ready(rules(1));
        assert_eq!(case.hear(&json!({"type": kind, "run": 1})), [Action::Terminate]);
        assert_eq!(case.overseer.fault(), Some("it answered run 1, but none was due"));
        assert_eq!((case.overseer.room(), case.exited()), (0, vec![]));
    }
}

#[test]
fn a_second_answer_is_a_fault_and_does_not_undo_the_first() {
    for kind in ["done", "returned", "failed"] {
        let mut case = Case::ready(rules(1));
        let run = case.assign(1, None, None);
        assert_eq!(case.done(run), [Action::Finish(1, Outcome::Success(json!(1)))]);
        assert_eq!(case.hear(&json!({"type": kind, "run": run})), [Action::Terminate]);
        assert_eq!(case.exited(), []);
    }
}

#[test]
fn an_answer_after_a_run_was_stopped_does_not_change_its_end() {
    for (reason, outcome) in [(StopReason::Revoked, Outcome::Revoked), (StopReason::Stopping, Outcome::Cancelled)] {
        for kind in ["done", "retry", "returned"] {
            let mut case = Case::ready(rules(1));
            let run = case.assign(1, None, None);
            case.overseer.stop_run(run, reason, case.now);
            assert_eq!(case.actions(), [Action::Terminate]);
            let mut ends = case.hear(&json!({"type": kind, "run": run}));
            ends.extend(case.exited());
            assert_eq!(ends, [Action::Finish(1, outcome.clone())], "{kind}");
        }
    }
}

#[test]
fn a_child_that_never_reads_is_ended_by_the_limit() {
    let mut case = Case::new(rules(2));
    case.hear_blindly(&json!({"type": "ready", "version": 1}));
    case.assign(1, Some(1), Some(2));
    case.assign(2, None, None);
    assert_eq!(case.wait(), []);
    assert_eq!(case.wait(), [Action::Terminate]);
    assert_eq!(case.wait(), [Action::Kill]);
    let timed_out = Action::Finish(1, Outcome::TimedOut { limit: Duration::from_secs(2) });
    assert_eq!(case.exited(), [Action::GiveBack(2), timed_out]);
}

#[test]
fn a_child_without_signals_is_never_poked() {
    let mut case = Case::new(rules(1));
    case.hear(&json!({"type": "ready", "version": 1}));
    case.assign(1, Some(1), None);
    assert_eq!(case.wait(), []);
    assert_eq!(case.said().last().unwrap()["type"], "soft");
}

#[test]
fn a_retiring_child_takes_no_more_and_ends_when_it_is_done() {
    let mut case = Case::ready(Rules { max_tasks: Some(2), ..rules(4) });
    assert_eq!(case.overseer.room(), 2);
    let (first, second) = (case.assign(1, None, None), case.assign(2, None, None));
    assert_eq!(case.overseer.room(), 0);
    assert_eq!(case.done(first).len(), 1);
    assert_eq!(case.done(second).last(), Some(&Action::CloseInput));
    assert_eq!(case.wait(), [Action::Terminate]);
    assert_eq!(case.wait(), [Action::Kill]);
    assert_eq!(case.wait(), [Action::Abandon]);
    assert!(case.overseer.is_ending());
    assert_eq!(case.overseer.deadline(), None);
}

#[test]
fn who_is_not_ready_in_time_and_who_hangs_up_is_ended() {
    let mut case = Case::new(rules(1));
    assert_eq!(case.overseer.room(), 0);
    assert_eq!(case.wait(), [Action::Terminate]);
    assert!(case.overseer.fault().unwrap().contains("not ready within 30s"));

    let mut case = Case::ready(rules(1));
    case.assign(1, None, None);
    case.overseer.input_ended(case.now);
    assert_eq!(case.actions(), []);
    assert_eq!(case.wait(), [Action::Terminate]);
    let [Action::Finish(1, Outcome::Crashed { message })] = &case.exited()[..] else { panic!("no crash") };
    assert!(message.contains("it closed its socket and went on"), "{message}");
}

#[test]
fn a_stop_cancels_what_there_is() {
    let mut case = Case::ready(rules(2));
    case.assign(1, None, None);
    case.assign(2, None, None);
    case.overseer.shut(case.now);
    assert_eq!(case.actions(), [Action::Terminate]);
    let cancelled = |key| Action::Finish(key, Outcome::Cancelled);
    assert_eq!(case.exited(), [cancelled(2), cancelled(1)]);
    let mut idle = Case::ready(rules(2));
    idle.overseer.shut(idle.now);
    assert_eq!(idle.actions(), [Action::CloseInput]);
}

/// A child that does what a seed says: answers, returns, garbage, silence, death, at any moment.
fn random_life(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut case = Case::ready(Rules { max_tasks: random.bool().then_some(20), ..rules(random.usize(1..5)) });
    let mut open: BTreeMap<u64, u32> = BTreeMap::new();
    let (mut given, mut ended) = (0, HashSet::new());
    let mut take = |actions: Vec<Action<u32>>, seed: u64| {
        for action in actions {
            if let Action::Finish(key, _) | Action::GiveBack(key) = action {
                assert!(ended.insert(key), "seed {seed}: run {key} has two ends");
            }
        }
        ended.len()
    };
    for _ in 0..random.usize(1..60) {
        let actions = match random.u32(..100) {
            0..40 if case.overseer.room() > 0 => {
                given += 1;
                let limit = |random: &mut fastrand::Rng| random.bool().then(|| random.u64(1..10));
                let (soft, hard) = (limit(&mut random), limit(&mut random));
                open.insert(case.assign(given, soft, hard), given);
                Vec::new()
            }
            40..65 => match open.pop_first() {
                Some((run, _)) => case.done(run),
                None => Vec::new(),
            },
            65..72 => {
                let message = json!({"type": "returned", "run": open.pop_last().map_or(7, |(run, _)| run)});
                if random.bool() { case.hear(&message) } else { case.hear_blindly(&message) }
            }
            72..82 => {
                let run = open.keys().nth(random.usize(..open.len().max(1))).copied().unwrap_or(7);
                case.overseer.stop_run(run, StopReason::Revoked, case.now);
                case.actions()
            }
            82..92 if case.overseer.deadline().is_some() => case.wait(),
            92..94 => case.hear_blindly(&json!({"type": "done", "run": random.u64(..100)})),
            94..95 => {
                case.overseer.receive(&[random.u8(..), random.u8(..), random.u8(..), random.u8(..), 0]);
                while case.overseer.next_message(case.now) {}
                case.actions()
            }
            95..96 => {
                case.overseer.retire(case.now);
                case.actions()
            }
            96..97 => {
                case.overseer.input_ended(case.now);
                case.actions()
            }
            _ => Vec::new(),
        };
        take(actions, seed);
    }
    let last = case.exited();
    let ends = take(last, seed);
    assert_eq!(ends, given as usize, "seed {seed}: every run has one end");
    assert_eq!((case.overseer.deadline(), case.overseer.room()), (None, 0), "seed {seed}");
}

#[test]
fn every_run_has_exactly_one_end_whatever_the_child_does() {
    let rounds = if std::env::var_os("TIDEGATE_SOAK").is_some() { 200_000 } else { 2_000 };
    for seed in tidegate_seeds::seeds(rounds) {
        random_life(seed);
    }
}
