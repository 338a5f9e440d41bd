//! What one machine knows, without Redis.

use tidegate_limit::Limit;

use super::*;

const LEASE: Duration = Duration::from_secs(3);

fn core() -> Core {
    let limits = vec![Limit::concurrency("slots", 10), Limit::tpm(1_000)];
    let spec = Spec::new(limits, Duration::ZERO).unwrap();
    Core::new(spec, "g", "me".to_owned(), LEASE, Duration::from_millis(50))
}

fn join(core: &mut Core, tokens: u64, now: Instant) -> Rc<Waiter> {
    let fate = RefCell::new(Fate::Waiting(Waker::noop().clone()));
    let waiter = Rc::new(Waiter { cost: Cost::tokens(tokens), since: now, fate });
    core.join(waiter.clone());
    waiter
}

fn answer(core: &mut Core, batch: &mut Batch, text: &str, now: Instant) -> usize {
    let mut wake = Vec::new();
    assert_eq!(core.apply(batch, text.as_bytes(), now, &mut wake), Applied::Done);
    wake.len()
}

fn is_granted(waiter: &Waiter) -> bool {
    matches!(&*waiter.fate.borrow(), Fate::Granted(_))
}

#[test]
fn equal_costs_are_asked_for_together_and_granted_in_order() {
    let (mut core, now) = (core(), Instant::now());
    let waiters: Vec<_> = [5, 5, 5, 7, 5].map(|tokens| join(&mut core, tokens, now)).into();
    assert_eq!(core.due(now), Some(now));
    let mut batch = core.batch(now);
    assert_eq!(batch.runs, [(3, vec![5]), (1, vec![7]), (1, vec![5])]);
    assert_eq!(answer(&mut core, &mut batch, "1000 900 4 1 2 3000 0 4 17 22", now), 4);
    assert!(waiters[..4].iter().all(|waiter| is_granted(waiter)) && !is_granted(&waiters[4]));
    assert_eq!((core.held, core.waiting()), (4, 1));
    // 2,000 µs by Redis' clock; until then no call is due, whatever joins the line.
    join(&mut core, 1, now);
    assert_eq!(core.due(now), Some(now + Duration::from_micros(2_000)));
    assert_eq!(core.blocked.unwrap().limit, Some(1));
}

#[test]
fn who_gave_up_while_he_was_asked_for_leaves_no_trace() {
    let (mut core, now) = (core(), Instant::now());
    let waiter = join(&mut core, 5, now);
    let mut batch = core.batch(now);
    waiter.fate.replace(Fate::Over);
    core.abandon();
    assert_eq!(answer(&mut core, &mut batch, "1000 900 1 0 0 1000 0 1 17 5", now), 0);
    assert_eq!((core.held, core.waiting()), (0, 0));
    // The booking is taken back from where it was booked.
    assert_eq!(core.batch(now).returns, [(1, 17, 5)]);
}

#[test]
fn behind_somebody_who_gave_up_the_next_is_asked_for_at_once() {
    let (mut core, now) = (core(), Instant::now());
    let large = join(&mut core, 900, now);
    let mut batch = core.batch(now);
    join(&mut core, 1, now);
    large.fate.replace(Fate::Over);
    core.abandon();
    answer(&mut core, &mut batch, "1000 900 0 1 2 60000000 0 0 17 900", now);
    assert_eq!(core.due(now), Some(now), "not after the minute that the large one would have waited");
    assert_eq!(core.batch(now).runs, [(1, vec![1])]);
}

#[test]
fn those_who_gave_up_do_not_pile_up_behind_the_first() {
    let (mut core, now) = (core(), Instant::now());
    join(&mut core, 900, now);
    let mut batch = core.batch(now);
    answer(&mut core, &mut batch, "1000 900 0 1 2 60000000 0 0 17 900", now);
    for _ in 0..10_000 {
        join(&mut core, 1, now).fate.replace(Fate::Over);
        core.abandon();
    }
    assert!(core.line.len() < 200, "{} in line", core.line.len());
    assert_eq!(core.waiting(), 1);
}

#[test]
fn a_holder_gives_a_sign_of_life_and_an_idle_one_does_not() {
    let (mut core, now) = (core(), Instant::now());
    assert_eq!(core.due(now), None);
    join(&mut core, 5, now);
    let mut batch = core.batch(now);
    answer(&mut core, &mut batch, "1000 900 1 0 0 1000 0 1 17 5", now);
    assert_eq!(core.due(now), Some(now + LEASE / 3));
    core.release();
    let mut batch = core.batch(now);
    assert_eq!(batch.held, 0);
    answer(&mut core, &mut batch, "1000 900 0 0 0 1000 0 0 17 5", now);
    assert_eq!(core.due(now), None);
    assert!(core.is_idle());
}

#[test]
fn a_booking_that_was_moved_is_settled_where_it_is() {
    let (mut core, now) = (core(), Instant::now());
    join(&mut core, 100, now);
    let mut batch = core.batch(now);
    answer(&mut core, &mut batch, "1000 900 1 0 0 1000 0 1 17 100", now);
    let mut booked = Booked::at(&batch.stamps);
    core.restamp(&mut booked, &Cost::tokens(100));
    let mut batch = core.batch(now);
    assert_eq!((&*batch.returns, &*batch.books), (&[(1, 17, 100)][..], &[0, 100][..]));
    answer(&mut core, &mut batch, "2000 900 0 0 0 2000 0 1 18 100", now);
    core.settle(&mut booked, &Cost::tokens(100), Some(&Cost::tokens(30)));
    assert_eq!(core.batch(now).returns, [(1, 18, 70)]);
}

#[test]
fn what_it_cost_beyond_its_booking_is_taken_back_where_it_was_booked() {
    let (mut core, now) = (core(), Instant::now());
    join(&mut core, 100, now);
    let mut batch = core.batch(now);
    answer(&mut core, &mut batch, "1000 900 1 0 0 1000 0 1 17 100", now);
    let mut booked = Booked::at(&batch.stamps);
    for (cost, actual, stamp) in [(100, 130, 18), (130, 150, 19)] {
        core.settle(&mut booked, &Cost::tokens(cost), Some(&Cost::tokens(actual)));
        let mut batch = core.batch(now);
        assert_eq!((batch.returns.len(), &*batch.books), (0, &[0, actual - cost][..]));
        answer(&mut core, &mut batch, &format!("2000 900 0 0 0 2000 0 1 {stamp} {actual}"), now);
    }
    // The last booked first.
    core.settle(&mut booked, &Cost::tokens(150), Some(&Cost::tokens(125)));
    let mut batch = core.batch(now);
    assert_eq!(batch.returns, [(1, 19, 20), (1, 18, 5)]);
    answer(&mut core, &mut batch, "3000 900 0 0 0 3000 0 1 20 125", now);
    core.settle(&mut booked, &Cost::tokens(125), None);
    assert_eq!(core.batch(now).returns, [(1, 18, 25), (1, 17, 100)]);
}

#[test]
fn what_is_not_the_scripts_answer_is_not_believed() {
    for text in ["", "late", "1 2 3", "1000 900 x 0 0 1000 0 0 0 0", "1000 900 -1 0 0 1000 0 0 0 0"] {
        let (mut core, now) = (core(), Instant::now());
        let mut batch = core.batch(now);
        let applied = core.apply(&mut batch, text.as_bytes(), now, &mut Vec::new());
        assert_eq!(applied, Applied::Garbled, "{text:?}");
    }
}

#[test]
fn an_outdated_calendar_is_looked_up_and_asked_again() {
    let (mut core, now) = (core(), Instant::now());
    let mut batch = core.batch(now);
    let applied = core.apply(&mut batch, b"1000 900 0 0 -2 1000", now, &mut Vec::new());
    assert_eq!(applied, Applied::Again);
    assert_eq!((core.born, core.seen_us), (0, 0), "nothing was decided");
}
