//! Tasks as `queue peek` and `queue dead ls` print them, in whichever format they are: native, Celery's or dramatiq's.

use serde_json::{Value, json};
use tidegate_worker::codec::{celery, dramatiq, native};
use tidegate_worker::json as exact;
use tidegate_worker::{Envelope, Task};

use crate::terminal::escape;

/// The most characters of a task's arguments in one line.
const SHOWN_CHARS: usize = 120;

/// The task in an envelope and the name of its codec, or what is known of a body that no codec can read.
fn decoded(envelope: &Envelope) -> Result<(&'static str, Task), String> {
    if celery::is_celery(envelope) {
        // Not `celery::decode`: that one refuses parts of chords, which can be shown like any other task.
        return celery::read(envelope, 0).map(|message| ("celery", message.task)).map_err(|error| {
            let name = envelope.headers.get("task").and_then(Value::as_str).unwrap_or_default();
            format!("{name}: {} bytes that cannot be read: {error}", envelope.body.len())
        });
    }
    let native = native::decode(envelope, 0).map(|task| ("native", task));
    native.or_else(|error| {
        let dramatiq = dramatiq::decode(envelope, 0).map(|task| ("dramatiq", task));
        dramatiq.map_err(|_| format!("{} bytes that cannot be read: {error}", envelope.body.len()))
    })
}

/// The task as an object; with its body as text if it cannot be read.
pub(super) fn as_json(envelope: &Envelope) -> Value {
    let mut object = match decoded(envelope) {
        Ok((codec, task)) => json!({"codec": codec, "task": task.name, "args": task.args, "kwargs": task.kwargs}),
        Err(_) => json!({"body": String::from_utf8_lossy(&envelope.body), "task": envelope.headers.get("task")}),
    };
    object["id"] = json!(envelope.id.as_str());
    object["queue"] = json!(envelope.queue);
    object["priority"] = json!(envelope.priority);
    object["eta"] = json!(envelope.eta.map(|at| at.to_string()));
    object["expires"] = json!(envelope.expires.map(|at| at.to_string()));
    object["unique"] = json!(envelope.unique.as_ref().map(|unique| &unique.key));
    object
}

/// The task as a call: its id, its name and its arguments.
pub(super) fn as_line(envelope: &Envelope) -> String {
    let what = match decoded(envelope) {
        Ok((_, task)) => {
            let args = task.args.iter().map(exact::to_string);
            let kwargs = task.kwargs.iter().map(|(name, value)| format!("{name}={}", exact::to_string(value)));
            format!("{}({})", task.name, args.chain(kwargs).collect::<Vec<_>>().join(", "))
        }
        Err(known) => known,
    };
    let mut line = format!("{}  {}", escape::line(envelope.id.as_str()), shortened(&escape::line(&what)));
    if envelope.priority > 0 {
        line += &format!("  priority {}", envelope.priority);
    }
    if let Some(eta) = envelope.eta {
        line += &format!("  not before {eta}");
    }
    if let Some(expires) = envelope.expires {
        line += &format!("  until {expires}");
    }
    line + "\n"
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_every_codec_are_shown_as_calls() {
        let task = Task::new("add").arg(1).kwarg("y", 2);
        let now = jiff::Timestamp::UNIX_EPOCH;
        let part = celery::Extras { chord: Some(json!({"task": "sum"})), ..celery::Extras::default() };
        for (codec, envelope) in [
            ("native", Envelope::of(&task, "q", native::encode(&task))),
            ("celery", celery::encode(&task, "q", &celery::Extras::default())),
            ("celery", celery::encode(&task, "q", &part)),
            ("dramatiq", dramatiq::encode(&task, "q", None, now)),
        ] {
            assert_eq!(as_line(&envelope), format!("{}  add(1, y=2)\n", task.id), "{codec}");
            let shown = as_json(&envelope);
            assert_eq!((&shown["codec"], &shown["args"]), (&json!(codec), &json!([1])), "{shown}");
        }
    }

    #[test]
    fn a_body_that_cannot_be_read_keeps_its_name_and_says_why() {
        let mut envelope = celery::encode(&Task::new("shop.add"), "q", &celery::Extras::default());
        envelope.body = vec![0x80, 0x04];
        envelope.headers.insert("amqp.content_type".into(), json!("application/x-python-serialize"));
        let line = as_line(&envelope);
        assert!(
            line.contains("shop.add: 2 bytes that cannot be read") && line.contains("x-python-serialize"),
            "{line}"
        );
        assert_eq!(as_json(&envelope)["task"], json!("shop.add"));
        let line = as_line(&Envelope::new("q", b"nonsense".to_vec()));
        assert!(line.contains("8 bytes that cannot be read: the body is no task"), "{line}");
    }
}
