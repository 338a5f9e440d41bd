//! Parameters that a model refuses: found in the answer, and renamed in a request where the other name is known. Pure.

use serde_json::Value;

/// The two names of the greatest length of an answer. OpenAI's reasoning models refuse the first; many compatible servers do
/// not know the second.
const LENGTHS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

/// Error codes of a parameter that the model does not take, whatever its value.
const CODES: [&str; 3] = ["unsupported_parameter", "unsupported_value", "unknown_parameter"];

/// What OpenAI and compatible servers say where they send no code.
const PHRASES: [&str; 4] =
    ["Unsupported parameter", "Unsupported value", "Unknown parameter", "Unrecognized request argument supplied"];

/// Returns the name of the parameter that the model does not take, if that is why it answered `body` with 400 or 422.
pub(crate) fn refused(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let error = value.get("error").unwrap_or(&value);
    let text = |name: &str| error.get(name).and_then(Value::as_str);
    let message = text("message").unwrap_or_default();
    let phrase = PHRASES.iter().find_map(|phrase| message.split_once(phrase));
    if phrase.is_none() && !text("code").is_some_and(|code| CODES.contains(&code)) {
        return None;
    }
    let named = || {
        let (_, rest) = phrase?;
        let word = rest.trim_start_matches([':', ' ', '\'', '"', '`']);
        let end = word.find(|c: char| !c.is_ascii_alphanumeric() && !"_.[]".contains(c)).unwrap_or(word.len());
        Some(word[..end].trim_end_matches('.').to_owned())
    };
    text("param").map(str::to_owned).or_else(named).filter(|name| !name.is_empty())
}

/// Returns the other name of a parameter, if it has one.
pub(crate) fn other_name(name: &str) -> Option<&'static str> {
    let at = LENGTHS.iter().position(|length| *length == name)?;
    Some(LENGTHS[1 - at])
}

/// Returns `body` with the parameter `from` called `to`; `None` if it has no such parameter, or both.
pub(crate) fn renamed(body: &[u8], from: &str, to: &str) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(body).ok()?;
    let object = value.as_object_mut()?;
    if object.contains_key(to) {
        return None;
    }
    let held = object.remove(from)?;
    object.insert(to.to_owned(), held);
    serde_json::to_vec(&value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_parameter_is_named() {
        let cases = [
            (
                r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model.","param":"max_tokens","code":"unsupported_parameter"}}"#,
                "max_tokens",
            ),
            (r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported."}}"#, "max_tokens"),
            (
                r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0.2 with this model.","code":"unsupported_value"}}"#,
                "temperature",
            ),
            (
                r#"{"error":{"message":"Unrecognized request argument supplied: max_completion_tokens"}}"#,
                "max_completion_tokens",
            ),
        ];
        for (body, name) in cases {
            assert_eq!(refused(body.as_bytes()).as_deref(), Some(name), "{body}");
        }
        let too_large =
            r#"{"error":{"message":"max_tokens is too large: 99999","param":"max_tokens","code":"invalid_value"}}"#;
        for body in [too_large, "", "[]", r#"{"error":"no"}"#] {
            assert_eq!(refused(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn only_the_length_of_an_answer_has_two_names() {
        assert_eq!(other_name("max_tokens"), Some("max_completion_tokens"));
        assert_eq!(other_name("max_completion_tokens"), Some("max_tokens"));
        assert_eq!(other_name("temperature"), None);
        let body = renamed(br#"{"model":"m","max_tokens":5}"#, "max_tokens", "max_completion_tokens").unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body, serde_json::json!({"model": "m", "max_completion_tokens": 5}));
        assert_eq!(renamed(br#"{"a":1}"#, "max_tokens", "max_completion_tokens"), None);
    }
}
