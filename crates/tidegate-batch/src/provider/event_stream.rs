//! Server-sent events where a plain answer was asked for. Some servers and gateways stream whatever the request says; the answer
//! is there and paid for, so it is put together instead of being asked for again.

use serde_json::{Map, Value, json};

/// Returns `true` if the body begins as an event stream does.
pub(super) fn is_event_stream(body: &[u8]) -> bool {
    let body = body.trim_ascii_start();
    [&b"data:"[..], b"event:", b"id:", b"retry:", b":"].iter().any(|start| body.starts_with(start))
}

/// Returns the chat completion that a stream of OpenAI's chunks amounts to. `None` if the body is anything else, or if the stream
/// broke off before its choice was finished: half an answer must not pass for a whole one.
pub(super) fn chat_completion(body: &[u8]) -> Option<Value> {
    if !is_event_stream(body) {
        return None;
    }
    let (mut content, mut refusal) = (String::new(), String::new());
    let (mut finish, mut model, mut usage) = (Value::Null, Value::Null, Value::Null);
    for line in std::str::from_utf8(body).ok()?.lines() {
        let Some(data) = line.strip_prefix("data:").map(str::trim).filter(|data| *data != "[DONE]") else { continue };
        let chunk: Value = serde_json::from_str(data).ok()?;
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return None;
        }
        for (kept, name) in [(&mut model, "model"), (&mut usage, "usage")] {
            if let Some(value) = chunk.get(name).filter(|value| !value.is_null()) {
                *kept = value.clone();
            }
        }
        let Some(choice) = chunk.pointer("/choices/0") else { continue };
        for (text, name) in [(&mut content, "/delta/content"), (&mut refusal, "/delta/refusal")] {
            text.push_str(choice.pointer(name).and_then(Value::as_str).unwrap_or_default());
        }
        if let Some(reason) = choice.get("finish_reason").filter(|reason| reason.is_string()) {
            finish = reason.clone();
        }
    }
    if finish.is_null() {
        return None;
    }
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    message.insert("content".into(), json!(content));
    if !refusal.is_empty() {
        message.insert("refusal".into(), json!(refusal));
    }
    let choice = json!({"index": 0, "message": message, "finish_reason": finish});
    Some(json!({"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}))
}

#[cfg(test)]
mod tests {
    use crate::provider::{Dialect, Unreadable};
    use crate::question::{Finish, Usage};

    const STREAM: &str = concat!(
        ": keep-alive\n\n",
        "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"It is \"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"about tides.\"},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn a_streamed_answer_is_read_as_if_it_had_come_whole() {
        let body = Dialect::OpenAi.assembled(STREAM.into());
        let answer = Dialect::OpenAi.answer(&body).unwrap();
        assert_eq!((answer.text.as_str(), answer.finish), ("It is about tides.", Finish::Complete));
        assert_eq!(answer.usage, Usage { input_tokens: 9, output_tokens: 4 });
        assert_eq!(answer.model.as_deref(), Some("m"));
    }

    #[test]
    fn a_stream_that_is_not_a_finished_answer_is_refused_by_its_name_and_not_asked_for_again() {
        let cut = STREAM.replace(",\"finish_reason\":\"stop\"", "");
        for body in
            [cut.as_str(), "event: message_start\ndata: {}\n\n", "data: nonsense\n\n", "data: {\"error\":{}}\n\n"]
        {
            let body = Dialect::OpenAi.assembled(body.to_owned().into());
            let Err(Unreadable::Declined(reason)) = Dialect::OpenAi.answer(&body) else { panic!("{body:?}") };
            assert!(reason.contains("event stream"), "{reason}");
        }
    }

    #[test]
    fn other_bodies_are_left_as_they_are() {
        for body in ["", "{}", "[1]", "<html>", "database"] {
            assert_eq!(Dialect::OpenAi.assembled(body.into()), body);
        }
    }
}
