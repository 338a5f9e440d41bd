//! Coroutines: blocks of statements, what they raise and what they return.

use std::cell::RefCell;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use tidegate_loop::{Cancelled, catch_cancel, sleep, yield_now};

use super::exc::{Exc, show};
use super::scopes::TimeoutScope;
use super::world::{Ended, Record, World, span};
use crate::program::{Block, Handler, Place, Stmt};

/// What a block came to: its end, or a `return`; or what it raised.
pub(crate) type Flow = Result<Option<i64>, Exc>;

/// One activation of a body: whose it is, and the scopes open around the statement being run.
pub(crate) struct Frame {
    pub(crate) world: Rc<World>,
    pub(crate) record: Rc<Record>,
    pub(crate) timeouts: RefCell<Vec<TimeoutScope>>,
    caught: RefCell<Vec<Exc>>,
}

impl World {
    /// A body as a task.
    pub(crate) async fn task_body(self: Rc<Self>, record: Rc<Record>, body: usize) -> Ended {
        self.write(&record.who, format_args!("starts{}", self.vars()));
        let ended = self.body(&record, body).await;
        self.write(&record.who, format_args!("ends {}", show(&ended)));
        *record.ended.borrow_mut() = Some(ended.clone());
        if ended == Err(Exc::Cancelled) {
            // A cancellation that leaves the body is the task's.
            Cancelled.propagate().await;
        }
        ended
    }

    async fn body(self: &Rc<Self>, record: &Rc<Record>, number: usize) -> Ended {
        let frame = Frame {
            world: self.clone(),
            record: record.clone(),
            timeouts: RefCell::default(),
            caught: RefCell::default(),
        };
        let bodies = self.bodies.clone();
        Ok(frame.block(&bodies[number]).await?.unwrap_or(0))
    }
}

impl Frame {
    pub(crate) fn write(&self, what: impl Display) {
        self.world.write(&self.record.who, what);
    }

    /// Runs statements up to the end, a `return` or an error. Boxed, because blocks nest.
    pub(crate) fn block<'a>(&'a self, stmts: &'a Block) -> Pin<Box<dyn Future<Output = Flow> + 'a>> {
        Box::pin(async move {
            for stmt in stmts {
                if let Some(value) = self.statement(stmt).await? {
                    return Ok(Some(value));
                }
            }
            Ok(None)
        })
    }

    async fn statement(&self, stmt: &Stmt) -> Flow {
        match stmt {
            Stmt::Do(action) => self.world.act(&self.record.who, true, action),
            Stmt::Sleep(ticks) => self.pause(format_args!("sleep {ticks}"), sleep(span(*ticks))).await?,
            Stmt::Yield => self.pause("yield", yield_now()).await?,
            Stmt::AwaitFuture(place) => self.await_future(*place).await?,
            Stmt::Call(body) => {
                let ended = self.world.body(&self.record, *body).await;
                self.done(format_args!("call {body}"), ended, equals)?;
            }
            Stmt::AwaitSelf => self.await_self().await?,
            Stmt::AwaitTask(place) => self.await_task(*place).await?,
            Stmt::Join(place) => self.join(*place).await?,
            Stmt::Shield(place) => self.shield(*place).await?,
            Stmt::WaitFor { task, limit } => self.wait_for(*task, *limit).await?,
            Stmt::Wait { tasks, mode, limit } => self.wait(tasks, *mode, *limit).await?,
            Stmt::Gather { tasks, keep_errors } => self.gather(tasks, *keep_errors).await?,
            Stmt::AsCompleted { tasks, take } => self.as_completed(tasks, *take).await?,
            Stmt::Timeout { limit, movable, body } => return self.timeout(*limit, *movable, body).await,
            Stmt::Reschedule(limit) => self.reschedule(*limit),
            Stmt::Group { place, body } => return self.group(*place, body).await,
            Stmt::Try { body, handlers, finally } => return self.guarded(body, handlers, finally.as_ref()).await,
            Stmt::Raise(number) => return Err(Exc::Error(*number)),
            Stmt::Reraise => {
                if let Some(exc) = self.caught.borrow().last() {
                    return Err(exc.clone());
                }
            }
            Stmt::Return(value) => return Ok(Some(*value)),
        }
        Ok(None)
    }

    /// Awaits something that may be cancelled; that is then what it raises.
    pub(crate) async fn caught<T>(&self, awaited: impl Future<Output = Result<T, Exc>>) -> Result<T, Exc> {
        catch_cancel(awaited).await.unwrap_or(Err(Exc::Cancelled))
    }

    /// Writes what an await came to, and hands it on.
    pub(crate) fn done<T>(
        &self,
        what: impl Display,
        outcome: Result<T, Exc>,
        show: impl FnOnce(&T) -> String,
    ) -> Result<T, Exc> {
        match &outcome {
            Ok(value) => self.write(format_args!("{what} {}", show(value))),
            Err(exc) => self.write(format_args!("{what} !{exc}")),
        }
        outcome
    }

    async fn pause(&self, what: impl Display, pause: impl Future<Output = ()>) -> Result<(), Exc> {
        let ended = catch_cancel(pause).await.map_err(|Cancelled| Exc::Cancelled);
        self.done(what, ended, |()| "ok".into())
    }

    async fn await_future(&self, place: Place) -> Result<(), Exc> {
        let future = self.world.future(place);
        let outcome = self.caught(async { future.await.map_err(Exc::from) }).await;
        self.done(format_args!("await F{place}"), outcome, equals)?;
        Ok(())
    }

    async fn guarded(&self, body: &Block, handlers: &[Handler], finally: Option<&Block>) -> Flow {
        let mut flow = self.block(body).await;
        if let Err(exc) = &flow
            && let Some(handler) = handlers.iter().find(|handler| exc.is_a(handler.catches))
        {
            self.write(format_args!("caught {exc}"));
            self.caught.borrow_mut().push(exc.clone());
            flow = self.block(&handler.body).await;
            self.caught.borrow_mut().pop();
        }
        let Some(finally) = finally else { return flow };
        self.write("finally");
        // What it raises or returns wins over what the body raised or returned.
        match self.block(finally).await? {
            Some(value) => Ok(Some(value)),
            None => flow,
        }
    }
}

/// A value as the transcript has it.
pub(crate) fn equals(value: &i64) -> String {
    format!("={value}")
}
