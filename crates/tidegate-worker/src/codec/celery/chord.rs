//! Chords: a group whose results are gathered for one task, its body. Who gathers and counts is a result backend; what is to be
//! counted, and what follows once all is there, is decided here.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::answer::exception;
use super::signature::{Given, end_of, ends, extend, fail, id_of, list, members, options, options_mut, text};
use super::{Following, Message, Status, repr};
use crate::broker::TaskError;
use crate::codec::native::DecodeError;
use crate::json as exact;
use crate::task::TaskId;

/// Whether the parts of chords are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chords {
    /// They are not: `rpc://` has no counter.
    Refused,
    /// A backend that all workers share.
    Counted,
}

/// A chord that begins.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Begun {
    /// It is known by its group.
    pub group: String,
    /// Of how many parts.
    pub size: u64,
    /// The group's results as Celery writes them, where there are groups within: the body gets lists within a list then.
    pub shape: Option<Value>,
}

/// What one task of a chord's group has to give.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Part {
    /// The chord, by its group.
    pub group: String,
    /// Its place among the results; behind all others if it has none.
    pub index: Option<u64>,
    /// What it gives.
    pub returned: Returned,
    /// The chord's body: what is called once all parts are there.
    pub body: Value,
}

/// A part as it is kept until all are there.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Returned {
    /// Of which task.
    pub id: String,
    /// In Celery's words.
    pub state: String,
    /// What it returned, or the exception.
    pub result: Value,
}

impl Returned {
    /// As Celery's backends keep it.
    pub fn encode(&self) -> Vec<u8> {
        exact::to_string(&json!([1, self.id, self.state, self.result])).into_bytes()
    }

    /// `None` if it is none.
    pub fn decode(body: &[u8]) -> Option<Returned> {
        let (_, id, state, result): (u64, String, String, Value) = exact::from_slice(body).ok()?;
        Some(Returned { id, state, result })
    }
}

/// How something ended, in Celery's words.
pub(super) struct End {
    state: &'static str,
    result: Value,
}

impl End {
    pub(super) fn new(state: &'static str, result: Value) -> End {
        End { state, result }
    }

    pub(super) fn part(&self, id: &str, group: &str, index: Option<u64>, body: &Value) -> Part {
        let returned = Returned { id: id.to_owned(), state: self.state.to_owned(), result: self.result.clone() };
        Part { group: group.to_owned(), index, returned, body: body.clone() }
    }
}

/// The parts that chords will never get from this signature, because what comes before it ended so: without them they would
/// wait for ever.
pub(super) fn owed(step: &Value, end: &End, found: &mut Vec<Part>) {
    owed_to(step, end, None, None, found);
}

/// `of`: the chord's body and its group, where the signature around this one says so; `at`: the place in that group.
fn owed_to(step: &Value, end: &End, of: Option<(&Value, &str)>, at: Option<u64>, found: &mut Vec<Part>) {
    let own = options(step);
    let chord = own.get("chord").filter(|chord| chord.is_object());
    let of = of.or_else(|| chord.zip(text(own, "group_id")));
    match text(step, "subtask_type") {
        Some("group") => {
            let of = of.or_else(|| chord.zip(text(own, "task_id")));
            for (at, member) in members(step).iter().enumerate() {
                owed_to(member, end, of, Some(at as u64), found);
            }
        }
        Some("chain") => {
            if let Some(last) = members(step).last() {
                owed_to(last, end, of, at, found);
            }
        }
        Some("chord") => {
            if let Some(body) = step.get("kwargs").and_then(|kwargs| kwargs.get("body")) {
                owed_to(body, end, of, at, found);
            }
        }
        _ => {
            if let (Some((body, group)), Some(id)) = (of, text(own, "task_id")) {
                let index = at.or_else(|| own.get("group_index").and_then(Value::as_u64));
                found.push(end.part(id, group, index, body));
            }
        }
    }
}

/// The results in their order; as lists within a list where the group has that shape.
fn gathered(parts: &[Returned], shape: Option<&Value>) -> Value {
    let by_id: HashMap<&str, &Value> = parts.iter().map(|part| (part.id.as_str(), &part.result)).collect();
    let shaped = shape.and_then(|shape| fill(shape, &by_id));
    shaped.unwrap_or_else(|| parts.iter().map(|part| part.result.clone()).collect())
}

fn fill(shape: &Value, by_id: &HashMap<&str, &Value>) -> Option<Value> {
    match shape.get(1)? {
        Value::Array(members) => members.iter().map(|member| fill(member, by_id)).collect(),
        _ => by_id.get(shape.get(0)?.get(0)?.as_str()?).map(|result| (*result).clone()),
    }
}

impl Message {
    /// What follows once all parts of a chord are there, in order: its body, or that it will never run. `last` is the part that
    /// was missing, `shape` as in [`Begun::shape`].
    pub fn after_chord(&self, last: &Part, parts: &[Returned], shape: Option<&Value>, now: Timestamp) -> Following {
        let body = &last.body;
        let called = match parts.iter().find(|part| part.state != "SUCCESS") {
            None => {
                let results = gathered(parts, shape);
                let mut following = Following::default();
                let given = Given::new(&results, Chords::Counted, now);
                self.call(body, given, &mut following).map(|_| following).map_err(|error| error.message)
            }
            Some(part) => {
                let kind = part.result.get("exc_type").and_then(Value::as_str).unwrap_or("Exception");
                let args = list(&part.result, "exc_message").iter().map(repr::repr).collect::<Vec<_>>().join(", ");
                Err(format!("Dependency {} raised {kind}({args})", part.id))
            }
        };
        called.unwrap_or_else(|message| {
            let kind = "celery.exceptions.ChordError".to_owned();
            let error = TaskError { kind, message, traceback: None };
            let end = End::new("FAILURE", exception(&error));
            let (mut answers, mut parts) = (Vec::new(), Vec::new());
            for step in std::iter::once(body).chain(ends(body).flat_map(|end| list(options(end), "chain"))) {
                answers.extend(self.told(step, Status::Failure(&error), now));
                owed(step, &end, &mut parts);
            }
            let id = id_of(body).unwrap_or_default();
            let tasks = self.after_failure(list(options(body), "link_error"), id, now);
            Following { answers, tasks, parts, ..Following::default() }
        })
    }

    /// A chord within a chain: its group is published, each member with the body it will be counted for.
    pub(super) fn call_chord(
        &self,
        chord: &Value,
        given: Given<'_>,
        into: &mut Following,
    ) -> Result<Value, DecodeError> {
        let kwargs = chord.get("kwargs").unwrap_or(&Value::Null);
        let Some(mut body) = kwargs.get("body").filter(|body| body.is_object()).cloned() else {
            return fail("a chord has no body");
        };
        let group = kwargs.get("header").filter(|header| header.is_object());
        let header = group.map_or_else(|| list(kwargs, "header"), members);
        let size: u64 = header.iter().map(|member| size(member, given.depth)).sum();
        if size == 0 {
            return fail("a chord has no tasks whose results its body could get");
        }
        let own = options(chord);
        if let (None, Some(id)) = (id_of(&body), text(own, "task_id")) {
            options_mut(&mut body).insert("task_id".to_owned(), json!(id));
        }
        let frozen = self.frozen(&mut body);
        for name in ["link", "link_error"] {
            extend(frozen, name, list(own, name));
        }
        // The end of the body goes on to what follows the chord, and is the part that a chord around it counts.
        let end = self.frozen(end_of(&mut body));
        let mut chain = given.chain.to_vec();
        chain.extend_from_slice(end.get("chain").and_then(Value::as_array).map_or(&[][..], Vec::as_slice));
        end.insert("chain".to_owned(), chain.into());
        given.mark(end);
        let child = json!([[id_of(&body), null], null]);
        let id = group.and_then(|group| text(options(group), "task_id"));
        let id = id.map_or_else(|| TaskId::new().to_string(), ToOwned::to_owned);
        let mut members = Vec::new();
        for (at, member) in header.iter().enumerate() {
            let part = Given { group: Some((&id, at as u64)), chord: Some(&body), chain: &[], ..given };
            members.push(self.call(member, part, into)?);
        }
        let nested = members.iter().any(|member| member.get(1).is_some_and(Value::is_array));
        let shape = nested.then(|| json!([[id, null], members]));
        into.chords.push(Begun { group: id, size, shape });
        Ok(child)
    }
}

/// How many results a member of a chord's group brings.
fn size(member: &Value, depth: usize) -> u64 {
    // Deeper than this it is refused anyway.
    if depth > 64 {
        return 0;
    }
    match text(member, "subtask_type") {
        Some("group") => members(member).iter().map(|member| size(member, depth + 1)).sum(),
        Some("chain") => {
            members(member).iter().rev().map(|step| size(step, depth + 1)).find(|size| *size > 0).unwrap_or(0)
        }
        Some("chord") => {
            member.get("kwargs").and_then(|kwargs| kwargs.get("body")).map_or(0, |body| size(body, depth + 1))
        }
        _ => 1,
    }
}
