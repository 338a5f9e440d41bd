//! Signatures: calls that travel inside of messages, and what is published once their turn comes. Chains are spliced, groups
//! fanned out, both at any depth.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Chords, Extras, Following, Message, encode, parse_time};
use crate::codec::native::DecodeError;
use crate::moment;
use crate::task::{Envelope, Task, TaskId};

/// Deepest nesting of signatures. Each takes three levels of JSON, of which the reader allows 128.
const DEPTH_MAX: usize = 32;

pub(super) fn fail<T>(message: impl Into<String>) -> Result<T, DecodeError> {
    Err(DecodeError { message: message.into() })
}

pub(super) fn text<'a>(of: &'a Value, name: &str) -> Option<&'a str> {
    of.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// One alone may stand without a list.
pub(super) fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    match of.get(name) {
        Some(Value::Array(list)) => list,
        Some(one @ Value::Object(_)) => std::slice::from_ref(one),
        _ => &[],
    }
}

pub(super) fn options(signature: &Value) -> &Value {
    signature.get("options").unwrap_or(&Value::Null)
}

pub(super) fn options_mut(signature: &mut Value) -> &mut Map<String, Value> {
    if !signature.get("options").is_some_and(Value::is_object) {
        signature["options"] = json!({});
    }
    let Some(Value::Object(options)) = signature.get_mut("options") else { unreachable!("just made") };
    options
}

pub(super) fn members(signature: &Value) -> &[Value] {
    list(signature.get("kwargs").unwrap_or(&Value::Null), "tasks")
}

/// A number of seconds, as Celery's options have them.
fn seconds(options: &Value, name: &str) -> Option<Duration> {
    let limit = options.get(name).and_then(Value::as_f64).and_then(|limit| Duration::try_from_secs_f64(limit).ok());
    limit.filter(|limit| !limit.is_zero())
}

/// A time, as text or as kombu wraps one; or a number of seconds from now.
fn time(options: &Value, name: &str, now: Timestamp) -> Option<Timestamp> {
    let value = options.get(name)?;
    let text = value.as_str().or_else(|| value.get("__value__").and_then(Value::as_str));
    text.and_then(parse_time).or_else(|| seconds(options, name).map(|after| moment::after(now, after)))
}

/// Collects the ids of a chain that will not go on, and where callers may wait for them.
pub(super) fn waited_for(step: &Value, otherwise: Option<&str>, found: &mut Vec<(String, Option<String>)>) {
    let options = options(step);
    let queue = text(options, "reply_to").or(otherwise);
    match (text(step, "subtask_type"), text(options, "task_id")) {
        (Some("group" | "chain"), _) => {
            members(step).iter().for_each(|member| waited_for(member, otherwise, found));
        }
        (Some("chord"), _) => {
            if let Some(body) = step.get("kwargs").and_then(|kwargs| kwargs.get("body")) {
                waited_for(body, otherwise, found);
            }
        }
        (_, Some(id)) => found.push((id.to_owned(), queue.map(ToOwned::to_owned))),
        _ => {}
    }
}

/// What is given to a signature beside what it says itself.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// Goes before its own arguments, unless it is immutable.
    pub(super) first: &'a Value,
    /// What comes after it, the next one last.
    pub(super) chain: &'a [Value],
    /// The group it is part of, and where in it.
    pub(super) group: Option<(&'a str, u64)>,
    /// The body of the chord it is part of.
    pub(super) chord: Option<&'a Value>,
    pub(super) chords: Chords,
    pub(super) depth: usize,
    pub(super) now: Timestamp,
}

impl<'a> Given<'a> {
    pub(super) fn new(first: &'a Value, chords: Chords, now: Timestamp) -> Given<'a> {
        Given { first, chain: &[], group: None, chord: None, chords, depth: 0, now }
    }

    /// Writes into a signature's options what it is part of.
    pub(super) fn mark(&self, options: &mut Map<String, Value>) {
        if let Some((group, index)) = self.group {
            options.insert("group_id".to_owned(), json!(group));
            options.insert("group_index".to_owned(), json!(index));
        }
        if let Some(chord) = self.chord {
            options.insert("chord".to_owned(), chord.clone());
        }
    }
}

impl Message {
    /// What follows a task that returned `value`: its callbacks, then the next of its chain; and the children of the result.
    pub(super) fn after_success(
        &self,
        value: &Value,
        now: Timestamp,
        chords: Chords,
    ) -> Result<(Following, Vec<Value>), DecodeError> {
        let (mut following, mut children) = (Following::default(), Vec::new());
        let given = Given::new(value, chords, now);
        for callback in &self.callbacks {
            children.push(self.call(callback, given, &mut following)?);
        }
        if let Some((next, rest)) = self.chain.split_last() {
            children.push(self.call(next, Given { chain: rest, ..given }, &mut following)?);
        }
        Ok((following, children))
    }

    /// Returns the errbacks of a task that has failed for good. One that cannot be read is logged and does not stop the others.
    pub(super) fn after_failure(&self, errbacks: &[Value], id: &str, now: Timestamp) -> Vec<Envelope> {
        let first = json!(id);
        let mut following = Following::default();
        for errback in errbacks {
            if let Err(error) = self.call(errback, Given::new(&first, Chords::Refused, now), &mut following) {
                tracing::error!(task.id = id, error = error.message, "an errback cannot be sent");
            }
        }
        following.tasks
    }

    /// Makes messages of a signature; the result's child, as Celery writes it.
    pub(super) fn call(&self, signature: &Value, given: Given<'_>, into: &mut Following) -> Result<Value, DecodeError> {
        if given.depth > DEPTH_MAX {
            return fail(format!("signatures are nested more than {DEPTH_MAX} deep"));
        }
        let given = Given { depth: given.depth + 1, ..given };
        match text(signature, "subtask_type") {
            Some("chain") => self.call_chain(signature, given, into),
            Some("group") => self.call_group(signature, given, into),
            Some("chord") if given.chords == Chords::Counted => self.call_chord(signature, given, into),
            Some("chord") => fail("a chord needs a result backend that counts, which rpc:// is not"),
            _ => self.call_one(signature, given, into),
        }
    }

    fn call_chain(&self, chain: &Value, given: Given<'_>, into: &mut Following) -> Result<Value, DecodeError> {
        let mut steps = Vec::new();
        splice(chain, given.depth, &mut steps)?;
        if steps.is_empty() {
            return Ok(Value::Null);
        }
        let own = options(chain);
        let count = steps.len();
        for (at, step) in steps.iter_mut().enumerate() {
            if at + 1 < count && text(step, "subtask_type") == Some("group") {
                return fail("a group within a chain is a chord, which needs a result backend that counts");
            }
            let options = self.frozen(step);
            extend(options, "link_error", list(own, "link_error"));
            if at + 1 == count {
                extend(options, "link", list(own, "link"));
                if let Some(id) = text(own, "task_id") {
                    options.insert("task_id".to_owned(), json!(id));
                }
                for name in ["chord", "group_id", "group_index"] {
                    if let Some(value) = own.get(name).filter(|value| !value.is_null()) {
                        options.entry(name).or_insert_with(|| value.clone());
                    }
                }
                // Who counts a group's parts counts the ends of its chains.
                given.mark(options);
            }
        }
        prepend(&mut steps[0], list(chain, "args"));
        let last = steps.last().map(child_of).unwrap_or_default();
        let mut rest = given.chain.to_vec();
        rest.extend_from_slice(list(own, "chain"));
        rest.extend(steps.drain(1..).rev());
        if chain.get("immutable").and_then(Value::as_bool).unwrap_or(false) {
            steps[0]["immutable"] = json!(true);
        }
        self.call(&steps[0], Given { chain: &rest, group: None, chord: None, ..given }, into)?;
        Ok(last)
    }

    fn call_group(&self, group: &Value, given: Given<'_>, into: &mut Following) -> Result<Value, DecodeError> {
        let (made, own) = (TaskId::new(), options(group));
        let named = text(own, "group_id").or_else(|| text(own, "task_id"));
        let id = given.group.map(|(id, _)| id).or(named).unwrap_or(made.as_str());
        let chord = given.chord.or_else(|| own.get("chord").filter(|chord| !chord.is_null()));
        let mut children = Vec::new();
        for (at, member) in members(group).iter().enumerate() {
            let given = Given { group: Some((id, at as u64)), chord, ..given };
            children.push(self.call(member, given, into)?);
        }
        Ok(json!([[id, null], children]))
    }

    /// A single call as a message.
    fn call_one(&self, signature: &Value, given: Given<'_>, into: &mut Following) -> Result<Value, DecodeError> {
        let Some(name) = text(signature, "task") else { return fail("a signature names no task") };
        let options = options(signature);
        let immutable = signature.get("immutable").and_then(Value::as_bool).unwrap_or(false);
        let mut task = Task::new(name);
        if let Some(id) = text(options, "task_id") {
            task.id = TaskId::from(id);
        }
        if !immutable {
            task.args.push(given.first.clone());
        }
        task.args.extend_from_slice(list(signature, "args"));
        if let Some(Value::Object(kwargs)) = signature.get("kwargs") {
            task.kwargs = kwargs.clone();
        }
        task.soft_limit = seconds(options, "soft_time_limit");
        task.hard_limit = seconds(options, "time_limit");
        task.retries = options.get("retries").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        let priority = options.get("priority").and_then(Value::as_u64).and_then(|priority| u8::try_from(priority).ok());
        let countdown = seconds(options, "countdown").map(|after| moment::after(given.now, after));
        let reply_to = text(options, "reply_to").or(self.reply.as_ref().map(|reply| reply.queue.as_str()));
        let root = self.root_id.as_deref().unwrap_or(self.task.id.as_str());
        // Its own steps come before those behind it.
        let mut chain = given.chain.to_vec();
        chain.extend_from_slice(list(options, "chain"));
        let extras = Extras {
            eta: countdown.or_else(|| time(options, "eta", given.now)),
            expires: time(options, "expires", given.now),
            priority: priority.unwrap_or(0),
            reply_to: reply_to.map(ToOwned::to_owned),
            ignore_result: options.get("ignore_result").and_then(Value::as_bool),
            shadow: text(options, "shadow").map(ToOwned::to_owned),
            root_id: Some(root.to_owned()),
            parent_id: Some(self.task.id.to_string()),
            group: given.group.map(|(id, _)| id).or_else(|| text(options, "group_id")).map(ToOwned::to_owned),
            group_index: given.group.map(|(_, at)| at).or_else(|| options.get("group_index").and_then(Value::as_u64)),
            callbacks: list(options, "link").to_vec(),
            errbacks: list(options, "link_error").to_vec(),
            chain,
            chord: given.chord.or_else(|| options.get("chord").filter(|chord| !chord.is_null())).cloned(),
        };
        let queue = text(options, "queue").or_else(|| text(options, "routing_key")).unwrap_or(&self.queue);
        let child = json!([[task.id.as_str(), null], null]);
        into.tasks.push(encode(&task, queue, &extras));
        Ok(child)
    }

    /// A step's options, with an id and a place for its result: the producer of a chain knows both beforehand. A chain or chord
    /// that ends with an id has that one, and gets none of its own: it would replace the id that the producer waits for.
    pub(super) fn frozen<'a>(&self, step: &'a mut Value) -> &'a mut Map<String, Value> {
        let named = id_of(step).is_some();
        let options = options_mut(step);
        if !named {
            options.insert("task_id".to_owned(), json!(TaskId::new().as_str()));
        }
        if let Some(reply) = &self.reply {
            options.entry("reply_to").or_insert_with(|| json!(reply.queue));
        }
        options
    }
}

/// The signature that this one goes on to: the last step of a chain, the body of a chord.
fn inner(signature: &Value) -> Option<&Value> {
    match text(signature, "subtask_type") {
        Some("chain") => members(signature).last(),
        Some("chord") => signature.get("kwargs")?.get("body"),
        _ => None,
    }
    .filter(|inner| inner.is_object())
}

/// A signature, and all that it ends with: the last step of a chain, the body of a chord, at any depth.
pub(super) fn ends(signature: &Value) -> impl Iterator<Item = &Value> {
    std::iter::successors(Some(signature), |signature| inner(signature))
}

/// The innermost of [`ends`].
pub(super) fn end_of(signature: &mut Value) -> &mut Value {
    if inner(signature).is_none() {
        return signature;
    }
    let is_chain = text(signature, "subtask_type") == Some("chain");
    let next = match &mut signature["kwargs"][if is_chain { "tasks" } else { "body" }] {
        Value::Array(steps) => steps.last_mut(),
        one => Some(one),
    };
    end_of(next.expect("`inner` has seen it"))
}

/// The id under which the result of a signature is known: its own, or that of the signature it ends with.
pub(super) fn id_of(signature: &Value) -> Option<&str> {
    ends(signature).find_map(|end| text(options(end), "task_id"))
}

/// The steps of a chain, those of chains within it too, in the order they run.
fn splice(chain: &Value, depth: usize, into: &mut Vec<Value>) -> Result<(), DecodeError> {
    if depth > DEPTH_MAX {
        return fail(format!("signatures are nested more than {DEPTH_MAX} deep"));
    }
    for step in members(chain) {
        match text(step, "subtask_type") {
            Some("chain") => splice(step, depth + 1, into)?,
            _ if step.is_object() => into.push(step.clone()),
            _ => return fail("a step of a chain is no signature"),
        }
    }
    Ok(())
}

pub(super) fn extend(options: &mut Map<String, Value>, name: &str, with: &[Value]) {
    if with.is_empty() {
        return;
    }
    let mut all = match options.remove(name) {
        Some(Value::Array(list)) => list,
        Some(one @ Value::Object(_)) => vec![one],
        _ => Vec::new(),
    };
    all.extend_from_slice(with);
    options.insert(name.to_owned(), Value::Array(all));
}

fn prepend(step: &mut Value, first: &[Value]) {
    if first.is_empty() {
        return;
    }
    let mut args = first.to_vec();
    args.extend_from_slice(list(step, "args"));
    step["args"] = Value::Array(args);
}

/// A signature's result, as Celery writes it.
fn child_of(signature: &Value) -> Value {
    let id = options(signature).get("task_id");
    match text(signature, "subtask_type") {
        Some("group") => json!([[id, null], members(signature).iter().map(child_of).collect::<Vec<_>>()]),
        Some("chain") => members(signature).last().map(child_of).unwrap_or_default(),
        Some("chord") => {
            let body = signature.get("kwargs").and_then(|kwargs| kwargs.get("body"));
            let named = body.filter(|body| text(options(body), "task_id").is_some());
            named.map_or_else(|| json!([[id, null], null]), child_of)
        }
        _ => json!([[id, null], null]),
    }
}
