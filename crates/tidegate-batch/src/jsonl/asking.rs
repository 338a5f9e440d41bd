//! One request of a run: asked, judged, and handed to the writer.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use tidegate_sync::{Event as Signal, Permit, Semaphore};

use super::body::{check, estimate, path_below, with_model};
use super::line::{Answered, Format, RequestLine, on_one_line, result_line};
use super::run::Run;
use super::writing::{Finished, ToWrite};
use crate::call::{Call, Reply};
use crate::call_error::CallError;
use crate::caller::Caller;
use crate::provider::{BadModel, Unreadable};
use crate::run::policy::Verdict;
use crate::run::{ItemHandle, ItemId, ItemScope, ItemState, Settled, Wish};

impl Run {
    pub(super) async fn ask(&self, line: u64, request: RequestLine, wish: Option<Wish>) {
        let RequestLine { format, id, url, body } = request;
        let id: Rc<str> = id.into();
        let retry = wish.map(|wish| Retry { run: self, line, wish: Some(wish) });
        let item = ItemHandle { control: self.control.clone(), id: ItemId::Request { line }, name: Rc::clone(&id) };
        let scope = ItemScope::new(self.scope.clone(), item);
        // Held until the result is on the disk.
        let mut unsaved = None;
        let outcome = match call_for(&self.caller, self.model.as_deref(), format, &url, body) {
            Ok(call) => {
                self.will_send();
                send(&self.caller, &scope, &call, Some(&self.unsaved)).await.map(|(answered, permit)| {
                    unsaved = permit;
                    answered
                })
            }
            Err(bad) => Err(bad.into()),
        };
        match self.policy.judge(&outcome) {
            Verdict::Record => {}
            Verdict::RecordAndStop(reason) => self.control.give_up(reason),
            Verdict::Stop(reason) => return self.control.give_up(reason),
            Verdict::Hold(reason) => {
                if !self.is_answered_while_held(reason).await {
                    return;
                }
            }
            Verdict::Drop => return,
        }
        let settled = match &outcome {
            Ok(answered) => Settled { state: ItemState::Done, usage: answered.usage },
            Err(error) => Settled {
                state: ItemState::Failed { code: error.code().into(), reason: error.to_string() },
                usage: None,
            },
        };
        let (text, written) = (result_line(format, &id, &outcome), Rc::new(Signal::new()));
        drop(outcome);
        let before = retry.and_then(Retry::take).map(|wish| wish.before);
        if before.is_some() {
            self.repeated.borrow_mut().insert(Rc::clone(&id));
        }
        let finished = Finished { line, id, settled, before, text, written: Rc::clone(&written) };
        // Closed, nothing more is written.
        if self.results.push(ToWrite::Result(finished)).await.is_ok() {
            written.wait().await;
        }
        drop(unsaved);
    }

    /// Waits until a request is answered. Returns `false` if the run stops before, which it does when all that are asked, or
    /// enough of them, were refused.
    async fn is_answered_while_held(&self, reason: String) -> bool {
        let _held = self.policy.hold(reason);
        self.stop_if_all_held();
        self.control.unless_stopping(self.policy.answered()).await.is_some()
    }
}

/// The call that a line is, to `model` if one is given.
pub(super) fn call_for(
    caller: &Caller,
    model: Option<&str>,
    format: Format,
    url: &str,
    body: Vec<u8>,
) -> Result<Call, BadModel> {
    let dialect = caller.dialect();
    // It is an object: its line was read.
    let parsed: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = match (format, model) {
        (Format::Gemini, Some(model)) => dialect.path(model)?,
        _ => path_below(caller.base_url(), url).to_owned(),
    };
    let (estimate, admitted_tokens) = estimate(dialect, &path, &parsed);
    let body = match (model, format) {
        (Some(model), Format::OpenAi) => with_model(parsed, model),
        _ => body,
    };
    Ok(Call { admitted_tokens, ..Call::new(path, body.into(), estimate) })
}

/// Sends it. A permit of `unsaved` is held with the answer.
pub(super) async fn send(
    caller: &Caller,
    scope: &ItemScope,
    call: &Call,
    unsaved: Option<&Arc<Semaphore>>,
) -> Result<(Answered, Option<Permit<Arc<Semaphore>>>), CallError> {
    let dialect = caller.dialect();
    let read = |body: &[u8]| match check(dialect, &call.path, body) {
        Ok(()) => Ok(on_one_line(body)),
        Err(reason) => Err(Unreadable::Garbled(reason)),
    };
    let (reply, permit) = caller.call_within(scope, call, read, unsaved).await?;
    let Reply { status, request_id, value, usage, .. } = reply;
    Ok((Answered { status, request_id, body: value, usage }, permit))
}

/// A request that is asked again. Dropped before it has a result, it is as it was.
struct Retry<'a> {
    run: &'a Run,
    line: u64,
    wish: Option<Wish>,
}

impl Retry<'_> {
    fn take(mut self) -> Option<Wish> {
        self.wish.take()
    }
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        if let Some(wish) = self.wish.take() {
            self.run.control.give_back(ItemId::Request { line: self.line }, wish);
        }
    }
}
