//! Publishers of one key on a broker of queue names alone: every order of their steps by seed, a death behind every step.

use std::collections::BTreeMap;

use fastrand::Rng;
use tidegate_seeds::seeds;

use super::*;

/// How long a channel's queue is there unconsumed.
const ALIVE_FOR: Duration = Duration::from_secs(60);

/// How much later than its time a quorum queue is removed.
const QUORUM_LATE: Duration = Duration::from_secs(20);

/// What a run is made of.
#[derive(Debug, Clone, Copy)]
struct Setting {
    publishers: usize,
    /// The number of publishers whose publish is refused: the first ones.
    refused: usize,
    /// The chance in percent that a publisher dies behind a step.
    deaths: u32,
    /// The key vanishes now and then, as if its time were over.
    vanishing: bool,
    /// How long a key lasts.
    hold: Duration,
    /// The key is a quorum queue.
    quorum: bool,
    /// The chance in percent that a request takes up to [`RENEW_AFTER`], or its answer comes that late.
    slow: u32,
}

impl Setting {
    fn of(publishers: usize) -> Setting {
        let hold = Duration::from_secs(1_000_000);
        Setting { publishers, refused: 0, deaths: 0, vanishing: false, hold, quorum: false, slow: 0 }
    }
}

/// As much of RabbitMQ as the protocol uses.
#[derive(Debug)]
struct Model {
    setting: Setting,
    start: Instant,
    now: Instant,
    /// The holder that the key names and when it is removed, if it is there.
    key: Option<(String, Instant)>,
    /// Pending queues, by nonce: when they are removed.
    pending: BTreeMap<String, Instant>,
    /// Queues of open channels, by nonce: when they are removed, unless they are consumed.
    alive: BTreeMap<String, Option<Instant>>,
    /// The publisher that has the lock.
    lock: Option<usize>,
    /// Nonces of those whose task is stored.
    stored: Vec<String>,
    /// How many keys have come to their end.
    ended: usize,
}

impl Model {
    fn new(setting: Setting) -> Model {
        let now = Instant::now();
        let (pending, alive) = (BTreeMap::new(), BTreeMap::new());
        Model { setting, start: now, now, key: None, pending, alive, lock: None, stored: Vec::new(), ended: 0 }
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.now.duration_since(self.start).as_millis() as u64
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        if self.key.take_if(|(_, until)| *until <= now).is_some() {
            self.ended += 1;
        }
        self.pending.retain(|_, until| *until > now);
        self.alive.retain(|_, until| until.is_none_or(|until| until > now));
    }

    fn holder(&self) -> Option<Holder> {
        self.key.as_ref().map(|(holder, _)| Holder::read(holder, false))
    }

    /// Declares the key; a long own name leaves no room for that of the holder.
    fn declare(&mut self, name: &str, cut: bool) -> Answer {
        match &self.key {
            None => {
                let late = if self.setting.quorum { QUORUM_LATE } else { Duration::ZERO };
                self.key = Some((name.to_owned(), self.now + self.setting.hold + late));
            }
            Some((holder, _)) if holder == name => {}
            Some((holder, _)) if cut => return Answer::Held(Holder::read(&holder[..2.min(holder.len())], true)),
            Some((holder, _)) => return Answer::Held(Holder::read(holder, false)),
        }
        Answer::Done
    }

    fn declare_pending(&mut self, nonce: &str) {
        let until = self.now + self.setting.hold + PENDING_MARGIN;
        self.pending.insert(nonce.to_owned(), until);
    }

    /// Three requests, one behind the other; the broker may be held up between the last two.
    fn show(&mut self, nonce: &str, held_up: Duration) -> Answer {
        self.declare_pending(nonce);
        self.alive.insert(nonce.to_owned(), Some(self.now + ALIVE_FOR));
        self.pass(held_up);
        match self.alive.get_mut(nonce) {
            Some(until) => *until = None,
            None => return Answer::Expired,
        }
        Answer::Done
    }

    fn act(&mut self, own: usize, (nonce, id): (&str, &str), action: &Action, rng: &mut Rng) -> Answer {
        match action {
            Action::Show => {
                let slow = rng.u32(..100) < self.setting.slow;
                let held_up = if slow { Duration::from_secs(rng.u64(..120)) } else { Duration::ZERO };
                return self.show(nonce, held_up);
            }
            Action::Renew => self.declare_pending(nonce),
            Action::Claim { until_ms } => {
                return self.declare(&Holder::new(nonce, id, *until_ms).text(), rng.bool());
            }
            Action::Ask => return self.declare(ASKING, false),
            Action::Look { nonce } if self.alive.contains_key(nonce) => return Answer::Pending { alive: true },
            Action::Look { nonce } if self.pending.contains_key(nonce) => return Answer::Pending { alive: false },
            Action::Look { .. } => return Answer::Missing,
            Action::Lock if self.lock.is_some_and(|other| other != own) => return Answer::Busy,
            Action::Lock => self.lock = Some(own),
            Action::Unlock => assert_eq!(self.lock.take(), Some(own)),
            Action::Delete => self.delete_key(),
            Action::Pause { .. } => {}
            Action::Finished(outcome) => unreachable!("{outcome:?}"),
        }
        Answer::Done
    }

    fn delete_key(&mut self) {
        let over = self.holder().is_some_and(|holder| holder.until_ms > 0 && holder.until_ms <= self.wall_ms());
        self.ended += usize::from(over);
        self.key = None;
    }
}

#[derive(Debug, PartialEq)]
enum Step {
    Takes,
    Publishes,
    /// Deletes the pending queue.
    Ends,
    /// Its publish was refused: deletes the key, then the pending queue.
    Frees,
    Over(Option<Outcome>),
    Dead,
}

struct Publisher {
    nonce: String,
    taking: Taking,
    /// The answer that is on its way.
    answer: Option<Answer>,
    /// When its request was sent, if the broker has not read it.
    sent: Option<Instant>,
    /// What the key named when it asked last.
    asked: Option<String>,
    step: Step,
    refused: bool,
}

/// What a run ended with.
struct Ended {
    outcomes: Vec<Step>,
    stored: usize,
    /// Publishers that died after their task was stored, and before that was known.
    doubled: usize,
    /// Keys that came to their end, and keys that were deleted because another one came to its end between check and deletion.
    ended: usize,
    mistaken: usize,
    key: Option<String>,
    /// How often a channel's queue expired before it was consumed, and a pending queue was renewed.
    expired: usize,
    renewed: usize,
}

const ID: &str = "tick@12:00";

/// Runs publishers of one key, all with the same id, in the order of a seed.
fn run(seed: u64, setting: Setting) -> Ended {
    let mut rng = Rng::with_seed(seed);
    let mut model = Model::new(setting);
    let lasts = setting.quorum.then_some(setting.hold);
    let mut publishers: Vec<Publisher> = (0..setting.publishers)
        .map(|number| Publisher {
            nonce: format!("n{number}"),
            taking: Taking::new((model.now, model.wall_ms()), Duration::from_secs(1 << 40), lasts, None),
            answer: None,
            sent: Some(model.now),
            asked: None,
            step: Step::Takes,
            refused: number < setting.refused,
        })
        .collect();
    let (mut doubled, mut steps, mut expired, mut renewed, mut mistaken) = (0, 0, 0, 0, 0);
    loop {
        let live = (0..publishers.len())
            .filter(|number| !matches!(publishers[*number].step, Step::Over(_) | Step::Dead))
            .collect::<Vec<usize>>();
        let Some(own) = rng.choice(live.iter().copied()) else { break };
        steps += 1;
        assert!(steps < 100_000, "seed {seed}: no end");
        // No request is on its way for longer than it may be.
        let latest = live.iter().filter_map(|number| publishers[*number].sent).min().map(|sent| sent + RENEW_AFTER);
        let room = latest.map_or(RENEW_AFTER, |latest| latest.saturating_duration_since(model.now));
        if setting.slow > 0 && !room.is_zero() {
            let slow = rng.u32(..100) < setting.slow;
            let most = if slow { room.as_millis() as u64 } else { 10.min(room.as_millis() as u64) };
            model.pass(Duration::from_millis(rng.u64(..most.max(1))));
        }
        if setting.vanishing && rng.u32(..10) == 0 {
            model.ended += usize::from(model.key.take().is_some());
        }
        let publisher = &mut publishers[own];
        let nonce = publisher.nonce.clone();
        publisher.step = match publisher.step {
            Step::Takes => match (publisher.answer.take(), publisher.taking.poll()) {
                (Some(answer), asked) => {
                    expired += usize::from(answer == Answer::Expired);
                    renewed += usize::from(asked == Action::Renew);
                    publisher.taking.handle(answer, model.now, model.wall_ms());
                    publisher.sent = Some(model.now);
                    Step::Takes
                }
                (None, Action::Finished(outcome)) => {
                    publisher.sent = None;
                    match outcome {
                        Outcome::Taken if publisher.refused => Step::Frees,
                        Outcome::Taken => Step::Publishes,
                        outcome => {
                            if let Outcome::Duplicate(holder) = &outcome {
                                let stored = model.stored.contains(&holder.nonce);
                                assert!(stored, "seed {seed}: a duplicate of {holder:?}, which is not stored");
                            }
                            model.pending.remove(&nonce);
                            model.alive.remove(&nonce);
                            Step::Over(Some(outcome))
                        }
                    }
                }
                (None, action) => {
                    if action == Action::Delete
                        && model.key.as_ref().is_some_and(|(key, _)| Some(key) != publisher.asked.as_ref())
                    {
                        mistaken += 1;
                        assert!(mistaken <= model.ended, "seed {seed}: deletes the key of {:?}", model.holder());
                    }
                    let answer = model.act(own, (&nonce, ID), &action, &mut rng);
                    if matches!(action, Action::Claim { .. }) && answer == Answer::Done {
                        assert_eq!(model.holder().map(|holder| holder.nonce), Some(nonce.clone()));
                    }
                    if action == Action::Ask {
                        publisher.asked = model.key.as_ref().map(|(key, _)| key.clone());
                    }
                    (publisher.answer, publisher.sent) = (Some(answer), None);
                    Step::Takes
                }
            },
            Step::Publishes => {
                model.stored.push(nonce.clone());
                Step::Ends
            }
            // Under the lock, too.
            Step::Frees if model.lock.is_some() => Step::Frees,
            Step::Frees => {
                let holder = model.holder().filter(|holder| holder.is_from(&nonce, ID));
                assert!(holder.is_some() || model.ended > 0, "seed {seed}: the key is another's");
                if holder.is_some() {
                    model.key = None;
                }
                model.pending.remove(&nonce);
                model.alive.remove(&nonce);
                Step::Over(None)
            }
            Step::Ends => {
                model.pending.remove(&nonce);
                model.alive.remove(&nonce);
                Step::Over(Some(Outcome::Taken))
            }
            Step::Over(_) | Step::Dead => unreachable!("it is not live"),
        };
        if !matches!(publisher.step, Step::Over(_)) && rng.u32(..100) < setting.deaths {
            doubled += usize::from(publisher.step == Step::Ends);
            publisher.step = Step::Dead;
            model.alive.remove(&nonce);
            model.lock = model.lock.filter(|owner| *owner != own);
        }
    }
    let outcomes = publishers.into_iter().map(|publisher| publisher.step).collect();
    let (stored, ended, key) = (model.stored.len(), model.ended, model.key.map(|(holder, _)| holder));
    Ended { outcomes, stored, doubled, ended, mistaken, key, expired, renewed }
}

fn count(ended: &Ended, outcome: Option<&Outcome>) -> usize {
    ended.outcomes.iter().filter(|step| matches!(step, Step::Over(over) if over.as_ref() == outcome)).count()
}

#[test]
fn two_takers_one_winner() {
    for seed in seeds(2_000) {
        let publishers = 2 + seed as usize % 3;
        let ended = run(seed, Setting::of(publishers));
        assert_eq!(ended.stored, 1, "seed {seed}");
        assert_eq!(count(&ended, Some(&Outcome::Taken)), 1, "seed {seed}");
        let duplicates =
            |step: &&Step| matches!(step, Step::Over(Some(Outcome::Duplicate(holder))) if holder.is_of("tick@12:00"));
        assert_eq!(ended.outcomes.iter().filter(duplicates).count(), publishers - 1, "seed {seed}");
    }
}

#[test]
fn an_orphan_is_taken_over_whatever_step_its_publisher_died_behind() {
    let (mut died, mut doubled) = (0, 0);
    let rounds = seeds(20_000);
    let replay = rounds.is_replay();
    for seed in rounds {
        let ended = run(seed, Setting { deaths: 5, ..Setting::of(2 + seed as usize % 4) });
        let survived = ended.outcomes.iter().any(|step| matches!(step, Step::Over(_)));
        died += usize::from(ended.outcomes.contains(&Step::Dead));
        doubled += usize::from(ended.stored > 1);
        // No loss, and nothing doubled but by a death between the confirm and what tells of it.
        assert!(!survived || ended.stored >= 1, "seed {seed}: lost");
        assert!(ended.stored <= 1 + ended.doubled, "seed {seed}: stored {} times", ended.stored);
    }
    assert!(replay || (died > 1_000 && doubled > 10), "{died} with deaths, {doubled} doubled: the seeds try nothing");
}

#[test]
fn a_key_that_expires_between_any_two_steps_loses_nothing() {
    for seed in seeds(20_000) {
        let ended = run(seed, Setting { deaths: 2, vanishing: true, ..Setting::of(3) });
        let survived = ended.outcomes.iter().any(|step| matches!(step, Step::Over(_)));
        assert!(!survived || ended.stored >= 1, "seed {seed}: lost");
    }
}

/// Each queue expires between requests now and then: that of a channel before it is consumed, a key while its task is published,
/// the pending queue of a publisher that waits.
#[test]
fn a_slow_broker_hides_no_publisher_and_no_death() {
    let (mut expired, mut renewed, mut ended, mut died) = (0, 0, 0, 0);
    let rounds = seeds(20_000);
    let replay = rounds.is_replay();
    for seed in rounds {
        let holds = [Duration::from_secs(1), Duration::from_secs(100), Duration::from_secs(3_600)];
        let setting = Setting {
            refused: usize::from(seed % 5 == 0),
            deaths: if seed % 2 == 0 { 5 } else { 0 },
            hold: holds[seed as usize % 3],
            quorum: seed / 2 % 2 == 0,
            slow: 10,
            ..Setting::of(2 + seed as usize % 4)
        };
        let over = run(seed, setting);
        let unheard = |step: &Step| matches!(step, Step::Over(Some(Outcome::Busy | Outcome::Unshown)));
        assert!(!over.outcomes.iter().any(unheard), "seed {seed}: {:?}", over.outcomes);
        let published = over.outcomes.iter().any(|step| matches!(step, Step::Over(Some(_))));
        assert!(!published || over.stored > 0, "seed {seed}: lost");
        let most = 1 + over.doubled + over.ended + over.mistaken;
        assert!(over.stored <= most, "seed {seed}: stored {} times", over.stored);
        expired += over.expired;
        renewed += over.renewed;
        ended += over.ended;
        died += usize::from(over.outcomes.contains(&Step::Dead));
    }
    let tried = [expired, renewed, ended, died];
    assert!(replay || tried.iter().all(|tried| *tried > 1_000), "{tried:?}: the seeds try too little");
}

#[test]
fn a_publish_that_cannot_be_shown_is_given_up_in_time() {
    let (start, patience) = (Instant::now(), Duration::from_secs(100));
    let mut taking = Taking::new((start, 0), patience, None, None);
    for at in [60, 99] {
        assert_eq!(taking.poll(), Action::Show);
        taking.handle(Answer::Expired, start + Duration::from_secs(at), 0);
    }
    assert_eq!(taking.poll(), Action::Show);
    taking.handle(Answer::Expired, start + patience, 0);
    assert_eq!(taking.poll(), Action::Finished(Outcome::Unshown));
    assert_eq!(taking.shown(), None);
}

#[test]
fn the_next_key_of_a_publish_is_not_shown_again_and_renewed_in_time() {
    let (start, patience) = (Instant::now(), Duration::from_secs(3_600));
    let mut taking = Taking::new((start, 0), patience, None, None);
    assert_eq!(taking.poll(), Action::Show);
    taking.handle(Answer::Done, start + Duration::from_secs(1), 0);
    let next = |at| Taking::new((start + at, 0), patience, None, taking.shown());
    assert_eq!(next(RENEW_AFTER - Duration::from_secs(1)).poll(), Action::Claim { until_ms: 0 });
    let mut late = next(RENEW_AFTER);
    assert_eq!(late.poll(), Action::Renew);
    late.handle(Answer::Done, start + RENEW_AFTER + Duration::from_secs(1), 0);
    assert_eq!(late.poll(), Action::Claim { until_ms: 0 });
}

/// A key that another publisher had for long is not over when it is claimed.
#[test]
fn the_end_of_a_key_counts_from_its_claim() {
    let start = Instant::now();
    let lasts = Some(Duration::from_secs(10));
    let mut taking = Taking::new((start, 1_000), Duration::from_secs(60), lasts, Some(Shown::at(start)));
    assert_eq!(taking.poll(), Action::Claim { until_ms: 11_000 });
    taking.handle(Answer::Held(Holder::new("n", "id", 0)), start, 1_000);
    taking.handle(Answer::Pending { alive: true }, start, 1_000);
    taking.handle(Answer::Done, start + Duration::from_secs(20), 21_000);
    assert_eq!(taking.poll(), Action::Claim { until_ms: 31_000 });
}

#[test]
fn a_refused_publish_frees_its_key() {
    for seed in seeds(2_000) {
        let ended = run(seed, Setting { refused: 2, ..Setting::of(4) });
        // Those whose publish is refused may also find that the task of another is stored.
        assert_eq!(ended.stored, 1, "seed {seed}");
        let ended = run(seed, Setting { refused: 3, ..Setting::of(3) });
        assert_eq!((ended.stored, ended.key), (0, None), "seed {seed}");
    }
}

#[test]
fn a_publisher_that_hangs_is_waited_for_and_then_named_busy() {
    let (start, patience) = (Instant::now(), Duration::from_secs(1));
    let mut taking = Taking::new((start, 0), patience, None, None);
    let mut now = start;
    let outcome = loop {
        let answer = match taking.poll() {
            Action::Show => Answer::Done,
            Action::Claim { .. } => Answer::Held(Holder::new("n", "id", 0)),
            Action::Look { .. } => Answer::Pending { alive: true },
            Action::Pause { until } => {
                assert!(until > now && until <= start + patience + PAUSE);
                now = until;
                Answer::Done
            }
            Action::Finished(outcome) => break outcome,
            other => panic!("{other:?}"),
        };
        taking.handle(answer, now, 0);
    };
    assert_eq!(outcome, Outcome::Busy);
}

#[test]
fn holders_are_read_as_they_are_written() {
    for id in ["", "a", "a:b:c", "page-0123"] {
        let holder = Holder::new("n0", id, 1_700_000_000_000);
        assert_eq!(Holder::read(&holder.text(), false), holder);
        assert!(holder.is_of(id) && !holder.is_of("other"));
    }
    assert_eq!(Holder::read(ASKING, false).nonce, "");
    let cut = Holder::read("n0:0:page-01", true);
    assert!(cut.is_of("page-0123") && !cut.is_of("page-1"));
}

#[test]
fn a_key_whose_time_is_over_is_taken_over_by_the_clock_of_the_taker() {
    for (wall_ms, over) in [(0, false), (999, false), (1_000, true), (61_000, true)] {
        let start = Instant::now();
        let mut taking = Taking::new((start, wall_ms), Duration::ZERO, None, Some(Shown::at(start)));
        assert_eq!(taking.poll(), Action::Claim { until_ms: 0 });
        taking.handle(Answer::Held(Holder::new("n", "id", 1_000)), start, wall_ms);
        let expected = if over { Action::Lock } else { Action::Look { nonce: "n".into() } };
        assert_eq!(taking.poll(), expected, "at {wall_ms}");
    }
}
