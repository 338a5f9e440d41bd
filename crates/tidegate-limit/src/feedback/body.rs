//! An error's body: JSON in one of a few shapes, or anything else.

use serde_json::Value;

/// Longer bodies are not read: an error message has a few hundred bytes, and a page of HTML has no information.
const BODY_LEN_MAX: usize = 256 * 1024;

/// The fields of an error. Missing ones are empty.
#[derive(Debug, Default)]
pub(super) struct ErrorBody {
    pub(super) message: String,
    /// `type`, or Google's `status`.
    pub(super) kind: String,
    /// Servers send text or a number.
    pub(super) code: String,
    pub(super) details: Vec<Value>,
}

impl ErrorBody {
    /// Reads `{"error":{…}}`, the same in a list (streams), `{"error":"text"}`, the bare inner object, or plain text.
    pub(super) fn read(body: &[u8]) -> ErrorBody {
        if body.len() > BODY_LEN_MAX {
            return ErrorBody::default();
        }
        match serde_json::from_slice(body) {
            Ok(value) => ErrorBody::of(value),
            Err(_) => ErrorBody { message: String::from_utf8_lossy(body).into_owned(), ..ErrorBody::default() },
        }
    }

    fn of(value: Value) -> ErrorBody {
        let mut value = match value {
            Value::Array(list) => list.into_iter().next().unwrap_or_default(),
            other => other,
        };
        let mut error = match value.get_mut("error") {
            Some(inner) => inner.take(),
            None => value,
        };
        if let Value::String(message) = error {
            return ErrorBody { message, ..ErrorBody::default() };
        }
        let message = text(&error, "message");
        // Gateways put the provider's answer into the message. It has more information, but may be truncated.
        if message.trim_start().starts_with('{')
            && let Ok(inner @ Value::Object(_)) = serde_json::from_str(&message)
        {
            return ErrorBody::of(inner);
        }
        let details = match error.get_mut("details").map(Value::take) {
            Some(Value::Array(details)) => details,
            _ => Vec::new(),
        };
        let kind = [text(&error, "type"), text(&error, "status")].into_iter().find(|s| !s.is_empty());
        ErrorBody { message, kind: kind.unwrap_or_default(), code: text(&error, "code"), details }
    }

    /// Whether the code or the type is `name`.
    pub(super) fn is(&self, name: &str) -> bool {
        self.code == name || self.kind == name
    }
}

/// The text under `key`; a number counts as its digits.
pub(super) fn text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_found_in_every_shape() {
        for body in [
            r#"{"error":{"message":"m","type":"t","code":429}}"#,
            r#"[{"error":{"message":"m","status":"t","code":"429"}}]"#,
            r#"{"message":"m","type":"t","code":"429"}"#,
            r#"{"error":{"message":"{\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":429}}","code":500}}"#,
        ] {
            let error = ErrorBody::read(body.as_bytes());
            assert_eq!((&*error.message, &*error.kind, &*error.code), ("m", "t", "429"), "{body}");
        }
        assert_eq!(ErrorBody::read(br#"{"error":"m"}"#).message, "m");
        assert_eq!(ErrorBody::read(b"upstream connect error").message, "upstream connect error");
    }

    #[test]
    fn matryoshkas_and_avalanches_are_survived() {
        let mut body = String::from("x");
        for _ in 0..12 {
            body = serde_json::json!({"error": {"message": body}}).to_string();
        }
        assert_eq!(ErrorBody::read(body.as_bytes()).message, "x");
        assert_eq!(ErrorBody::read("[".repeat(200_000).as_bytes()).code, "");
        assert_eq!(ErrorBody::read(&vec![b' '; BODY_LEN_MAX + 1]).message, "");
    }
}
