//! A broker of dice: every attempt is acked, refused, returned, lost or not answered by a seed, in virtual time.

use super::*;

const ALL: Terms = Terms {
    patience: Some(Duration::from_secs(30)),
    silence: None,
    again_after_loss: true,
    declares: true,
    until_known: false,
};

fn start() -> Instant {
    Instant::now()
}

fn to_mail(count: usize, terms: Terms, now: Instant) -> Publisher {
    Publisher::new((0..count).map(|_| ("", "mail")), terms, now, 7)
}

/// Sends everything that may be sent now.
fn sent(publisher: &mut Publisher, now: Instant) -> Vec<(usize, u32)> {
    let mut all = Vec::new();
    loop {
        match publisher.poll(now) {
            Action::Send { index, attempt } => all.push((index, attempt)),
            Action::Warn { .. } => {}
            _ => return all,
        }
    }
}

fn refused(fate: &Fate) -> bool {
    matches!(fate, Fate::Refused { reason } if reason == "queue mail is full")
}

#[test]
fn half_of_a_batch_is_stored_and_only_the_other_half_is_repeated() {
    let mut now = start();
    let mut publisher = to_mail(1_000, ALL, now);
    let first = sent(&mut publisher, now);
    assert_eq!(first.len(), 1_000);
    // As a real broker answers: refusals first, then one ack for all before them.
    for (index, attempt) in first {
        publisher.handle(index, attempt, if index < 499 { Answer::Acked } else { Answer::Nacked }, now);
    }
    let mut repeated = Vec::new();
    while publisher.open > 0 {
        for (index, attempt) in sent(&mut publisher, now) {
            repeated.push(index);
            publisher.handle(index, attempt, Answer::Nacked, now);
        }
        now = publisher.poll_timeout().unwrap();
    }
    assert!(repeated.iter().all(|index| *index == 499), "one message probes the full queue: {repeated:?}");
    assert!((5..60).contains(&repeated.len()), "with back-off: {}", repeated.len());
    let fates = publisher.into_fates();
    assert!(fates[..499].iter().all(|fate| *fate == Fate::Stored));
    assert!(fates[499..].iter().all(refused), "{:?}", fates[999]);
}

#[test]
fn a_queue_with_room_again_takes_more_with_every_round() {
    let mut now = start();
    let mut publisher = to_mail(100, ALL, now);
    for (index, attempt) in sent(&mut publisher, now) {
        publisher.handle(index, attempt, Answer::Nacked, now);
    }
    let mut rounds = Vec::new();
    now = publisher.poll_timeout().unwrap();
    while publisher.open > 0 {
        let round = sent(&mut publisher, now);
        if round.is_empty() {
            now = publisher.poll_timeout().unwrap();
            continue;
        }
        rounds.push(round.len());
        for (index, attempt) in round {
            publisher.handle(index, attempt, Answer::Acked, now);
        }
    }
    assert_eq!(rounds, [1, 2, 4, 8, 16, 32, 37]);
    assert!(publisher.into_fates().iter().all(|fate| *fate == Fate::Stored));
}

#[test]
fn a_full_queue_is_reported_once_per_minute_and_holds_up_no_other() {
    let mut now = start();
    let terms = Terms { patience: None, ..ALL };
    let mut publisher = Publisher::new([("", "mail"), ("", "other")].into_iter(), terms, now, 7);
    let (mut warnings, mut others) = (0, 0);
    let end = now + Duration::from_secs(150);
    while now < end {
        match publisher.poll(now) {
            Action::Send { index: 0, attempt } => publisher.handle(0, attempt, Answer::Nacked, now),
            Action::Send { index, attempt } => {
                others += 1;
                publisher.handle(index, attempt, Answer::Acked, now);
            }
            Action::Warn { queue, waiting, .. } => {
                assert_eq!((queue.as_str(), waiting), ("mail", 1));
                warnings += 1;
            }
            _ => now = publisher.poll_timeout().unwrap(),
        }
    }
    assert_eq!((warnings, others), (3, 1));
}

#[test]
fn a_refusal_after_a_lost_connection_is_unknown() {
    let now = start();
    let mut publisher = to_mail(1, ALL, now);
    let lost = || Answer::Lost { reason: "cut".to_owned(), missing: None };
    for answer in [lost(), Answer::Nacked] {
        let [(index, attempt)] = sent(&mut publisher, now)[..] else { panic!("one is sent") };
        publisher.handle(index, attempt, answer, now);
    }
    assert_eq!(publisher.poll(now + Duration::from_secs(30)), Action::Finished);
    assert_eq!(publisher.into_fates(), [Fate::Unknown { reason: "cut".to_owned() }]);
    let mut publisher = to_mail(1, Terms { again_after_loss: false, ..ALL }, now);
    sent(&mut publisher, now);
    publisher.handle(0, 1, lost(), now);
    assert_eq!(publisher.poll(now), Action::Finished);
    assert_eq!(publisher.into_fates(), [Fate::Unknown { reason: "cut".to_owned() }]);
}

#[test]
fn a_missing_exchange_is_declared_once_and_hides_only_what_else_was_in_flight() {
    let now = start();
    let mut publisher = Publisher::new([("ladder", "mail"), ("", "mail")].into_iter(), ALL, now, 7);
    assert_eq!(sent(&mut publisher, now).len(), 2);
    let lost = || Answer::Lost { reason: "no exchange".to_owned(), missing: Some("ladder".to_owned()) };
    publisher.handle(0, 1, lost(), now);
    publisher.handle(1, 1, lost(), now);
    assert_eq!(publisher.poll(now), Action::Declare { index: 0 });
    publisher.declared(0, Ok(()), now);
    assert_eq!(sent(&mut publisher, now), [(0, 2), (1, 2)]);
    publisher.handle(0, 2, Answer::Acked, now);
    publisher.handle(1, 2, Answer::Acked, now);
    assert_eq!(publisher.into_fates(), [Fate::Stored, Fate::Stored]);
}

/// What the broker of dice knows of one message.
#[derive(Default, Clone)]
struct Truth {
    stored: u32,
    acked: bool,
    hidden: bool,
}

/// Runs a batch against a broker of dice; returns what is true and what was reported.
fn run(seed: u64) -> (Vec<Truth>, Vec<Fate>) {
    let mut rng = Rng::with_seed(seed);
    let mut now = start();
    let count = rng.usize(1..40);
    let keys = ["a", "b", "c"];
    let routes: Vec<(&str, &str)> =
        (0..count).map(|_| (if rng.u8(..8) == 0 { "ladder" } else { "" }, *rng.choice(&keys).unwrap())).collect();
    let terms = Terms {
        patience: Some(Duration::from_millis(rng.u64(1..60_000))),
        silence: rng.bool().then(|| Duration::from_millis(rng.u64(1..5_000))),
        again_after_loss: rng.bool(),
        declares: rng.bool(),
        until_known: false,
    };
    let mut publisher = Publisher::new(routes.iter().copied(), terms, now, seed);
    let mut truth = vec![Truth::default(); count];
    let mut in_flight: Vec<(usize, u32, Instant)> = Vec::new();
    let (nack, lose, silent) = (rng.f64(), rng.f64() * 0.3, rng.f64() * 0.2);
    for step in 0.. {
        assert!(step < 100_000, "seed {seed} does not end");
        match publisher.poll(now) {
            Action::Finished => break,
            Action::Send { index, attempt } => {
                assert!(!truth[index].acked, "seed {seed}: sent after its ack");
                if rng.f64() < 0.05 {
                    publisher.handle(index, attempt, Answer::Unsent, now);
                    publisher.down(now + Duration::from_millis(rng.u64(1..500)));
                } else {
                    in_flight.push((index, attempt, now));
                }
            }
            Action::Declare { index } => {
                let declared = if rng.u8(..4) == 0 { Err("refused".to_owned()) } else { Ok(()) };
                publisher.declared(index, declared, now);
            }
            Action::Warn { .. } => {}
            Action::Wait if in_flight.is_empty() => now = publisher.poll_timeout().expect("it waits for something"),
            Action::Wait => {
                let at = rng.usize(..in_flight.len());
                if rng.f64() < silent {
                    // No answer before time passes; whether it is stored is anyone's guess.
                    let (index, ..) = in_flight[at];
                    truth[index].stored += u32::from(rng.bool());
                    truth[index].hidden = true;
                    now = publisher.poll_timeout().expect("it has a deadline");
                    in_flight.remove(at);
                    continue;
                }
                now += Duration::from_millis(rng.u64(..20));
                if rng.f64() < lose {
                    let missing = rng.bool().then(|| "ladder".to_owned());
                    for (index, attempt, _) in in_flight.drain(..) {
                        truth[index].stored += u32::from(rng.bool());
                        truth[index].hidden = true;
                        let answer = Answer::Lost { reason: "cut".to_owned(), missing: missing.clone() };
                        publisher.handle(index, attempt, answer, now);
                    }
                    continue;
                }
                let (index, attempt, since) = in_flight.remove(at);
                // It comes, but too late to be trusted.
                truth[index].hidden |= terms.silence.is_some_and(|silence| now >= since + silence);
                let answer = match rng.f64() {
                    chance if chance < nack => Answer::Nacked,
                    chance if chance > 0.97 => Answer::Returned { reason: "no queue".to_owned() },
                    _ => {
                        truth[index].stored += 1;
                        truth[index].acked = true;
                        Answer::Acked
                    }
                };
                publisher.handle(index, attempt, answer, now);
            }
        }
    }
    // The deadline came first.
    in_flight.into_iter().for_each(|(index, ..)| truth[index].hidden = true);
    (truth, publisher.into_fates())
}

#[test]
fn every_message_has_one_fate_and_it_is_true() {
    for seed in 0..5_000 {
        let (truth, fates) = run(seed);
        assert_eq!(truth.len(), fates.len());
        for (truth, fate) in truth.iter().zip(&fates) {
            match fate {
                Fate::Stored => assert!(truth.stored > 0, "seed {seed}: {fate:?} is not stored"),
                // A missing exchange that hid the only attempt is the one case of a return that may be stored.
                Fate::Returned { .. } => assert!(truth.stored == 0 || truth.hidden, "seed {seed}: {fate:?} is stored"),
                Fate::Refused { .. } => assert_eq!(truth.stored, 0, "seed {seed}: {fate:?} is stored"),
                Fate::Unknown { .. } => assert!(truth.hidden, "seed {seed}: {fate:?} was answered"),
            }
            assert!(truth.stored <= 1 || truth.hidden, "seed {seed}: stored {} times", truth.stored);
        }
    }
}

#[test]
fn the_same_seed_has_the_same_fates() {
    for seed in 0..50 {
        assert_eq!(run(seed).1, run(seed).1);
    }
}

#[test]
fn a_message_in_flight_outlasts_the_patience_if_its_answer_matters_and_one_that_was_not_sent_does_not() {
    let mut now = start();
    let terms = Terms { until_known: true, ..ALL };
    let mut publisher = to_mail(1, terms, now);
    assert_eq!(publisher.poll(now), Action::Send { index: 0, attempt: 1 });
    for _ in 0..3 {
        now += Duration::from_secs(40);
        assert_eq!(publisher.poll(now), Action::Wait);
        assert!(publisher.poll_timeout().unwrap() > now - Duration::from_secs(40), "it does not spin");
    }
    // Refused after all: nothing of it is stored.
    publisher.handle(0, 1, Answer::Nacked, now);
    now = publisher.deadline().unwrap();
    assert_eq!(publisher.poll(now), Action::Finished);
    assert!(matches!(publisher.into_fates()[..], [Fate::Refused { .. }]));
    let mut publisher = to_mail(1, terms, now);
    publisher.down(now + Duration::from_secs(100));
    assert_eq!(publisher.poll(now + Duration::from_secs(40)), Action::Finished);
}
