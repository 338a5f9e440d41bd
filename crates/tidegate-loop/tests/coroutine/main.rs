//! The coroutine protocol, claim by claim. The transcripts agree with what CPython prints for the
//! equivalent generators; a test named `unlike_python_…` shows where the two part on purpose, and
//! panics, unwinding and the futures in `misuse` have no counterpart there.

mod closing;
mod delegation;
mod iteration;
mod life_cycle;
mod misuse;
mod sending;
mod throwing;

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
