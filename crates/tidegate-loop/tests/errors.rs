//! Errors travel: they are `Send`, `Sync` and `std::error::Error`, so that `?` works in functions that return
//! `anyhow::Result` or a boxed error.

use std::error::Error;
use std::net::AddrParseError;

use tidegate_loop::net::AddressError;
use tidegate_loop::process::ProcessError;
use tidegate_loop::{
    CleanupError, CloseError, Elapsed, EmptyWait, FutureError, GatherError, GroupClosed, GroupError, InvalidState,
    JobError, JoinError, LoopClosed, LoopError, LoopHandle, Report, ResetError, RunError, StillRunning, TaskDump,
    UnknownSelector, WrongLoop, run, spawn,
};

#[test]
fn every_error_is_an_error_that_can_be_sent_and_shared() {
    fn travels<E: Error + Send + Sync + 'static>() {}
    travels::<RunError>();
    travels::<CleanupError>();
    travels::<CloseError>();
    travels::<LoopClosed>();
    travels::<LoopError>();
    travels::<JoinError>();
    travels::<FutureError>();
    travels::<InvalidState<u32>>();
    travels::<GatherError<u32>>();
    travels::<GroupError<String>>();
    travels::<GroupClosed>();
    travels::<EmptyWait>();
    travels::<Elapsed>();
    travels::<JobError>();
    travels::<StillRunning>();
    travels::<ResetError>();
    travels::<WrongLoop>();
    travels::<UnknownSelector>();
    travels::<AddressError>();
    travels::<ProcessError>();
    fn crosses<T: Send + Sync>() {}
    crosses::<TaskDump>();
    crosses::<Report>();
}

type Boxed = Box<dyn Error + Send + Sync>;

#[test]
fn the_question_mark_works_in_a_function_that_returns_a_boxed_error() {
    fn program(port: &'static str) -> Result<u16, Boxed> {
        run(async move {
            let parsed = spawn(async move { port.parse::<u16>() }).await??;
            let future = LoopHandle::current().create_future();
            future.set_result(parsed)?;
            Ok(future.await?)
        })?
    }
    assert_eq!(program("8080").unwrap(), 8080);
    assert_eq!(program("x").unwrap_err().to_string(), "invalid digit found in string");
}

#[test]
fn an_error_of_a_future_can_be_asked_for_its_type() {
    run(async {
        let future = LoopHandle::current().create_future::<()>();
        let error: AddrParseError = "nowhere".parse::<std::net::IpAddr>().unwrap_err();
        future.set_exception(error).unwrap();
        let Err(FutureError::Failed(error)) = future.await else { unreachable!() };
        assert!(error.downcast_ref::<AddrParseError>().is_some());
    })
    .unwrap();
}
