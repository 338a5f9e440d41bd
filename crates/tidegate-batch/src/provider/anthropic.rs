//! Anthropic's Messages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{Parameters, Unreadable, count, text};
use crate::estimate::ANSWER_TOKENS;
use crate::question::{Answer, Finish, Question, Usage};

/// The version of the interface, which every request names.
pub(super) const VERSION: &str = "2023-06-01";

pub(super) fn body(question: &Question, parameters: &Parameters) -> Value {
    let mut content = Vec::new();
    // Pictures first: the documentation says that this works best.
    if let Some(picture) = &question.picture {
        let data = STANDARD.encode(&picture.png);
        content.push(json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}));
    }
    content.push(json!({"type": "text", "text": question.to_text()}));
    let mut body = Map::new();
    body.insert("model".into(), json!(parameters.model));
    // This one is not optional here.
    body.insert("max_tokens".into(), json!(parameters.max_tokens.map_or(ANSWER_TOKENS, u64::from)));
    body.insert("messages".into(), json!([{"role": "user", "content": content}]));
    if let Some(temperature) = parameters.temperature {
        body.insert("temperature".into(), json!(temperature));
    }
    Value::Object(body)
}

pub(super) fn answer(body: &Value) -> Result<Answer, Unreadable> {
    let garbled = |what: &str| Unreadable::Garbled(format!("{what}: {}", super::excerpt(body.to_string().as_bytes())));
    let content = body.get("content").and_then(Value::as_array).ok_or_else(|| garbled("it has no content"))?;
    let reason = text(body, "stop_reason");
    if reason == Some("refusal") {
        return Err(Unreadable::Declined("the model declined to answer".into()));
    }
    let said: String = content.iter().filter(|part| is_said(part)).filter_map(|part| text(part, "text")).collect();
    if said.trim().is_empty() {
        return Err(match reason {
            Some("max_tokens") => Unreadable::Declined(
                "the answer was cut off before a word of it was there: allow more tokens (--max-tokens)".into(),
            ),
            _ => garbled("its content is empty"),
        });
    }
    Ok(Answer {
        text: said,
        usage: usage(body).unwrap_or_default(),
        finish: if reason == Some("max_tokens") { Finish::Truncated } else { Finish::Complete },
        model: text(body, "model").map(Into::into),
    })
}

/// Returns `true` if the text of this part of a message is part of the answer.
pub(super) fn is_said(part: &Value) -> bool {
    text(part, "type") == Some("text")
}

pub(super) fn usage(body: &Value) -> Option<Usage> {
    let usage = body.get("usage").filter(|usage| usage.is_object())?;
    Some(usage_of(|name| count(usage, name)))
}

pub(super) fn usage_of(count: impl Fn(&str) -> u64) -> Usage {
    // What is read from a cache does not count against the limit of input tokens; what is written to one does.
    let input_tokens = count("input_tokens").saturating_add(count("cache_creation_input_tokens"));
    Usage { input_tokens, output_tokens: count("output_tokens") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Picture;

    #[test]
    fn a_question_always_limits_its_answer() {
        let picture = Picture { png: bytes::Bytes::from_static(b"\x89PNG"), width: 1, height: 1 };
        let question = Question { prompt: "Explain.".into(), picture: Some(picture), ..Question::default() };
        let mut parameters = Parameters { model: "claude-sonnet-4-5".into(), max_tokens: None, temperature: None };
        let built = body(&question, &parameters);
        assert_eq!(built["max_tokens"], 1024);
        assert_eq!(built["messages"][0]["content"][0]["source"]["media_type"], "image/png");
        assert_eq!(built["messages"][0]["content"][1]["type"], "text");
        parameters.max_tokens = Some(50);
        assert_eq!(body(&question, &parameters)["max_tokens"], 50);
    }

    #[test]
    fn an_answer_is_its_text_blocks() {
        let body = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "It is about tides."}],
            "stop_reason": "end_turn", "usage": {"input_tokens": 12, "cache_creation_input_tokens": 3, "output_tokens": 6}
        });
        let answer = answer(&body).unwrap();
        assert_eq!(answer.text, "It is about tides.");
        assert_eq!(answer.usage, Usage { input_tokens: 15, output_tokens: 6 });
    }

    #[test]
    fn a_refusal_is_final() {
        let body = json!({"content": [], "stop_reason": "refusal"});
        assert!(matches!(answer(&body), Err(Unreadable::Declined(_))));
    }
}
