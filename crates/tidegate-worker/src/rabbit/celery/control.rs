//! Remote control as Celery's tools ask for it: what a request is, whom it is for, and what is answered. Pure: what is to be done
//! is told to a [`Panel`].

use serde_json::{Map, Value, json};

use super::glob;
use crate::task::TaskId;

/// Length of a pattern that selects workers. Names of hosts are shorter.
const PATTERN_BYTES_MAX: usize = 256;

/// A request of `celery inspect`, `celery control` or `app.control`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) arguments: Map<String, Value>,
    pub(super) reply: Option<ReplyTo>,
}

/// Where an answer goes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReplyTo {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) ticket: String,
}

/// Reads a request; `None` if it is not for the node of this name, or is none.
pub(super) fn request(body: &[u8], hostname: &str) -> Option<Request> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
    let destination = body.get("destination").filter(|destination| !destination.is_null());
    let pattern = text(&body, "pattern").zip(text(&body, "matcher"));
    let meant = match (destination, pattern) {
        (Some(Value::Array(names)), _) if !names.is_empty() => names.iter().any(|name| name == hostname),
        (_, Some((pattern, _))) if pattern.len() > PATTERN_BYTES_MAX => {
            let (bytes, most) = (pattern.len(), PATTERN_BYTES_MAX);
            tracing::warn!(bytes, most, "a remote control request was ignored: its pattern is too long");
            false
        }
        (_, Some((pattern, matcher))) if matcher == "glob" => glob::matches(&pattern, hostname),
        // Another way of matching than by glob is not ours to guess.
        (_, Some(_)) => false,
        _ => true,
    };
    if !meant {
        return None;
    }
    let arguments = match body.get("arguments") {
        Some(Value::Object(arguments)) => arguments.clone(),
        _ => Map::new(),
    };
    let reply = body.get("reply_to").and_then(|to| {
        let ticket = text(&body, "ticket").unwrap_or_default();
        Some(ReplyTo { exchange: text(to, "exchange")?, routing_key: text(to, "routing_key")?, ticket })
    });
    Some(Request { method: text(&body, "method")?, arguments, reply })
}

/// What a worker lets itself be asked and told.
pub(super) trait Panel {
    /// Figures, in Celery's form.
    fn stats(&self) -> Value;
    /// Tasks that run.
    fn active(&self) -> Vec<Value>;
    /// Tasks that were received and do not run yet.
    fn reserved(&self) -> Vec<Value>;
    /// Names of the handlers.
    fn registered(&self) -> Vec<String>;
    /// Queues it takes tasks from.
    fn queues(&self) -> Vec<String>;
    /// Ids that must not run.
    fn revoked(&self) -> Vec<String>;
    /// How it was configured, without secrets.
    fn conf(&self) -> Value;
    /// Its logical clock.
    fn clock(&self) -> u64;
    /// These must not run; those that do are ended if `terminate`. How many of them were in hand.
    fn revoke(&self, ids: &[TaskId], terminate: bool) -> usize;
    /// Whether task events go out; answers what held before.
    fn events(&self, on: bool) -> bool;
    /// A heartbeat at once.
    fn heartbeat(&self);
    /// Replaces what runs tasks.
    fn recycle(&self);
    /// Stops in order.
    fn shutdown(&self);
}

fn ok(told: impl Into<Value>) -> Option<Value> {
    Some(json!({ "ok": told.into() }))
}

fn error(told: impl Into<Value>) -> Option<Value> {
    Some(json!({ "error": told.into() }))
}

/// Does as asked. `None`: there is nothing to answer.
pub(super) fn answer(request: &Request, panel: &dyn Panel) -> Option<Value> {
    let arguments = &request.arguments;
    let flag = |name: &str| arguments.get(name).and_then(Value::as_bool).unwrap_or(false);
    match request.method.as_str() {
        "ping" => ok("pong"),
        "stats" => Some(panel.stats()),
        "active" | "dump_active" => Some(panel.active().into()),
        "reserved" | "dump_reserved" => Some(panel.reserved().into()),
        // What waits for its time waits in the broker.
        "scheduled" | "dump_schedule" => Some(json!([])),
        "registered" | "dump_tasks" => Some(panel.registered().into()),
        "active_queues" => Some(panel.queues().iter().map(|queue| described(queue)).collect()),
        "revoked" | "dump_revoked" => Some(panel.revoked().into()),
        "conf" | "dump_conf" => Some(panel.conf()),
        "clock" => Some(json!({ "clock": panel.clock() })),
        "report" => ok(format!("tidegate {} ({})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)),
        "query_task" => Some(query(&ids(arguments.get("ids")), panel)),
        "revoke" => revoke(&ids(arguments.get("task_id")), flag("terminate"), panel),
        "terminate" => revoke(&ids(arguments.get("task_id")), true, panel),
        "enable_events" => ok(if panel.events(true) { "task events already enabled" } else { "task events enabled" }),
        "disable_events" => {
            ok(if panel.events(false) { "task events disabled" } else { "task events already disabled" })
        }
        "heartbeat" => {
            panel.heartbeat();
            Some(Value::Null)
        }
        "pool_restart" => {
            panel.recycle();
            ok("reload started")
        }
        "shutdown" => {
            panel.shutdown();
            ok("stops once its running tasks are finished")
        }
        // Another worker starts and asks around.
        "hello" => Some(json!({ "revoked": panel.revoked(), "clock": panel.clock() })),
        "election" => None,
        "rate_limit" => error("tidegate's limits are set where the worker is started: --limit 'task:NAME rps=5'"),
        "time_limit" => error("tidegate's time limits are set where the worker is started: --hard-limit, --soft-limit"),
        "pool_grow" | "pool_shrink" | "autoscale" => {
            error("the number of slots is set where the worker is started: --concurrency")
        }
        "add_consumer" | "cancel_consumer" => error("queues are set where the worker is started: --queue"),
        other => error(format!("tidegate knows no command {other:?}")),
    }
}

/// One alone may stand without a list.
fn ids(argument: Option<&Value>) -> Vec<TaskId> {
    match argument {
        Some(Value::String(one)) => vec![TaskId::from(one.as_str())],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).map(TaskId::from).collect(),
        _ => Vec::new(),
    }
}

fn revoke(ids: &[TaskId], terminate: bool, panel: &dyn Panel) -> Option<Value> {
    let told = panel.revoke(ids, terminate);
    let names = ids.iter().map(TaskId::as_str).collect::<Vec<_>>().join(", ");
    ok(match (terminate, told) {
        (true, 0) => "terminate: tasks unknown".to_owned(),
        (true, _) => format!("terminate: {names}"),
        (false, _) => format!("tasks {names} flagged as revoked"),
    })
}

fn query(ids: &[TaskId], panel: &dyn Panel) -> Value {
    let mut found = Map::new();
    for (state, tasks) in [("active", panel.active()), ("reserved", panel.reserved())] {
        for task in tasks {
            let id = task["id"].as_str().unwrap_or_default().to_owned();
            if ids.iter().any(|wanted| wanted.as_str() == id) {
                found.insert(id, json!([state, task]));
            }
        }
    }
    Value::Object(found)
}

/// A queue as kombu describes it.
fn described(queue: &str) -> Value {
    json!({
        "name": queue,
        "exchange": {
            "name": "", "type": "direct", "arguments": null, "durable": true, "passive": false, "auto_delete": false,
            "delivery_mode": 2, "no_declare": false,
        },
        "routing_key": queue,
        "queue_arguments": null, "binding_arguments": null, "consumer_arguments": null,
        "durable": true, "exclusive": false, "auto_delete": false, "no_ack": false, "alias": null, "bindings": [],
        "no_declare": null, "expires": null, "message_ttl": null, "max_length": null, "max_length_bytes": null,
        "max_priority": null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Told(RefCell<Vec<String>>);

    impl Told {
        fn note(&self, what: impl Into<String>) {
            self.0.borrow_mut().push(what.into());
        }
    }

    impl Panel for Told {
        fn stats(&self) -> Value {
            json!({"pid": 1})
        }
        fn active(&self) -> Vec<Value> {
            vec![json!({"id": "a"})]
        }
        fn reserved(&self) -> Vec<Value> {
            vec![json!({"id": "b"})]
        }
        fn registered(&self) -> Vec<String> {
            vec!["add".into()]
        }
        fn queues(&self) -> Vec<String> {
            vec!["celery".into()]
        }
        fn revoked(&self) -> Vec<String> {
            vec!["r".into()]
        }
        fn conf(&self) -> Value {
            json!({})
        }
        fn clock(&self) -> u64 {
            7
        }
        fn revoke(&self, ids: &[TaskId], terminate: bool) -> usize {
            self.note(format!("revoke {ids:?} {terminate}"));
            ids.iter().filter(|id| id.as_str() == "a").count()
        }
        fn events(&self, on: bool) -> bool {
            self.note(format!("events {on}"));
            false
        }
        fn heartbeat(&self) {
            self.note("heartbeat");
        }
        fn recycle(&self) {
            self.note("recycle");
        }
        fn shutdown(&self) {
            self.note("shutdown");
        }
    }

    fn ask(method: &str, arguments: Value) -> (Option<Value>, Vec<String>) {
        let body =
            json!({"method": method, "arguments": arguments, "destination": null, "pattern": null, "matcher": null});
        let told = Told::default();
        let answered = answer(&request(body.to_string().as_bytes(), "a@b").unwrap(), &told);
        (answered, told.0.into_inner())
    }

    #[test]
    fn a_request_is_for_all_for_those_named_or_for_those_that_match() {
        let is_for = |extra: Value| {
            let mut body = json!({"method": "ping", "arguments": {}, "destination": null});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            request(body.to_string().as_bytes(), "tidegate@host-7").is_some()
        };
        assert!(is_for(json!({})));
        assert!(is_for(json!({"destination": ["x@y", "tidegate@host-7"]})));
        assert!(!is_for(json!({"destination": ["x@y"]})));
        assert!(is_for(json!({"pattern": "*@host-[0-9]", "matcher": "glob"})));
        assert!(!is_for(json!({"pattern": "*@host-[!0-9]", "matcher": "glob"})));
        assert!(!is_for(json!({"pattern": "celery@*", "matcher": "glob"})));
        assert!(is_for(json!({"pattern": "t?degate@*", "matcher": "glob"})));
        assert_eq!(request(b"nonsense", "a@b"), None);
    }

    #[test]
    fn a_request_with_a_pattern_that_is_too_long_is_ignored() {
        let is_for = |pattern: String| {
            let body = json!({"method": "ping", "pattern": pattern, "matcher": "glob"});
            request(body.to_string().as_bytes(), "tidegate@host-7").is_some()
        };
        assert!(is_for("*".repeat(PATTERN_BYTES_MAX)));
        assert!(!is_for("*".repeat(PATTERN_BYTES_MAX + 1)));
    }

    #[test]
    fn answers_have_the_form_that_is_expected() {
        assert_eq!(ask("ping", json!({})).0, Some(json!({"ok": "pong"})));
        assert_eq!(ask("registered", json!({})).0, Some(json!(["add"])));
        assert_eq!(ask("scheduled", json!({})).0, Some(json!([])));
        assert_eq!(ask("active_queues", json!({})).0.unwrap()[0]["name"], json!("celery"));
        assert_eq!(ask("query_task", json!({"ids": ["b", "x"]})).0, Some(json!({"b": ["reserved", {"id": "b"}]})));
        assert_eq!(ask("hello", json!({"from_node": "c@d"})).0, Some(json!({"revoked": ["r"], "clock": 7})));
        assert!(ask("rate_limit", json!({})).0.unwrap()["error"].as_str().unwrap().contains("--limit"));
        assert!(ask("nonsense", json!({})).0.unwrap()["error"].as_str().unwrap().contains("\"nonsense\""));
    }

    #[test]
    fn what_is_told_is_done() {
        assert_eq!(ask("shutdown", json!({})).1, ["shutdown"]);
        let (answered, told) = ask("revoke", json!({"task_id": "a", "terminate": true, "signal": "SIGKILL"}));
        assert_eq!(answered, Some(json!({"ok": "terminate: a"})));
        assert_eq!(told, [r#"revoke [TaskId("a")] true"#]);
        assert_eq!(
            ask("revoke", json!({"task_id": ["x"], "terminate": true})).0.unwrap()["ok"],
            json!("terminate: tasks unknown")
        );
        assert_eq!(ask("revoke", json!({"task_id": ["x"]})).0.unwrap()["ok"], json!("tasks x flagged as revoked"));
        assert_eq!(ask("enable_events", json!({})).0, Some(json!({"ok": "task events enabled"})));
    }
}
