//! Secrets that stand in no single piece of an answer's bytes: divided among the texts that are joined to the answer, or with an
//! escape of JSON within an escape of something else.

use std::borrow::Cow;

use memchr::memmem;
use serde_json::Value;
use tidegate_secret::Redactor;

use crate::provider::Dialect;

/// Returns the body of an answer without the secrets of `redactor`, or `None` if it has none. What stands in its bytes as a whole
/// has been removed before.
pub(crate) fn without_secrets(body: &[u8], dialect: Dialect, redactor: &Redactor) -> Option<Vec<u8>> {
    if redactor.is_empty() || !may_have_more(body) {
        return None;
    }
    let mut answer: Value = serde_json::from_slice(body).ok()?;
    let mut found = false;
    each_text(&mut answer, &mut |text| {
        if let Cow::Owned(clean) = redactor.redact(text) {
            *text = clean;
            found = true;
        }
    });
    // As this program joins them, and as one does that keeps thoughts.
    let joins: [fn(Dialect, &Value) -> bool; 2] = [Dialect::is_said, |_, _| true];
    for is_said in joins {
        let mut texts = Vec::new();
        collect(&mut answer, &|part| is_said(dialect, part), &mut texts);
        found |= redactor.redact_joined(texts);
    }
    found.then(|| answer.to_string().into_bytes())
}

/// Nearly all answers have one text and none of these escapes, and are not read twice.
fn may_have_more(body: &[u8]) -> bool {
    let is_name = |at: &usize| body[at + TEXT.len()..].trim_ascii_start().starts_with(b":");
    memmem::find_iter(body, TEXT).filter(is_name).nth(1).is_some()
        || memmem::find_iter(body, b"\\u00").any(|at| matches!(body.get(at + 4), Some(b'0'..=b'7')))
}

const TEXT: &[u8] = b"\"text\"";

fn each_text(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(values) => values.iter_mut().for_each(|value| each_text(value, change)),
        Value::Object(fields) => fields.values_mut().for_each(|value| each_text(value, change)),
        _ => {}
    }
}

/// The texts of the parts of an answer, in their order.
fn collect<'a>(value: &'a mut Value, is_said: &impl Fn(&Value) -> bool, into: &mut Vec<&'a mut String>) {
    let said = value.is_object() && is_said(value);
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| collect(value, is_said, into)),
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match (said && name == "text", value) {
            (true, Value::String(text)) => into.push(text),
            (_, value) => collect(value, is_said, into),
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate_secret::Secret;

    use super::*;

    const KEY: &str = "sk-Very+Secret/Key=1234567890";

    fn clean(dialect: Dialect, body: &str) -> Option<String> {
        let redactor = Redactor::for_data([&Secret::new(KEY)]);
        without_secrets(body.as_bytes(), dialect, &redactor).map(|clean| String::from_utf8(clean).unwrap())
    }

    #[test]
    fn a_key_is_found_wherever_it_is_divided_and_the_rest_stays() {
        let (first, second) = KEY.split_at(11);
        let thought = json!({"text": "hm", "thought": true});
        let bodies = [
            json!({"choices": [{"message": {"content": [{"text": first}, {"type": "image"}, {"text": second}]}}], "n": 1.0}),
            json!({"candidates": [{"content": {"parts": [{"text": first}, thought, {"text": second}]}}]}),
            json!({"output": [{"content": [{"text": first}]}, {"content": [{"text": second}]}]}),
            json!({"content": [{"type": "text", "text": first}, {"type": "other", "text": second}]}),
        ];
        for (dialect, body) in
            [Dialect::OpenAi, Dialect::Gemini, Dialect::OpenAi, Dialect::Anthropic].into_iter().zip(bodies)
        {
            let expected = body.to_string().replace(first, "(secret)").replace(second, "");
            assert_eq!(clean(dialect, &body.to_string()), Some(expected));
        }
    }

    #[test]
    fn an_escape_within_an_entity_is_found_and_names_may_be_escaped() {
        let entities: String = KEY.chars().map(|c| format!("&\\u0023{};", u32::from(c))).collect();
        let body = format!(r#"{{"a":"x {entities} y"}}"#);
        assert_eq!(clean(Dialect::OpenAi, &body).as_deref(), Some(r#"{"a":"x (secret) y"}"#));
        let (first, second) = KEY.split_at(5);
        let body = format!(r#"[{{"te\u0078t":"{first}"}},{{"text" : "{second}"}}]"#);
        assert_eq!(clean(Dialect::OpenAi, &body).as_deref(), Some(r#"[{"text":"(secret)"},{"text":""}]"#));
    }

    #[test]
    fn an_answer_without_the_key_is_not_touched() {
        for body in [
            r#"{"content":[{"type":"text","text":"a"},{"text":"b"}]}"#,
            r#"{"a":"\u0041"}"#,
            "\"text\":\"text\":",
            "{}",
        ] {
            assert_eq!(clean(Dialect::Anthropic, body), None, "{body}");
        }
    }
}
