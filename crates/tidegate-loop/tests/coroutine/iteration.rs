//! Stepping through a generator to its end.

use super::*;

#[test]
fn a_for_loop_sees_every_value_and_no_end() {
    let mut seen = Vec::new();
    for i in count_up_to(3) {
        seen.push(i);
    }
    assert_eq!(seen, [0, 1, 2]);
}

#[test]
fn stepping_by_hand_ends_once_and_is_finished_ever_after() {
    let counter = count_up_to(3);
    for i in 0..3 {
        assert_eq!(counter.resume(), Ok(Yielded(i)));
    }
    assert_eq!(counter.resume(), Ok(Returned(())));
    assert_eq!(counter.resume(), Err(ResumeError::Finished(())));
    assert_eq!(counter.resume(), Err(ResumeError::Finished(())));
}

/// The iterable keeps the data and no state; each walk is a coroutine of its own.
struct Iterable {
    data: Vec<u32>,
}

impl Iterable {
    fn walk(&self) -> Plain<'_, u32, &'static str> {
        Coroutine::new(async |mut co| {
            for i in &self.data {
                co.yield_(*i).await?;
            }
            Ok("walk finished")
        })
    }
}

#[test]
fn an_iterable_can_be_walked_many_times_and_the_end_carries_the_return_value() {
    let log = Log::default();
    let iterable = Iterable { data: (0..3).collect() };
    for i in iterable.walk() {
        log.say(i);
    }
    let walk = iterable.walk();
    loop {
        match walk.resume() {
            Ok(Yielded(i)) => log.say(i),
            Ok(Returned(last_words)) => break log.say(last_words),
            Err(error) => unreachable!("{error}"),
        }
    }
    log.expect("0\n1\n2\n0\n1\n2\nwalk finished");
}

#[test]
fn two_walks_over_one_iterable_do_not_disturb_each_other() {
    let iterable = Iterable { data: vec![4, 5] };
    let (one, other) = (iterable.walk(), iterable.walk());
    assert_eq!(one.resume(), Ok(Yielded(4)));
    assert_eq!(one.resume(), Ok(Yielded(5)));
    assert_eq!(other.resume(), Ok(Yielded(4)));
}

#[test]
fn iter_leaves_off_where_it_was_stopped_and_can_be_gone_on_with() {
    let counter = count_up_to(4);
    assert_eq!(counter.iter().take(2).collect::<Vec<_>>(), [Ok(0), Ok(1)]);
    assert_eq!(counter.lifecycle(), Suspended);
    assert_eq!(counter.iter().collect::<Vec<_>>(), [Ok(2), Ok(3)]);
    assert_eq!(counter.iter().next(), None);
}

#[test]
fn iter_gives_the_error_once_and_then_ends() {
    let failing: Coroutine<'_, u8, Infallible, (), Fault> = Coroutine::new(async |mut co| {
        co.yield_(1).await?;
        Err(Value("own"))?
    });
    let raised = ResumeError::Raised(Thrown::Error(Value("own")));
    assert_eq!(failing.iter().collect::<Vec<_>>(), [Ok(1), Err(raised)]);
}

#[test]
fn iter_from_inside_the_body_ends_with_running() {
    let me: Rc<Coroutine<'_, usize>> = Rc::new_cyclic(|me: &Weak<Coroutine<'_, usize>>| {
        let me = me.clone();
        Coroutine::new(async move |mut co| {
            // Not kept: the body would own its coroutine, and neither would ever be freed.
            let items: Vec<_> = me.upgrade().unwrap().iter().collect();
            assert_eq!(items, [Err(ResumeError::Running(()))]);
            co.yield_(items.len()).await?;
            Ok(())
        })
    });
    assert_eq!(me.resume(), Ok(Yielded(1)));
}

#[test]
#[should_panic(expected = "a coroutine without errors failed: the coroutine was asked to exit")]
fn a_for_loop_over_a_body_that_exits_unasked_panics() {
    let odd: Plain<'_, u8> = Coroutine::new(async |_co| Err(Thrown::Exit));
    for _ in odd {}
}

#[test]
fn two_coroutines_driven_in_turn_interleave() {
    let log = Log::default();
    let worker = |name: &'static str, rounds: u32| -> Plain<'_, ()> {
        let log = &log;
        Coroutine::new(async move |mut co| {
            for round in 0..rounds {
                log.say(format!("{name}{round}"));
                co.yield_(()).await?;
            }
            Ok(())
        })
    };
    let mut workers = vec![worker("a", 2), worker("b", 3)];
    while !workers.is_empty() {
        workers.retain(|worker| worker.resume() == Ok(Yielded(())));
    }
    log.expect("a0\nb0\na1\nb1\nb2");
}
