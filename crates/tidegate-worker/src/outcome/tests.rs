use super::*;
use crate::retry::Backoff;

fn error() -> TaskError {
    TaskError { kind: "ValueError".into(), message: "no".into(), traceback: Some("line 1".into()) }
}

fn outcomes() -> Vec<Outcome> {
    vec![
        Outcome::Success(7.into()),
        Outcome::Failure(error()),
        Outcome::Retry { after: Some(Duration::from_secs(9)), error: error() },
        Outcome::Retry { after: None, error: error() },
        Outcome::TimedOut { limit: Duration::from_secs(5) },
        Outcome::Crashed { message: "killed by SIGKILL".into() },
        Outcome::Cancelled,
        Outcome::Revoked,
        Outcome::Rejected { reason: "no such handler".into() },
        Outcome::Expired,
        Outcome::Poisoned { crashes: 3 },
    ]
}

fn policy(retries_max: u32, crashes_max: u32, result_ttl: Duration) -> Policy {
    let backoff = Backoff { min: Duration::from_secs(2), max: Duration::from_secs(60) };
    Policy { retries_max, crashes_max, backoff, result_ttl, ..Policy::default() }
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const TTL: Duration = Duration::from_secs(60);

fn seconds(count: i64) -> Timestamp {
    Timestamp::from_second(count).unwrap()
}

fn decided(outcome: Outcome, retries: u32, crashes: u32) -> Decision {
    let policy = policy(2, 2, TTL);
    let given = Circumstances { policy: &policy, retries, crashes, now: NOW, chance: 1.0 };
    decide(&TaskId::from("t"), outcome, given)
}

/// The table once more, as what each row promises rather than how it is worked out.
#[test]
fn every_outcome_with_every_count_keeps_its_promise() {
    for outcome in outcomes() {
        for retries in 0..5 {
            for crashes in 0..5 {
                let Decision { verdict, result } = decided(outcome.clone(), retries, crashes);
                let state = result.as_ref().map(|result| result.state);
                let place = format!("{outcome:?} after {retries} retries, {crashes} crashes: {verdict:?}, {state:?}");
                let left = match outcome.kind() {
                    OutcomeKind::Crashed => crashes + 1 < 2,
                    _ => retries < 2,
                };
                let (fits, expected) = match outcome.kind() {
                    OutcomeKind::Success => (verdict == Verdict::Ack, Some(TaskState::Succeeded)),
                    OutcomeKind::Revoked => (verdict == Verdict::Ack, Some(TaskState::Revoked)),
                    OutcomeKind::Expired => (verdict == Verdict::Ack, Some(TaskState::Expired)),
                    OutcomeKind::Cancelled => (verdict == Verdict::Return, None),
                    OutcomeKind::Rejected | OutcomeKind::Poisoned => {
                        (matches!(verdict, Verdict::Dead { .. }), Some(TaskState::Failed))
                    }
                    OutcomeKind::Crashed if left => {
                        (matches!(verdict, Verdict::Crash { .. }), Some(TaskState::Retrying))
                    }
                    _ if left => (matches!(verdict, Verdict::Retry { .. }), Some(TaskState::Retrying)),
                    _ => (matches!(verdict, Verdict::Dead { .. }), Some(TaskState::Failed)),
                };
                assert!(fits && state == expected, "{place}");
                // What leaves the queue for good has a final result; what stays has none.
                let leaves = matches!(verdict, Verdict::Ack | Verdict::Dead { .. });
                assert_eq!(leaves, state.is_some_and(TaskState::is_final), "{place}");
            }
        }
    }
}

#[test]
fn a_handler_that_says_when_is_taken_at_its_word() {
    let asked = Outcome::Retry { after: Some(Duration::from_secs(9)), error: error() };
    assert_eq!(decided(asked, 0, 0).verdict, Verdict::Retry { at: seconds(9) });
    let did_not_say = Outcome::Retry { after: None, error: error() };
    assert_eq!(decided(did_not_say, 1, 0).verdict, Verdict::Retry { at: seconds(4) });
}

#[test]
fn a_crash_costs_no_retry_and_backs_off_by_its_own_count() {
    let policy = policy(0, 3, TTL);
    let crashed = |crashes| {
        let given = Circumstances { policy: &policy, retries: 7, crashes, now: NOW, chance: 1.0 };
        decide(&TaskId::from("t"), Outcome::Crashed { message: "killed".into() }, given).verdict
    };
    assert_eq!(crashed(0), Verdict::Crash { at: seconds(2) });
    assert_eq!(crashed(1), Verdict::Crash { at: seconds(4) });
    assert!(matches!(crashed(2), Verdict::Dead { .. }));
}

#[test]
fn a_dead_letter_says_why_where_and_how_often() {
    let Verdict::Dead { reason, traceback } = decided(Outcome::Failure(error()), 2, 0).verdict else { panic!() };
    assert_eq!((reason.as_str(), traceback.as_deref()), ("ValueError: no; tried 3 times", Some("line 1")));
    let crashed = Outcome::Crashed { message: "killed by SIGKILL".into() };
    let Verdict::Dead { reason, .. } = decided(crashed, 0, 1).verdict else { panic!() };
    assert_eq!(reason, "killed by SIGKILL; crashed 2 times");
}

#[test]
fn results_that_are_not_kept_are_not_made() {
    let policy = policy(0, 1, Duration::ZERO);
    let given = Circumstances { policy: &policy, retries: 0, crashes: 0, now: NOW, chance: 0.0 };
    for outcome in outcomes() {
        assert_eq!(decide(&TaskId::from("t"), outcome, given).result, None);
    }
}

#[test]
fn what_expired_or_killed_too_many_workers_is_not_run() {
    let policy = policy(2, 2, TTL);
    let given = |crashes| Circumstances { policy: &policy, retries: 0, crashes, now: seconds(10), chance: 0.0 };
    assert_eq!(before_run(None, given(1)), None);
    assert_eq!(before_run(Some(seconds(11)), given(1)), None);
    assert_eq!(before_run(Some(seconds(10)), given(1)), Some(Outcome::Expired));
    assert_eq!(before_run(None, given(2)), Some(Outcome::Poisoned { crashes: 2 }));
}

#[test]
fn a_retry_is_put_off_for_a_week_at_most() {
    let asks = |after| {
        let error = TaskError { kind: "E".into(), message: "m".into(), traceback: None };
        decided(Outcome::Retry { after: Some(after), error }, 0, 0).verdict
    };
    assert_eq!(asks(Duration::from_secs(604_800)), Verdict::Retry { at: seconds(604_800) });
    assert_eq!(asks(Duration::from_secs(604_801)), Verdict::Retry { at: seconds(604_800) });
    assert_eq!(asks(Duration::MAX), Verdict::Retry { at: seconds(604_800) });
}
