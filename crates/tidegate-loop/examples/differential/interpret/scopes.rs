//! Time-outs and groups: scopes of the loop's, which must see a cancellation that leaves them.

use std::cell::RefCell;
use std::rc::Rc;

use tidegate_loop::{Cancelled, Deadline, Elapsed, GroupError, GroupFailure, TaskGroup, timeout, timeout_at};

use super::coroutine::{Flow, Frame};
use super::exc::{Exc, python_bool};
use super::world::{World, span};
use crate::program::{Block, Limit, Place};

/// An open time-out: the deadline, where it can be moved.
pub(crate) type TimeoutScope = Option<Deadline>;

/// A group, the number of the task that opened it, and those of its children.
#[derive(Clone)]
pub(crate) struct Group {
    scope: TaskGroup<Exc>,
    parent: usize,
    children: Rc<RefCell<Vec<usize>>>,
}

impl Frame {
    pub(crate) async fn timeout(&self, limit: Limit, movable: bool, body: &Block) -> Flow {
        self.write("timeout enter");
        let deadline = movable.then(|| match limit {
            Limit::In(ticks) => Deadline::after(span(ticks)),
            Limit::At(ticks) => Deadline::at(self.world.instant(ticks)),
            Limit::Never => Deadline::never(),
        });
        let inner = async {
            self.timeouts.borrow_mut().push(deadline.clone());
            let flow = self.block(body).await;
            self.timeouts.borrow_mut().pop();
            leaving(flow).await
        };
        let elapsed = |_: Elapsed| Exc::Timeout;
        let flow = match (&deadline, limit) {
            (Some(deadline), _) => self.caught(async { deadline.scope(inner).await.map_err(elapsed)? }).await,
            (None, Limit::In(ticks)) => {
                self.caught(async { timeout(span(ticks), inner).await.map_err(elapsed)? }).await
            }
            (None, Limit::At(ticks)) => {
                let when = self.world.instant(ticks);
                self.caught(async { timeout_at(when, inner).await.map_err(elapsed)? }).await
            }
            (None, Limit::Never) => unreachable!("only what can be moved starts without a limit"),
        };
        let expired =
            deadline.map_or(String::new(), |deadline| format!(" expired={}", python_bool(deadline.expired())));
        match &flow {
            Ok(_) => self.write(format_args!("timeout exit ok{expired}")),
            Err(exc) => self.write(format_args!("timeout exit !{exc}{expired}")),
        }
        flow
    }

    pub(crate) fn reschedule(&self, limit: Limit) {
        let Some(Some(deadline)) = self.timeouts.borrow().last().cloned() else { return self.write("reschedule none") };
        // tidegate passes over what comes too late; CPython says so.
        let answer = if deadline.expired() { "TooLate" } else { "ok" };
        deadline.reschedule(match limit {
            Limit::In(ticks) => Some(self.world.handle.time() + span(ticks)),
            Limit::At(ticks) => Some(self.world.instant(ticks)),
            Limit::Never => None,
        });
        self.write(format_args!("reschedule {answer}"));
    }

    pub(crate) async fn group(&self, place: Place, body: &Block) -> Flow {
        self.write("group enter");
        let parent = self.record.number;
        let children = Rc::new(RefCell::default());
        let scope = TaskGroup::scope(async |scope: &TaskGroup<Exc>| {
            let group = Group { scope: scope.clone(), parent, children: Rc::clone(&children) };
            self.world.groups.borrow_mut()[place] = Some(group);
            leaving(self.block(body).await).await
        });
        let flow = self.caught(async { scope.await.map_err(group_error) }).await;
        self.world.end_wait(parent, &children.borrow());
        match &flow {
            Ok(_) => self.write("group exit ok"),
            Err(exc) => self.write(format_args!("group exit !{exc}")),
        }
        flow
    }
}

impl World {
    pub(crate) fn group_spawn(self: &Rc<Self>, who: &str, group: Place, place: Place, body: usize) {
        let Some(group) = self.groups.borrow()[group].clone() else { return self.write(who, "group spawn none") };
        let Some(record) = self.next_record(who) else { return };
        let Ok(handle) = group.scope.spawn(self.clone().task_body(record.clone(), body)) else {
            return self.write(who, "group spawn GroupClosed");
        };
        record.born_in_group(handle.task());
        self.enter(&record, place);
        self.begin_wait(group.parent, &[record.number]);
        group.children.borrow_mut().push(record.number);
        self.write(who, format_args!("group spawn {}", record.who));
    }
}

/// Hands a scope what its body came to; a cancellation must leave the body as one.
async fn leaving(flow: Flow) -> Flow {
    if flow == Err(Exc::Cancelled) {
        Cancelled.propagate().await;
    }
    flow
}

fn group_error(error: GroupError<Exc>) -> Exc {
    let failures = error.failures.into_iter().map(|failure| match failure {
        GroupFailure::Failed(exc) => exc,
        other => panic!("no program does this: {other:?}"),
    });
    Exc::Group(failures.collect())
}
