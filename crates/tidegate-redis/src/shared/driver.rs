//! The task of a shared gate: one call at a time with all reports and requests. Between calls it sleeps until the instant
//! that Redis returned, a notification, or a renewal.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tidegate_limit::EnterError;
use tidegate_loop::{sleep, sleep_until};

use super::core::{Applied, Batch};
use super::{OnLoss, Shared};
use crate::client::Script;
use crate::error::{CallError, RefusalKind};
use crate::wire::Value;

const TEXT: &str = include_str!("decide.lua");

/// Delay between attempts while Redis answers with errors.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

pub(super) async fn drive(shared: Rc<Shared>) {
    let mut script = None;
    loop {
        if !idle(&shared).await {
            break;
        }
        let batch = {
            let mut core = shared.core.borrow_mut();
            core.batch(shared.now())
        };
        if !send(&shared, &mut script, batch).await {
            break;
        }
        shared.refuse_if_closed();
    }
    let mut wake = Vec::new();
    {
        let mut core = shared.core.borrow_mut();
        let mut rest = core.batch(shared.now());
        core.refuse_all(&mut rest, &EnterError::Closed, &mut wake);
    }
    wake.into_iter().for_each(std::task::Waker::wake);
}

/// Waits until a call is due; `false` once the gate is closed and everything was reported.
async fn idle(shared: &Shared) -> bool {
    loop {
        let now = shared.now();
        let (due, idle) = {
            let core = shared.core.borrow();
            (core.due(now), core.is_idle())
        };
        if shared.is_closed() && idle {
            return false;
        }
        match due {
            Some(due) if due <= now => return true,
            Some(due) => {
                let seen = shared.nudges.get();
                let mut alarm = pin!(sleep_until(due));
                let rang = poll_fn(|cx| {
                    if alarm.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(true);
                    }
                    shared.poll_nudge(cx, seen).map(|()| false)
                })
                .await;
                if rang {
                    shared.core.borrow_mut().stats.alarms += 1;
                    return true;
                }
            }
            None => {
                let seen = shared.nudges.get();
                poll_fn(|cx| shared.poll_nudge(cx, seen)).await;
            }
        }
    }
}

/// Tells one batch until it is answered; `false` if the gate was closed and Redis cannot be told.
async fn send(shared: &Rc<Shared>, script: &mut Option<Script>, mut batch: Batch) -> bool {
    loop {
        if !shared.client.is_up() && !outage(shared, &mut batch).await {
            return false;
        }
        let outcome = match script {
            None => match Script::load(&shared.client, TEXT).await {
                Ok(loaded) => {
                    *script = Some(loaded);
                    continue;
                }
                Err(error) => Err(error),
            },
            Some(script) => {
                let sent_at = shared.now();
                let arguments = shared.core.borrow().encode(&batch, sent_at);
                shared.client.run_script(script, &arguments).await.map(|value| (value, sent_at))
            }
        };
        match outcome {
            Ok((Value::Bytes(text), sent_at)) => {
                let mut wake = Vec::new();
                let applied = {
                    let mut core = shared.core.borrow_mut();
                    core.stats.fault = None;
                    core.apply(&mut batch, &text, sent_at, &mut wake)
                };
                wake.into_iter().for_each(std::task::Waker::wake);
                match applied {
                    Applied::Done => return true,
                    Applied::Again => {}
                    Applied::Garbled => {
                        let text = String::from_utf8_lossy(&text);
                        let text = shared.client.redact(&text);
                        shared.shut(batch, &format!("{} answers {text:?} to its script", shared.client.address()));
                        return true;
                    }
                }
            }
            Ok((other, _)) => {
                shared.shut(batch, &format!("{} answers {} to its script", shared.client.address(), other.kind()));
                return true;
            }
            Err(CallError::Unanswered { .. }) => {}
            Err(CallError::Refused(refusal)) => match refusal.kind {
                RefusalKind::NotReady | RefusalKind::OutOfMemory | RefusalKind::ReadOnly => {
                    tracing::warn!(gate = &*shared.name, %refusal, "trying again");
                    shared.core.borrow_mut().stats.fault = Some(refusal.to_string().into());
                    if shared.is_closed() {
                        return false;
                    }
                    sleep(REFUSED_PAUSE).await;
                }
                _ => {
                    shared.shut(batch, &refusal.to_string());
                    return true;
                }
            },
            Err(CallError::Unusable(error)) => {
                shared.shut(batch, &error.to_string());
                return true;
            }
            Err(CallError::Closed) => {
                shared.shut(batch, "its Redis client was closed");
                shared.close_now(EnterError::Closed);
                return false;
            }
        }
    }
}

/// Until there is a connection again; meanwhile the stated policy holds. `false` if the gate was closed.
async fn outage(shared: &Rc<Shared>, batch: &mut Batch) -> bool {
    let mut counted = false;
    loop {
        let (changes, nudges) = (shared.client.changes(), shared.nudges.get());
        if shared.client.is_up() {
            return true;
        }
        if shared.is_closed() {
            return false;
        }
        if let Some(fault) = shared.client.fault() {
            shared.note_loss(!std::mem::replace(&mut counted, true), &fault.to_string());
            match shared.on_loss {
                OnLoss::LocalShare { share } => {
                    shared.core.borrow_mut().orphan(batch);
                    if super::local::serve(shared, share).await {
                        continue;
                    }
                }
                // Waiting does not cure a wrong password.
                OnLoss::Stop if !fault.is_temporary() => {
                    let why = EnterError::Shut { limit: shared.name.clone(), reason: fault.to_string().into() };
                    let mut wake = Vec::new();
                    shared.core.borrow_mut().refuse_all(batch, &why, &mut wake);
                    wake.into_iter().for_each(std::task::Waker::wake);
                }
                OnLoss::Stop => {}
            }
        }
        let mut changed = pin!(shared.client.changed(changes));
        poll_fn(|cx| {
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            shared.poll_nudge(cx, nudges)
        })
        .await;
    }
}
