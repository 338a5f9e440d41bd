//! The coroutine protocol, claim by claim. The transcripts agree with what CPython prints for the
//! equivalent generators; a test named `unlike_python_…` shows where the two part on purpose, and
//! panics, unwinding and the futures in `misuse` have no counterpart there.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt::{Debug, Display};
use std::future::{pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use tidegate_loop::coroutine::{ChildFault, CloseError, Co, Coroutine, Lifecycle, ResumeError, Step, Thrown};

/// The errors of these tests, after Python's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Value(&'static str),
    Type,
    Key(&'static str),
    Runtime,
    Stop,
}
use Fault::{Key, Runtime, Stop, Type, Value};
use Lifecycle::{Closed, Created, Running, Suspended};
use Step::{Returned, Yielded};

/// What a program printed, in order.
#[derive(Default)]
struct Log(RefCell<Vec<String>>);

impl Log {
    fn say(&self, line: impl Display) {
        self.0.borrow_mut().push(line.to_string());
    }

    /// Prints an outcome: a yielded value as `-> 1`, the end as `end 5`, an error as `!! …`.
    fn show<Y: Debug, T: Debug, E: Debug, V: Debug>(&self, outcome: Result<Step<Y, T>, ResumeError<E, V>>) {
        self.say(match outcome {
            Ok(Yielded(value)) => format!("-> {value:?}"),
            Ok(Returned(value)) => format!("end {value:?}"),
            Err(ResumeError::Raised(Thrown::Error(error))) => format!("!! {error:?}"),
            Err(ResumeError::Raised(other)) => format!("!! {other:?}"),
            Err(ResumeError::Finished(_)) => "finished".into(),
            Err(other) => format!("!! {other:?}"),
        });
    }

    #[track_caller]
    fn expect(&self, transcript: &str) {
        let expected: Vec<_> = transcript.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        assert_eq!(*self.0.borrow(), expected);
    }
}

/// Says its line when it is dropped: a `finally`, or a file that gets closed.
struct Finally<'a>(&'a Log, &'static str);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.say(self.1);
    }
}

type Plain<'a, Y, T = ()> = Coroutine<'a, Y, Infallible, T>;

fn count_up_to<'a>(n: u32) -> Plain<'a, u32> {
    Coroutine::new(async move |mut co| {
        for i in 0..n {
            co.yield_(i).await?;
        }
        Ok(())
    })
}

mod iteration {
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
                let me = me.upgrade().unwrap();
                let items: Vec<_> = me.iter().collect();
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
}

mod sending {
    use super::*;

    fn accumulator<'a>() -> Coroutine<'a, i32, i32> {
        Coroutine::new(async |mut co| {
            let mut total = 0;
            while let Some(value) = co.yield_(total).await? {
                total += value;
            }
            Ok(())
        })
    }

    #[test]
    fn accumulator_adds_what_it_is_sent_until_it_is_sent_nothing() {
        let sum = accumulator();
        assert_eq!(sum.resume(), Ok(Yielded(0)));
        assert_eq!(sum.send(10), Ok(Yielded(10)));
        assert_eq!(sum.send(20), Ok(Yielded(30)));
        assert_eq!(sum.resume(), Ok(Returned(())));
        assert_eq!(sum.send(1), Err(ResumeError::Finished(1)));
    }

    #[test]
    fn the_first_send_must_be_no_value_and_a_refused_one_changes_nothing() {
        let sum = accumulator();
        assert_eq!(sum.send(1), Err(ResumeError::NotStarted(1)));
        assert_eq!(sum.lifecycle(), Created);
        assert_eq!(sum.resume(), Ok(Yielded(0)));
        assert_eq!(sum.send(4), Ok(Yielded(4)));
    }

    #[test]
    fn the_last_yield_has_nothing_to_answer_a_send_with() {
        let counter: Coroutine<'_, u32, &str> = Coroutine::new(async |mut co| {
            for i in 0..3 {
                co.yield_(i).await?;
            }
            Ok(())
        });
        assert_eq!(counter.resume(), Ok(Yielded(0)));
        assert_eq!(counter.send("n0"), Ok(Yielded(1)));
        assert_eq!(counter.send("n1"), Ok(Yielded(2)));
        assert_eq!(counter.send("n2"), Ok(Returned(())));
        assert_eq!(counter.send("n3"), Err(ResumeError::Finished("n3")));
    }

    #[test]
    fn receiver_only_takes() {
        let log = Log::default();
        let receiver: Coroutine<'_, (), i32> = Coroutine::new(async |mut co| {
            log.say("Ready to receive");
            loop {
                let x = co.yield_(()).await?;
                log.say(format!("Received: {x:?}"));
            }
        });
        assert_eq!(receiver.resume(), Ok(Yielded(())));
        assert_eq!(receiver.send(10), Ok(Yielded(())));
        log.expect("Ready to receive\nReceived: Some(10)");
    }

    #[test]
    fn no_line_of_the_body_runs_before_the_first_resume() {
        let log = Log::default();
        let body = |mut co: Co<()>| {
            log.say("synchronous part");
            async move { co.yield_(()).await.map(drop) }
        };
        let lazy: Plain<'_, ()> = Coroutine::new(body);
        log.expect("");
        let _ = lazy.resume();
        log.expect("synchronous part");
    }
}

mod throwing {
    use super::*;

    /// Counts up; can be set by `send`, is reset by a value error, ended by a stop.
    fn robust(log: &Log) -> Coroutine<'_, i32, i32, &'static str, Fault> {
        Coroutine::new(async move |mut co| {
            let mut value = 0;
            loop {
                let received = co.yield_(value).await;
                let mut end = None;
                match received {
                    Ok(Some(received)) => value = received,
                    Ok(None) => value += 1,
                    Err(Thrown::Error(Value(why))) => {
                        log.say(format!("caught a value error: {why}, back to 0"));
                        value = 0;
                    }
                    Err(Thrown::Error(Type)) => log.say("caught a type error, round skipped"),
                    Err(Thrown::Error(Stop)) => {
                        log.say("caught a stop, ending in order");
                        end = Some(Ok("stopped"));
                    }
                    Err(Thrown::Error(other)) => log.say(format!("caught {other:?}, going on")),
                    Err(exit) => end = Some(Err(exit)),
                }
                log.say(format!("current value: {value}"));
                if let Some(end) = end {
                    return end;
                }
            }
        })
    }

    #[test]
    fn robust_generator_survives_every_error_but_the_stop() {
        let log = Log::default();
        let line = || log.say("---");
        let coro = robust(&log);
        log.show(coro.resume());
        line();
        log.show(coro.send(10));
        line();
        log.show(coro.throw(Value("bad value")));
        line();
        log.show(coro.throw(Type));
        line();
        log.show(coro.resume());
        line();
        log.show(coro.throw(Key("odd")));
        line();
        log.show(coro.throw(Stop));
        line();
        log.show(coro.resume());
        log.expect(
            r#"-> 0
            ---
            current value: 10
            -> 10
            ---
            caught a value error: bad value, back to 0
            current value: 0
            -> 0
            ---
            caught a type error, round skipped
            current value: 0
            -> 0
            ---
            current value: 1
            -> 1
            ---
            caught Key("odd"), going on
            current value: 1
            -> 1
            ---
            caught a stop, ending in order
            current value: 1
            end "stopped"
            ---
            finished"#,
        );
    }

    #[test]
    fn robust_generator_still_tidies_up_when_it_is_closed() {
        let log = Log::default();
        let coro = robust(&log);
        log.show(coro.resume());
        assert_eq!(coro.close(), Ok(None));
        log.expect("-> 0\ncurrent value: 0");
    }

    fn one_and_done<'a>() -> Coroutine<'a, u8, u8, (), Fault> {
        Coroutine::new(async |mut co| co.yield_(1).await.map(drop))
    }

    #[test]
    fn an_uncaught_throw_comes_back_to_the_caller_and_closes() {
        let coro = one_and_done();
        let _ = coro.resume();
        assert_eq!(coro.throw(Type), Err(ResumeError::Raised(Thrown::Error(Type))));
        assert_eq!(coro.lifecycle(), Closed);
        assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
    }

    #[test]
    fn a_body_may_answer_one_error_with_another() {
        let coro: Coroutine<'_, u8, u8, (), Fault> = Coroutine::new(async |mut co| {
            co.yield_(1).await.map_err(|_| Key("other"))?;
            Ok(())
        });
        let _ = coro.resume();
        let other = ResumeError::Raised(Thrown::Error(Key("other")));
        assert_eq!(coro.throw(Value("v")), Err(other));
    }

    #[test]
    fn returning_while_handling_an_error_is_a_normal_end() {
        let coro: Coroutine<'_, u8, u8, &str, Fault> =
            Coroutine::new(async |mut co| Ok(if co.yield_(1).await.is_err() { "handled" } else { "untouched" }));
        let _ = coro.resume();
        assert_eq!(coro.throw(Runtime), Ok(Returned("handled")));
        assert_eq!(coro.throw(Runtime), Err(ResumeError::Finished(Runtime.into())));
    }

    #[test]
    fn a_throw_before_the_start_never_runs_the_body_and_finishes_it() {
        let log = Log::default();
        let kept = Finally(&log, "capture dropped");
        let coro: Coroutine<'_, u8, u8, (), Fault> = Coroutine::new(async move |mut co| {
            log_is_untouched(&kept);
            co.yield_(1).await.map(drop)
        });
        log.show(coro.throw(Value("v")));
        assert_eq!(coro.lifecycle(), Closed);
        log.show(coro.resume());
        log.expect("capture dropped\n!! Value(\"v\")\nfinished");
    }

    fn log_is_untouched(_: &Finally<'_>) {
        unreachable!("the body ran");
    }

    #[test]
    fn an_error_of_the_bodys_own_comes_out_of_resume_and_closes() {
        let log = Log::default();
        let coro: Coroutine<'_, u8, u8, (), Fault> = Coroutine::new(async |mut co| {
            co.yield_(1).await?;
            Err(Value("own"))?
        });
        log.show(coro.resume());
        log.show(coro.resume());
        log.show(coro.resume());
        log.expect("-> 1\n!! Value(\"own\")\nfinished");
        assert_eq!(coro.close(), Ok(None));
    }

    #[test]
    fn unlike_python_a_throw_after_the_end_is_refused_and_handed_back() {
        let coro = one_and_done();
        assert_eq!(coro.close(), Ok(None));
        assert_eq!(coro.throw(Type), Err(ResumeError::Finished(Thrown::Error(Type))));
    }

    #[test]
    fn a_thrown_exit_is_like_close_but_reaches_the_caller() {
        let coro = one_and_done();
        let _ = coro.resume();
        assert_eq!(coro.throw(Thrown::Exit), Err(ResumeError::Raised(Thrown::Exit)));
        assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
    }

    #[test]
    fn an_exit_raised_unasked_reaches_the_caller() {
        let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
            co.yield_(1).await?;
            Err(Thrown::Exit)
        });
        let _ = coro.resume();
        assert_eq!(coro.resume(), Err(ResumeError::Raised(Thrown::Exit)));
        assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
    }
}

mod closing {
    use super::*;

    type Closable<'a> = Coroutine<'a, &'static str, u8, &'static str, Fault>;

    fn after_close_everything_is_finished(coro: &Closable<'_>) {
        assert_eq!(coro.lifecycle(), Closed);
        assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
        assert_eq!(coro.send(1), Err(ResumeError::Finished(1)));
        assert_eq!(coro.throw(Key("k")), Err(ResumeError::Finished(Key("k").into())));
        assert_eq!(coro.close(), Ok(None));
    }

    #[test]
    fn a_body_that_catches_the_exit_and_returns_closes_and_hands_its_value_over() {
        let log = Log::default();
        let coro: Closable<'_> = Coroutine::new(async |mut co| {
            while co.yield_("").await != Err(Thrown::Exit) {}
            log.say("closed!");
            Ok("bye")
        });
        let _ = coro.resume();
        assert_eq!(coro.close(), Ok(Some("bye")));
        log.expect("closed!");
        after_close_everything_is_finished(&coro);
    }

    #[test]
    fn a_body_that_does_not_catch_the_exit_closes_in_silence() {
        let log = Log::default();
        let coro: Closable<'_> = Coroutine::new(async |mut co| {
            let _finally = Finally(&log, "finally");
            loop {
                let got = co.yield_("").await?;
                log.say(format!("got {got:?}"));
            }
        });
        let _ = coro.resume();
        let _ = coro.send(3);
        assert_eq!(coro.close(), Ok(None));
        log.expect("got Some(3)\nfinally");
        after_close_everything_is_finished(&coro);
    }

    #[test]
    fn a_body_that_yields_after_the_exit_is_an_error_and_stays_suspended() {
        let coro: Closable<'_> = Coroutine::new(async |mut co| {
            if co.yield_("").await == Err(Thrown::Exit) {
                co.yield_("must not").await?;
                co.yield_("again").await?;
            }
            Ok("")
        });
        let _ = coro.resume();
        assert_eq!(coro.close(), Err(CloseError::Yielded("must not")));
        assert_eq!(coro.lifecycle(), Suspended);
        assert_eq!(coro.resume(), Ok(Yielded("again")));
        assert_eq!(coro.throw(Key("k")), Err(ResumeError::Raised(Key("k").into())));
        after_close_everything_is_finished(&coro);
    }

    #[test]
    fn a_body_that_fails_on_the_exit_tells_the_closer_and_is_closed() {
        let coro: Closable<'_> = Coroutine::new(async |mut co| {
            co.yield_("").await.map_err(|_| Value("in close"))?;
            Ok("")
        });
        let _ = coro.resume();
        assert_eq!(coro.close(), Err(CloseError::Raised(Value("in close").into())));
        after_close_everything_is_finished(&coro);
    }

    #[test]
    fn close_before_the_start_never_runs_the_body() {
        let coro: Closable<'_> = Coroutine::new(async |_co| unreachable!("the body ran"));
        assert_eq!(coro.close(), Ok(None));
        after_close_everything_is_finished(&coro);
    }

    #[test]
    fn close_after_the_end_is_nothing() {
        let coro: Closable<'_> = Coroutine::new(async |_co| Ok("over"));
        assert_eq!(coro.resume(), Ok(Returned("over")));
        assert_eq!(coro.close(), Ok(None));
    }

    #[test]
    fn captures_that_look_at_the_coroutine_while_it_is_closed_find_it_closed() {
        struct Peek(Weak<Plain<'static, u8>>, Rc<Cell<Option<Lifecycle>>>);
        impl Drop for Peek {
            fn drop(&mut self) {
                self.1.set(self.0.upgrade().map(|coroutine| coroutine.lifecycle()));
            }
        }
        for started in [false, true] {
            let seen = Rc::new(Cell::new(None));
            let coroutine = Rc::new_cyclic(|me| {
                let peek = Peek(Weak::clone(me), Rc::clone(&seen));
                Coroutine::new(move |mut co: Co<u8>| async move {
                    let result = co.yield_(1).await.map(drop);
                    let _kept_to_the_end = &peek;
                    result
                })
            });
            if started {
                let _ = coroutine.resume();
            }
            assert_eq!(coroutine.close(), Ok(None));
            // A local of a body that is still returning sees it running, as in any generator.
            assert_eq!(seen.get(), Some(if started { Running } else { Closed }));
        }
    }
}

mod life_cycle {
    use super::*;

    #[test]
    fn created_running_suspended_closed() {
        let seen = RefCell::new(Vec::new());
        let me = Rc::new_cyclic(|me: &Weak<Plain<'_, ()>>| {
            let (me, seen) = (me.clone(), &seen);
            Coroutine::new(async move |mut co| {
                seen.borrow_mut().push(me.upgrade().unwrap().lifecycle());
                co.yield_(()).await.map(drop)
            })
        });
        seen.borrow_mut().push(me.lifecycle());
        let _ = me.resume();
        seen.borrow_mut().push(me.lifecycle());
        let _ = me.resume();
        seen.borrow_mut().push(me.lifecycle());
        assert_eq!(*seen.borrow(), [Created, Running, Suspended, Closed]);
    }

    #[test]
    fn debug_tells_the_stage_and_nothing_of_the_body() {
        assert_eq!(format!("{:?}", count_up_to(1)), "Coroutine { lifecycle: Created, .. }");
    }

    #[test]
    fn a_running_coroutine_refuses_itself_and_goes_on() {
        type Selfish = Coroutine<'static, u8, u8, (), Fault>;
        let me = Rc::new_cyclic(|me: &Weak<Selfish>| {
            let me = me.clone();
            Coroutine::new(async move |mut co| {
                let me = me.upgrade().unwrap();
                assert_eq!(me.resume(), Err(ResumeError::Running(())));
                assert_eq!(me.send(5), Err(ResumeError::Running(5)));
                assert_eq!(me.throw(Type), Err(ResumeError::Running(Type.into())));
                assert_eq!(me.close(), Err(CloseError::Running));
                assert_eq!(me.lifecycle(), Running);
                // Not held across the yield: it would keep itself alive.
                drop(me);
                co.yield_(1).await.map(drop)
            })
        });
        assert_eq!(me.resume(), Ok(Yielded(1)));
        assert_eq!(me.resume(), Ok(Returned(())));
    }

    fn exits(log: &Log) -> Plain<'_, u8> {
        Coroutine::new(async move |mut co| {
            let _finally = Finally(log, "finally");
            let ended = co.yield_(1).await;
            log.say(format!("{ended:?}"));
            ended.map(drop)
        })
    }

    #[test]
    fn dropping_a_suspended_coroutine_closes_it() {
        let log = Log::default();
        let coro = exits(&log);
        let _ = coro.resume();
        drop(coro);
        log.say("after the drop");
        log.expect("Err(Exit)\nfinally\nafter the drop");
    }

    #[test]
    fn the_last_of_several_owners_closes_it() {
        let log = Log::default();
        let coro = Rc::new(exits(&log));
        let other = Rc::clone(&coro);
        let _ = coro.resume();
        drop(coro);
        log.say("one owner left");
        drop(other);
        log.expect("one owner left\nErr(Exit)\nfinally");
    }

    #[test]
    fn leaving_a_for_loop_early_closes_it() {
        let log = Log::default();
        for value in exits(&log) {
            if value == 1 {
                break;
            }
        }
        log.say("after the loop");
        log.expect("Err(Exit)\nfinally\nafter the loop");
    }

    #[test]
    fn dropping_one_that_never_started_does_not_run_it() {
        let log = Log::default();
        drop(exits(&log));
        log.expect("");
    }

    #[test]
    fn unlike_python_dropping_one_that_yields_even_then_still_runs_its_destructors() {
        let log = Log::default();
        let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
            let _finally = Finally(&log, "finally");
            loop {
                let answer = co.yield_(1).await;
                log.say(format!("{answer:?}"));
            }
        });
        let _ = coro.resume();
        drop(coro);
        log.expect("Err(Exit)\nfinally");
    }

    #[test]
    fn a_drop_during_an_unwinding_runs_the_destructors_alone() {
        let log = Log::default();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let coro = exits(&log);
            let _ = coro.resume();
            panic!("elsewhere");
        }));
        assert!(unwound.is_err());
        log.expect("finally");
    }

    #[test]
    fn a_panic_in_the_body_reaches_the_caller_and_closes() {
        let log = Log::default();
        let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
            let _finally = Finally(&log, "finally");
            co.yield_(1).await?;
            panic!("broken body");
        });
        let _ = coro.resume();
        let panic = catch_unwind(AssertUnwindSafe(|| coro.resume())).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"broken body"));
        log.expect("finally");
        assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
    }
}

mod delegation {
    use super::*;

    type Texts<'a> = Coroutine<'a, &'static str, Infallible, &'static str, Fault>;

    #[test]
    fn delegating_says_what_a_loop_over_the_child_says() {
        fn child<'a>() -> Plain<'a, String> {
            Coroutine::new(async |mut co| {
                for i in 0..3 {
                    co.yield_(format!("[child] {i}")).await?;
                }
                Ok(())
            })
        }
        let looping: Plain<'_, String> = Coroutine::new(async |mut co| {
            for value in child() {
                co.yield_(value).await?;
            }
            Ok(())
        });
        let delegating: Plain<'_, String> = Coroutine::new(async |mut co| co.delegate(&child()).await);
        let values: Vec<_> = delegating.into_iter().collect();
        assert_eq!(values, ["[child] 0", "[child] 1", "[child] 2"]);
        assert_eq!(values, looping.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn the_childs_return_value_is_the_delegations_value() {
        let log = Log::default();
        let main: Plain<'_, u8> = Coroutine::new(async |mut co| {
            let child = Coroutine::new(async |mut co| co.yield_(1).await.map(|_| 5));
            let result = co.delegate(&child).await?;
            log.say(format!("Result: {result}"));
            Ok(())
        });
        log.show(main.resume());
        log.show(main.resume());
        log.expect("-> 1\nResult: 5\nend ()");
    }

    fn recovers_from_values(log: &Log) -> Texts<'_> {
        Coroutine::new(async move |mut co| {
            match co.yield_("1").await {
                Err(Thrown::Error(Value(_))) => {
                    log.say("child caught a value error");
                    co.yield_("recovered").await?;
                }
                other => drop(other?),
            }
            Ok("")
        })
    }

    fn catches_runtime(log: &Log) -> Texts<'_> {
        Coroutine::new(async move |mut co| match co.delegate(&recovers_from_values(log)).await {
            Err(Thrown::Error(Runtime)) => {
                log.say("parent caught a runtime error");
                Ok("")
            }
            other => other,
        })
    }

    #[test]
    fn an_error_goes_to_the_child_first() {
        let log = Log::default();
        let coro = catches_runtime(&log);
        log.show(coro.resume());
        log.show(coro.throw(Value("")));
        log.show(coro.resume());
        log.expect(
            r#"-> "1"
            child caught a value error
            -> "recovered"
            end """#,
        );
    }

    #[test]
    fn an_error_the_child_leaves_goes_to_the_parent() {
        let log = Log::default();
        let coro = catches_runtime(&log);
        log.show(coro.resume());
        log.show(coro.throw(Runtime));
        log.expect(
            r#"-> "1"
            parent caught a runtime error
            end """#,
        );
    }

    #[test]
    fn an_error_both_leave_goes_to_the_caller() {
        let log = Log::default();
        let coro = catches_runtime(&log);
        log.show(coro.resume());
        log.show(coro.throw(Key("k")));
        log.show(coro.resume());
        log.expect("-> \"1\"\n!! Key(\"k\")\nfinished");
    }

    /// Echoes what it is sent; recovers from value errors, ends on exit and stop.
    fn echo(log: &Log) -> Coroutine<'_, String, String, Option<String>, Fault> {
        Coroutine::new(async move |mut co| {
            let mut value = Some("1".to_owned());
            loop {
                match co.yield_(value.clone().unwrap_or_default()).await {
                    Ok(sent) => value = sent,
                    Err(Thrown::Error(Value(_))) => {
                        log.say("[child] caught a value error");
                        co.yield_("recovered".into()).await?;
                    }
                    Err(Thrown::Exit) => break log.say("[child] caught the exit"),
                    Err(Thrown::Error(Stop)) => break log.say("[child] caught a stop"),
                    Err(other) => return Err(other),
                }
            }
            Ok(value)
        })
    }

    fn delegator(log: &Log) -> Coroutine<'_, String, String, Option<String>, Fault> {
        Coroutine::new(async move |mut co| match co.delegate(&echo(log)).await {
            Err(Thrown::Error(Runtime)) => {
                log.say("[parent] caught a runtime error");
                Ok(Some("parent".into()))
            }
            Ok(result) => {
                log.say(format!("[parent] received: {}", result.as_deref().unwrap_or_default()));
                Ok(result)
            }
            other => other,
        })
    }

    fn started(log: &Log) -> Coroutine<'_, String, String, Option<String>, Fault> {
        let coro = delegator(log);
        log.show(coro.resume());
        log.show(coro.send("2".into()));
        coro
    }

    #[test]
    fn case_1_the_parent_handles_what_the_child_does_not() {
        let log = Log::default();
        let coro = started(&log);
        log.show(coro.throw(Runtime));
        assert_eq!(coro.close(), Ok(None));
        log.expect(
            r#"-> "1"
            -> "2"
            [parent] caught a runtime error
            end Some("parent")"#,
        );
    }

    #[test]
    fn case_2_the_child_ends_on_a_stop_and_the_parent_gets_its_value() {
        let log = Log::default();
        let coro = started(&log);
        log.show(coro.throw(Stop));
        assert_eq!(coro.close(), Ok(None));
        log.expect(
            r#"-> "1"
            -> "2"
            [child] caught a stop
            [parent] received: 2
            end Some("2")"#,
        );
    }

    #[test]
    fn case_3_the_child_recovers_and_is_closed_before_the_parent() {
        let log = Log::default();
        let coro = started(&log);
        log.show(coro.throw(Value("")));
        log.show(coro.resume());
        assert_eq!(coro.close(), Ok(None));
        log.expect(
            r#"-> "1"
            -> "2"
            [child] caught a value error
            -> "recovered"
            -> "2"
            [child] caught the exit"#,
        );
    }

    #[test]
    fn the_first_send_to_a_delegating_parent_must_be_no_value_too() {
        let log = Log::default();
        let coro = delegator(&log);
        assert_eq!(coro.send("3".into()), Err(ResumeError::NotStarted("3".into())));
        log.show(coro.resume());
        log.expect("-> \"1\"");
    }

    #[derive(Clone, Copy, PartialEq)]
    enum OnExit {
        Pass,
        Return,
        Yield,
        Fail,
    }

    fn child(log: &Log, on_exit: OnExit) -> Texts<'_> {
        Coroutine::new(async move |mut co| {
            let Err(exit) = co.yield_("1").await else { return Ok("resumed") };
            log.say("child exit");
            match on_exit {
                OnExit::Pass => Err(exit),
                OnExit::Return => Ok("9"),
                OnExit::Yield => co.yield_("2").await.map(|_| ""),
                OnExit::Fail => Err(Value("child broke"))?,
            }
        })
    }

    fn parent(log: &Log, on_exit: OnExit) -> Texts<'_> {
        Coroutine::new(async move |mut co| {
            let result = co.delegate(&child(log, on_exit)).await;
            log.say(format!("parent {result:?}"));
            result
        })
    }

    #[test]
    fn close_reaches_the_child_first_and_then_the_parent() {
        for on_exit in [OnExit::Pass, OnExit::Return] {
            let log = Log::default();
            let coro = parent(&log, on_exit);
            let _ = coro.resume();
            assert_eq!(coro.close(), Ok(None));
            log.expect("child exit\nparent Err(Exit)");
            assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
        }
    }

    #[test]
    fn dropping_the_parent_closes_the_child_first() {
        let log = Log::default();
        let coro = parent(&log, OnExit::Pass);
        let _ = coro.resume();
        drop(coro);
        log.expect("child exit\nparent Err(Exit)");
    }

    #[test]
    fn a_child_that_ignores_the_exit_is_the_parents_error() {
        let log = Log::default();
        let coro = parent(&log, OnExit::Yield);
        let _ = coro.resume();
        let ignored = Thrown::Child(ChildFault::IgnoredExit);
        assert_eq!(coro.close(), Err(CloseError::Raised(ignored)));
        assert_eq!(coro.lifecycle(), Closed);
        // The child is dropped with the parent's frame, still suspended: a second exit.
        log.expect("child exit\nparent Err(Child(IgnoredExit))");
    }

    #[test]
    fn a_child_that_fails_on_the_exit_is_the_parents_error() {
        let log = Log::default();
        let coro = parent(&log, OnExit::Fail);
        let _ = coro.resume();
        assert_eq!(coro.close(), Err(CloseError::Raised(Value("child broke").into())));
        log.expect("child exit\nparent Err(Error(Value(\"child broke\")))");
    }

    #[test]
    fn a_parent_may_swallow_the_childs_failure_but_must_not_yield() {
        let log = Log::default();
        let coro: Texts<'_> = Coroutine::new(async |mut co| {
            if co.delegate(&child(&log, OnExit::Fail)).await.is_err() {
                log.say("swallowed");
                co.yield_("more").await?;
            }
            Ok("over")
        });
        let _ = coro.resume();
        assert_eq!(coro.close(), Err(CloseError::Yielded("more")));
        assert_eq!(coro.lifecycle(), Suspended);
        assert_eq!(coro.resume(), Ok(Returned("over")));
        log.expect("child exit\nswallowed");
    }

    #[test]
    fn a_thrown_exit_closes_the_child_and_the_parent_may_go_on() {
        let log = Log::default();
        let coro: Texts<'_> = Coroutine::new(async |mut co| {
            let result = co.delegate(&child(&log, OnExit::Return)).await;
            log.say(format!("parent {result:?}"));
            co.yield_("still").await.map(|_| "over")
        });
        let _ = coro.resume();
        assert_eq!(coro.throw(Thrown::Exit), Ok(Yielded("still")));
        assert_eq!(coro.resume(), Ok(Returned("over")));
        log.expect("child exit\nparent Err(Exit)");
    }

    #[test]
    fn closing_a_parent_that_never_started_runs_neither() {
        let log = Log::default();
        let coro = parent(&log, OnExit::Pass);
        assert_eq!(coro.close(), Ok(None));
        log.expect("");
    }

    #[test]
    fn the_childs_own_error_comes_out_at_the_delegation() {
        let log = Log::default();
        let coro: Texts<'_> = Coroutine::new(async |mut co| {
            let failing = Coroutine::new(async |mut co| {
                co.yield_("1").await?;
                Err::<(), _>(Value("own"))?;
                Ok(())
            });
            if let Err(Thrown::Error(error)) = co.delegate(&failing).await {
                log.say(format!("parent handles {error:?}"));
                co.yield_("fallback").await?;
            }
            Ok("done")
        });
        for _ in 0..4 {
            log.show(coro.resume());
        }
        log.expect(
            r#"-> "1"
            parent handles Value("own")
            -> "fallback"
            end "done"
            finished"#,
        );
    }

    #[test]
    fn values_and_results_pass_through_three_levels() {
        type Collector<'a> = Coroutine<'a, usize, &'static str, Vec<&'static str>>;
        fn level(log: &Log, depth: u32) -> Collector<'_> {
            Coroutine::new(async move |mut co| {
                if depth == 3 {
                    let mut got = Vec::new();
                    while let Some(x) = co.yield_(got.len()).await? {
                        got.push(x);
                    }
                    return Ok(got);
                }
                let mut got = co.delegate(&level(log, depth + 1)).await?;
                log.say(format!("level {depth} {got:?}"));
                got.push(if depth == 2 { "l2" } else { "l1" });
                Ok(got)
            })
        }
        let log = Log::default();
        let coro = level(&log, 1);
        log.show(coro.resume());
        log.show(coro.send("a"));
        log.show(coro.send("b"));
        log.show(coro.resume());
        log.expect(
            r#"-> 0
            -> 1
            -> 2
            level 2 ["a", "b"]
            level 1 ["a", "b", "l2"]
            end ["a", "b", "l2", "l1"]"#,
        );
    }

    #[test]
    fn a_recursive_walk_is_delegation_to_oneself_anew() {
        struct Tree(i32, Vec<Tree>);
        fn walk(tree: &Tree) -> Plain<'_, i32> {
            Coroutine::new(async move |mut co| {
                co.yield_(tree.0).await?;
                for branch in &tree.1 {
                    co.delegate(&walk(branch)).await?;
                }
                Ok(())
            })
        }
        let tree = Tree(1, vec![Tree(2, vec![Tree(3, vec![])]), Tree(4, vec![])]);
        assert_eq!(walk(&tree).into_iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_child_already_under_way_goes_on_where_it_was() {
        let child = count_up_to(3);
        assert_eq!(child.resume(), Ok(Yielded(0)));
        let coro: Plain<'_, u32> = Coroutine::new(async |mut co| co.delegate(&child).await);
        assert_eq!(coro.iter().collect::<Vec<_>>(), [Ok(1), Ok(2)]);
        drop(coro);
        assert_eq!(child.lifecycle(), Closed);
    }

    #[test]
    fn unlike_python_a_finished_child_is_a_fault() {
        let child = count_up_to(0);
        let _ = child.resume();
        let coro: Plain<'_, u32> = Coroutine::new(async |mut co| co.delegate(&child).await);
        let fault = Thrown::Child(ChildFault::Finished);
        assert_eq!(coro.resume(), Err(ResumeError::Raised(fault)));
    }

    #[test]
    fn a_child_ended_behind_the_parents_back_is_a_fault_at_the_next_step() {
        let child = count_up_to(3);
        let coro: Plain<'_, u32> = Coroutine::new(async |mut co| co.delegate(&child).await);
        let _ = coro.resume();
        assert_eq!(child.close(), Ok(None));
        let fault = Thrown::Child(ChildFault::Finished);
        assert_eq!(coro.resume(), Err(ResumeError::Raised(fault)));
    }

    #[test]
    fn an_error_thrown_after_the_child_ended_behind_the_parents_back_is_the_parents() {
        let child: Texts<'_> = Coroutine::new(async |mut co| co.yield_("1").await.map(|_| ""));
        let coro: Texts<'_> = Coroutine::new(async |mut co| co.delegate(&child).await);
        let _ = coro.resume();
        assert_eq!(child.close(), Ok(None));
        assert_eq!(coro.throw(Key("k")), Err(ResumeError::Raised(Key("k").into())));
    }

    #[test]
    fn delegating_to_oneself_is_a_fault_one_can_handle() {
        let me = Rc::new_cyclic(|me: &Weak<Plain<'static, &str>>| {
            let me = me.clone();
            Coroutine::new(async move |mut co| {
                let own = me.upgrade().unwrap();
                let result = co.delegate(&own).await;
                drop(own);
                assert_eq!(result, Err(Thrown::Child(ChildFault::Running)));
                co.yield_("ok").await.map(drop)
            })
        });
        assert_eq!(me.resume(), Ok(Yielded("ok")));
    }
}

mod misuse {
    use super::*;

    #[test]
    fn awaiting_what_is_ready_is_allowed() {
        let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
            let value = ready(7).await;
            co.yield_(value).await.map(drop)
        });
        assert_eq!(coro.resume(), Ok(Yielded(7)));
    }

    #[test]
    #[should_panic(expected = "awaited something that was not ready and not its own Co")]
    fn awaiting_something_foreign_panics_instead_of_hanging() {
        let coro: Plain<'_, u8> = Coroutine::new(async |_co| pending().await);
        let _ = coro.resume();
    }

    #[test]
    fn a_foreign_wait_in_a_later_step_panics_and_closes() {
        let log = Log::default();
        let coro: Plain<'_, u8> = Coroutine::new(async |mut co| {
            let _finally = Finally(&log, "finally");
            co.yield_(1).await?;
            // Even one that would be ready when asked again.
            let mut asked = false;
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Ok(())
        });
        let _ = coro.resume();
        assert!(catch_unwind(AssertUnwindSafe(|| coro.resume())).is_err());
        log.expect("finally");
        assert_eq!(coro.resume(), Err(ResumeError::Finished(())));
    }

    #[test]
    fn driving_one_coroutine_inside_another_is_no_foreign_wait() {
        let coro: Plain<'_, u32> = Coroutine::new(async |mut co| {
            let sum = count_up_to(4).into_iter().sum();
            co.yield_(sum).await.map(drop)
        });
        assert_eq!(coro.resume(), Ok(Yielded(6)));
    }

    #[test]
    #[should_panic(expected = "a Co was used outside of the coroutine it was made for")]
    fn a_co_that_left_its_body_panics_instead_of_hanging() {
        let coro: Plain<'_, u8, Co<u8>> = Coroutine::new(async |co| Ok(co));
        let Ok(Returned(mut co)) = coro.resume() else { unreachable!() };
        let yielding = pin!(co.yield_(1));
        let _ = yielding.poll(&mut Context::from_waker(Waker::noop()));
    }

    #[test]
    fn a_co_that_left_a_body_that_panicked_panics_too() {
        let stolen = RefCell::new(None);
        let coro: Plain<'_, u8> = Coroutine::new(async |co| {
            stolen.replace(Some(co));
            panic!("broken body")
        });
        assert!(catch_unwind(AssertUnwindSafe(|| coro.resume())).is_err());
        let mut co = stolen.take().unwrap();
        let poll_once = || pin!(co.yield_(1)).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(catch_unwind(AssertUnwindSafe(poll_once)).is_err());
    }

    #[test]
    fn an_abandoned_yield_was_never_yielded() {
        let coro: Plain<'_, &str> = Coroutine::new(async |mut co| {
            {
                let mut abandoned = pin!(co.yield_("abandoned"));
                poll_fn(|cx| Poll::Ready(abandoned.as_mut().poll(cx).is_pending())).await;
            }
            co.yield_("kept").await.map(drop)
        });
        assert_eq!(coro.resume(), Ok(Yielded("kept")));
        assert_eq!(coro.resume(), Ok(Returned(())));
    }

    #[test]
    fn a_yield_polled_twice_in_one_step_yields_once() {
        let coro: Coroutine<'_, &str, u8, Option<u8>> = Coroutine::new(async |mut co| {
            let mut yielding = pin!(co.yield_("once"));
            poll_fn(|cx| {
                let _ = yielding.as_mut().poll(cx).is_ready();
                Poll::Ready(())
            })
            .await;
            yielding.await
        });
        assert_eq!(coro.resume(), Ok(Yielded("once")));
        assert_eq!(coro.send(3), Ok(Returned(Some(3))));
    }

    #[test]
    fn what_is_sent_to_an_abandoned_yield_does_not_reach_the_next() {
        let coro: Coroutine<'_, u8, u8, Option<u8>> = Coroutine::new(async |mut co| {
            let mut polls = 0;
            {
                let mut yielding = pin!(co.yield_(1));
                poll_fn(|cx| {
                    polls += 1;
                    if polls == 2 {
                        return Poll::Ready(());
                    }
                    yielding.as_mut().poll(cx).map(drop)
                })
                .await;
            }
            co.yield_(2).await
        });
        assert_eq!(coro.resume(), Ok(Yielded(1)));
        assert_eq!(coro.send(10), Ok(Yielded(2)));
        assert_eq!(coro.send(20), Ok(Returned(Some(20))));
    }
}

#[test]
fn errors_say_what_happened() {
    type Refused = ResumeError<Infallible, u8>;
    let lines = [
        Refused::NotStarted(1).to_string(),
        Refused::Running(1).to_string(),
        Refused::Finished(1).to_string(),
        Refused::Raised(Thrown::Exit).to_string(),
        Refused::Raised(Thrown::Child(ChildFault::Running)).to_string(),
        ResumeError::<&str>::Raised("its own words".into()).to_string(),
        CloseError::<u8, Infallible>::Yielded(1).to_string(),
    ];
    assert_eq!(
        lines,
        [
            "a value was sent before the first resume",
            "the coroutine is already running",
            "the coroutine has finished",
            "the coroutine was asked to exit",
            "delegated to a coroutine that is running",
            "its own words",
            "the coroutine yielded instead of exiting",
        ]
    );
}
