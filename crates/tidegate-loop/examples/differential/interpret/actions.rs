//! What never waits: in coroutines and in callbacks alike.

use std::fmt::Display;
use std::rc::Rc;

use tidegate_loop::{ContextVar, ContextVars, Task, interrupt};

use super::exc::{Exc, python_bool, show};
use super::world::{AnyHandle, Mark, World};
use crate::program::{Action, Callback, Place};

/// A tick in seconds, for delays that may be negative.
const TICK_SECONDS: f64 = 1.0 / 512.0;

static VARS: [ContextVar<i64>; 2] = [ContextVar::new("var0"), ContextVar::with_default("var1", || 100)];

impl World {
    /// Does one action. `in_task` says whether a coroutine acts; a callback is in no task.
    pub(crate) fn act(self: &Rc<Self>, who: &str, in_task: bool, action: &Action) {
        match action {
            Action::Spawn { place, body, start } => self.spawn(who, Some(*place), *body, *start),
            Action::Cancel(place) => match self.known(*place) {
                None => self.write(who, "cancel none"),
                Some(record) => {
                    let taken = record.task().cancel();
                    self.write(who, format_args!("cancel {} {}", record.who, python_bool(taken)));
                }
            },
            Action::GroupSpawn { group, place, body } => self.group_spawn(who, *group, *place, *body),
            Action::UncancelTask(place) => match self.known(*place) {
                None => self.write(who, "uncancel none"),
                Some(record) => {
                    let left = record.task().uncancel();
                    self.write(who, format_args!("uncancel {} {left}", record.who));
                }
            },
            Action::CancelSelf if in_task => {
                let taken = Task::current().cancel();
                self.write(who, format_args!("cancel self {}", python_bool(taken)));
            }
            Action::CancelSelf => self.write(who, "cancel self none"),
            Action::Uncancel if in_task => {
                let left = Task::current().uncancel();
                self.write(who, format_args!("uncancel {left}"));
            }
            Action::Uncancel => self.write(who, "uncancel none"),
            Action::ShowTask(place) => match self.known(*place) {
                None => self.write(who, "show none"),
                Some(record) => {
                    let cancelling = record.task().cancelling();
                    self.write(who, format_args!("show {} {} cancelling={cancelling}", record.who, record.state()));
                }
            },
            Action::CallSoon { .. } | Action::CallLater { .. } | Action::CallAt { .. } => self.schedule(who, action),
            Action::CancelHandle(place) => self.cancel_handle(who, *place),
            Action::OnTaskDone { .. } | Action::OnFutureDone { .. } | Action::RemoveCallback(_) => {
                self.mark(who, action);
            }
            Action::SetVar { .. } | Action::GetVar(_) | Action::ResetVar(_) | Action::CopyContext(_) => {
                self.context(who, action);
            }
            Action::Fail(number) => {
                self.write(who, format_args!("fail {number}"));
                // Resumed rather than raised: the loop sees a panic, the panic hook has nothing to print.
                std::panic::resume_unwind(Box::new(Exc::Error(*number).to_string()));
            }
            Action::Stop => {
                self.write(who, "stop");
                self.handle.stop();
            }
            Action::Interrupt => {
                self.write(who, "interrupt");
                interrupt("as the program says");
            }
            _ => self.act_on_future(who, action),
        }
    }

    /// The values of the context variables here, for a task or callback that begins to run.
    pub(crate) fn vars(&self) -> String {
        if self.shows_vars { format!(" vars {} {}", value_of(0), value_of(1)) } else { String::new() }
    }

    fn act_on_future(&self, who: &str, action: &Action) {
        let set = |what: &str, place: Place, refused: bool| {
            let answer = if refused { "InvalidState" } else { "ok" };
            self.write(who, format_args!("set {what} F{place} {answer}"));
        };
        match *action {
            Action::NewFuture(place) => {
                let fresh = self.handle.create_future();
                let before = std::mem::replace(&mut self.futures.borrow_mut()[place], fresh);
                drop(before);
                self.write(who, format_args!("new F{place}"));
            }
            Action::SetResult(place, value) => set("result", place, self.future(place).set_result(value).is_err()),
            Action::SetError(place, number) => {
                set("error", place, self.future(place).set_exception(Exc::Error(number)).is_err());
            }
            Action::CancelFuture(place) => {
                let taken = self.future(place).cancel();
                self.write(who, format_args!("cancel F{place} {}", python_bool(taken)));
            }
            Action::ShowFuture(place) => self.write(who, format_args!("show F{place} {}", self.future_state(place))),
            ref other => unreachable!("{other:?} is no future's"),
        }
    }

    pub(crate) fn future(&self, place: Place) -> tidegate_loop::Deferred<i64> {
        self.futures.borrow()[place].clone()
    }

    pub(crate) fn future_state(&self, place: Place) -> String {
        state_of(&self.future(place))
    }

    fn schedule(self: &Rc<Self>, who: &str, action: &Action) {
        let (place, handle, label) = match action {
            Action::CallSoon { place, callback } => {
                let handle = self.handle.call_soon(self.job(callback));
                self.write(who, format_args!("call_soon c{}", callback.label));
                (*place, AnyHandle::Soon(handle), None)
            }
            Action::CallLater { place, delay, callback } => {
                let timer = self.handle.call_later(*delay as f64 * TICK_SECONDS, self.job(callback));
                (*place, AnyHandle::Timer(timer), Some(callback.label))
            }
            Action::CallAt { place, when, callback } => {
                let timer = self.handle.call_at(self.instant(*when), self.job(callback));
                (*place, AnyHandle::Timer(timer), Some(callback.label))
            }
            other => unreachable!("{other:?} schedules nothing"),
        };
        if let (AnyHandle::Timer(timer), Some(label)) = (&handle, label) {
            self.write(who, format_args!("timer c{label} at {}", self.ticks_at(timer.when())));
        }
        let before = self.handles.borrow_mut()[place].replace(handle);
        drop(before);
    }

    fn job(self: &Rc<Self>, callback: &Callback) -> impl FnOnce() + 'static {
        let (world, callback) = (self.clone(), callback.clone());
        move || world.call(&callback, "called")
    }

    fn call(self: &Rc<Self>, callback: &Callback, why: impl Display) {
        let who = format!("c{}", callback.label);
        self.write(&who, format_args!("{why}{}", self.vars()));
        callback.actions.iter().for_each(|action| self.act(&who, false, action));
    }

    fn cancel_handle(&self, who: &str, place: Place) {
        let handles = self.handles.borrow();
        let (before, after) = match &handles[place] {
            None => return self.write(who, "cancel handle none"),
            Some(AnyHandle::Soon(handle)) => {
                let before = handle.cancelled();
                handle.cancel();
                (before, handle.cancelled())
            }
            Some(AnyHandle::Timer(handle)) => {
                let before = handle.cancelled();
                handle.cancel();
                (before, handle.cancelled())
            }
        };
        self.write(who, format_args!("cancel handle {} {}", python_bool(before), python_bool(after)));
    }

    fn mark(self: &Rc<Self>, who: &str, action: &Action) {
        let (mark, name, place, label) = match action {
            Action::OnTaskDone { mark, task, callback } => {
                let Some(record) = self.known(*task) else { return self.write(who, "on done none") };
                let (world, callback, seen) = (self.clone(), callback.clone(), record.clone());
                let label = callback.label;
                let id = record.task().add_done_callback(move |_| {
                    world.call(&callback, format_args!("done {} {}", seen.who, seen.state()));
                });
                (Mark::Task(record.task().clone(), id), record.who.clone(), *mark, label)
            }
            Action::OnFutureDone { mark, future: number, callback } => {
                let (world, callback, number) = (self.clone(), callback.clone(), *number);
                let label = callback.label;
                let future = self.future(number);
                let id = future.add_done_callback(move |future| {
                    world.call(&callback, format_args!("done F{number} {}", state_of(future)));
                });
                (Mark::Future(future, id), format!("F{number}"), *mark, label)
            }
            Action::RemoveCallback(place) => {
                let marks = self.marks.borrow();
                let removed = match &marks[*place] {
                    None => return self.write(who, "remove none"),
                    Some(Mark::Task(task, id)) => task.remove_done_callback(*id),
                    Some(Mark::Future(future, id)) => future.remove_done_callback(*id),
                };
                return self.write(who, format_args!("remove {removed}"));
            }
            other => unreachable!("{other:?} is no done-callback's"),
        };
        self.marks.borrow_mut()[place] = Some(mark);
        self.write(who, format_args!("on done {name} c{label}"));
    }

    fn context(&self, who: &str, action: &Action) {
        match *action {
            Action::SetVar { var, value, token } => {
                let made = VARS[var].set(value);
                let before = self.tokens.borrow_mut()[token].replace((var, made));
                drop(before);
                self.write(who, format_args!("set var{var} {value}"));
            }
            Action::GetVar(var) => {
                self.write(who, format_args!("get var{var} {}", value_of(var)));
            }
            Action::ResetVar(place) => {
                let Some((var, token)) = self.tokens.borrow_mut()[place].take() else {
                    return self.write(who, "reset none");
                };
                let answer = if VARS[var].reset(token).is_ok() { "ok" } else { "refused" };
                self.write(who, format_args!("reset {var} {answer}"));
            }
            Action::CopyContext(place) => {
                self.contexts.borrow_mut()[place] = Some(ContextVars::current());
                self.write(who, "copy context");
            }
            ref other => unreachable!("{other:?} is no context's"),
        }
    }
}

fn value_of(var: usize) -> String {
    VARS[var].get().map_or_else(|| "None".into(), |value| value.to_string())
}

fn state_of(future: &tidegate_loop::Deferred<i64>) -> String {
    match future.result() {
        None => "pending".into(),
        Some(Err(tidegate_loop::FutureError::Cancelled)) => "cancelled".into(),
        Some(outcome) => show(&outcome.map_err(Exc::from)),
    }
}
