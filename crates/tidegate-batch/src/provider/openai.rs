//! OpenAI's chat completions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::counts::Counts;
use super::{Parameters, Unreadable, count, text};
use crate::question::{Answer, Finish, Question, Usage};

pub(super) fn body(question: &Question, parameters: &Parameters) -> Value {
    let text = question.to_text();
    let content = match &question.picture {
        None => Value::String(text),
        Some(picture) => {
            let url = format!("data:image/png;base64,{}", STANDARD.encode(&picture.png));
            json!([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}])
        }
    };
    let mut body = Map::new();
    body.insert("model".into(), json!(parameters.model));
    body.insert("messages".into(), json!([{"role": "user", "content": content}]));
    if let Some(max_tokens) = parameters.max_tokens {
        body.insert(length_limit(&parameters.model).into(), json!(max_tokens));
    }
    if let Some(temperature) = parameters.temperature {
        body.insert("temperature".into(), json!(temperature));
    }
    Value::Object(body)
}

/// Returns the name of the parameter that limits the length of an answer. OpenAI's reasoning models (the o-series, gpt-5)
/// refuse `max_tokens`; many compatible servers know nothing else.
fn length_limit(model: &str) -> &'static str {
    // Gateways put the vendor in front: `openai/o3-mini`.
    let name = model.rsplit('/').next().unwrap_or(model);
    let o_series = name.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if o_series || name.starts_with("gpt-5") { "max_completion_tokens" } else { "max_tokens" }
}

/// An answer as nearly all of them are, read without a tree; `None`: [`answer`] has to look at it.
pub(super) fn plain_answer(body: &[u8]) -> Option<Answer> {
    #[derive(Deserialize)]
    struct Body<'a> {
        model: Option<&'a str>,
        #[serde(borrow)]
        choices: Vec<Choice<'a>>,
        usage: Option<Counts<'a>>,
    }
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow)]
        message: Message<'a>,
        finish_reason: Option<&'a str>,
    }
    #[derive(Deserialize)]
    struct Message<'a> {
        content: String,
        refusal: Option<&'a str>,
    }
    let Body { model, choices, usage } = serde_json::from_slice(body).ok()?;
    let Choice { message: Message { content, refusal }, finish_reason } = choices.into_iter().next()?;
    let plain = matches!(finish_reason, None | Some("stop" | "length"))
        && refusal.is_none_or(str::is_empty)
        && !content.trim().is_empty();
    plain.then(|| Answer {
        text: content,
        usage: usage.map(|counts| usage_of(|name| counts.of(name))).unwrap_or_default(),
        finish: if finish_reason == Some("length") { Finish::Truncated } else { Finish::Complete },
        model: model.map(Into::into),
    })
}

pub(super) fn answer(body: &Value) -> Result<Answer, Unreadable> {
    let garbled = |what: &str| Unreadable::Garbled(format!("{what}: {}", super::excerpt(body.to_string().as_bytes())));
    let choice = body.pointer("/choices/0").ok_or_else(|| garbled("it has no choices"))?;
    let reason = text(choice, "finish_reason");
    if reason == Some("content_filter") {
        return Err(Unreadable::Declined("the provider's content filter stopped the answer".into()));
    }
    let message = choice.get("message").ok_or_else(|| garbled("its first choice has no message"))?;
    if let Some(refusal) = text(message, "refusal").filter(|refusal| !refusal.is_empty()) {
        return Err(Unreadable::Declined(format!("the model declined: {refusal}")));
    }
    if reason == Some("error") {
        return Err(garbled("the provider broke off with an error"));
    }
    let said = match message.get("content") {
        Some(Value::String(said)) => said.clone(),
        // A reasoning model that used up all of its tokens before the first word.
        None | Some(Value::Null) if reason == Some("length") => String::new(),
        // Some servers answer in parts.
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| text(part, "text")).collect(),
        _ => return Err(garbled("its message has no content")),
    };
    if said.trim().is_empty() {
        return Err(match reason {
            Some("length") => Unreadable::Declined(
                "the answer was cut off before a word of it was there: allow more tokens (--max-tokens)".into(),
            ),
            _ => garbled("its message is empty"),
        });
    }
    Ok(Answer {
        text: said,
        usage: usage(body).unwrap_or_default(),
        finish: if reason == Some("length") { Finish::Truncated } else { Finish::Complete },
        model: text(body, "model").map(Into::into),
    })
}

pub(super) fn usage(body: &Value) -> Option<Usage> {
    let usage = body.get("usage").filter(|usage| usage.is_object())?;
    Some(usage_of(|name| count(usage, name)))
}

pub(super) fn usage_of(count: impl Fn(&str) -> u64) -> Usage {
    // The second name of each is that of the Responses API.
    let input_tokens = count("prompt_tokens").max(count("input_tokens"));
    let stated = count("completion_tokens").max(count("output_tokens"));
    // Some servers count a model's reasoning in the total alone.
    let output_tokens = stated.max(count("total_tokens").saturating_sub(input_tokens));
    Usage { input_tokens, output_tokens }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Picture;

    fn parameters() -> Parameters {
        Parameters { model: "gpt-4o-mini".into(), max_tokens: Some(300), temperature: None }
    }

    #[test]
    fn a_text_is_a_plain_message() {
        let question = Question { prompt: "Explain.".into(), page: 1, text: "Tides.".into(), ..Question::default() };
        let body = body(&question, &parameters());
        assert_eq!(body["model"], "gpt-4o-mini");
        assert_eq!(body["max_tokens"], 300);
        assert_eq!(body.get("temperature"), None);
        assert_eq!(body["messages"][0]["role"], "user");
        assert!(body["messages"][0]["content"].as_str().unwrap().contains("Tides."));
    }

    #[test]
    fn a_picture_is_a_data_url_beside_the_text() {
        let picture = Picture { png: bytes::Bytes::from_static(b"\x89PNG"), width: 1, height: 1 };
        let question = Question { picture: Some(picture), ..Question::default() };
        let body = body(&question, &parameters());
        let parts = &body["messages"][0]["content"];
        assert_eq!(parts[0]["type"], "text");
        assert_eq!(parts[1]["image_url"]["url"], "data:image/png;base64,iVBORw==");
    }

    #[test]
    fn an_answer_and_what_it_cost_are_read() {
        let body = json!({
            "id": "chatcmpl-1", "model": "gpt-4o-mini-2024-07-18",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "It is about tides."}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 19, "completion_tokens": 10, "total_tokens": 29}
        });
        let answer = answer(&body).unwrap();
        assert_eq!(answer.text, "It is about tides.");
        assert_eq!(answer.usage, Usage { input_tokens: 19, output_tokens: 10 });
        assert_eq!(answer.finish, Finish::Complete);
        assert_eq!(answer.model.as_deref(), Some("gpt-4o-mini-2024-07-18"));
        assert_eq!(plain_answer(body.to_string().as_bytes()), Some(answer));
    }

    #[test]
    fn an_answer_is_read_alike_with_a_tree_and_without() {
        let bodies = [
            r#"{"choices":[{"message":{"content":"Tides \u00e9bb.\n"},"finish_reason":"length"}],"usage":{"total_tokens":9}}"#,
            r#"{"choices":[{"message":{"content":"a","refusal":null}},{"message":{"content":"b"}}],"model":null}"#,
            r#"{"choices":[{"message":{"content":"a","refusal":""},"finish_reason":"tool_calls"}],"usage":null}"#,
            r#"{"choices":[{"message":{"content":"a"},"finish_reason":7}],"model":{"name":"m"},"usage":"much"}"#,
            r#"{"choices":[{"message":{"content":"a"},"finish_reason":"content_filter"}]}"#,
            r#"{"choices":[{"message":{"content":"a","refusal":"no"}}]}"#,
            r#"{"choices":[{"message":{"content":[{"text":"a"}]}}],"model":"a\/b"}"#,
            r#"{"choices":[{"message":{"content":" "},"finish_reason":"length"}]}"#,
            r#"{"choices":[{"message":{"content":"a"}}]} and more"#,
        ];
        for body in bodies {
            let tree = serde_json::from_str(body).map_err(|_| ());
            let whole = tree.and_then(|tree| answer(&tree).map_err(|_| ()));
            let read = super::super::Dialect::OpenAi.answer(body.as_bytes()).map_err(|_| ());
            assert_eq!(read, whole, "{body}");
        }
    }

    #[test]
    fn reasoning_models_get_the_length_limit_that_they_accept() {
        for model in ["o1", "o3-mini", "o4-mini", "gpt-5", "gpt-5-mini-2025-08-07", "openai/o3"] {
            assert_eq!(length_limit(model), "max_completion_tokens", "{model}");
        }
        for model in ["gpt-4o", "omni-7b", "ollama", "o", "meta/llama-3", "gpt-4.1"] {
            assert_eq!(length_limit(model), "max_tokens", "{model}");
        }
    }

    #[test]
    fn usage_of_the_responses_api_is_divided_into_input_and_output() {
        let body = json!({"usage": {"input_tokens": 1_000, "output_tokens": 10, "total_tokens": 1_010}});
        assert_eq!(usage(&body), Some(Usage { input_tokens: 1_000, output_tokens: 10 }));
    }

    #[test]
    fn a_broken_off_answer_is_not_complete() {
        let body = json!({"choices": [{"message": {"content": "half a"}, "finish_reason": "error"}]});
        assert!(matches!(answer(&body), Err(Unreadable::Garbled(_))));
    }

    #[test]
    fn what_is_no_explanation_is_told_by_what_to_do_about_it() {
        let with = |message: Value, reason: &str| json!({"choices": [{"message": message, "finish_reason": reason}]});
        let declined = [
            with(json!({"content": ""}), "content_filter"),
            with(json!({"content": null, "refusal": "I cannot"}), "stop"),
            with(json!({"content": ""}), "length"),
            with(json!({"content": null}), "length"),
        ];
        for body in declined {
            assert!(matches!(answer(&body), Err(Unreadable::Declined(_))), "{body}");
        }
        assert!(matches!(answer(&with(json!({"content": "  "}), "stop")), Err(Unreadable::Garbled(_))));
        let cut = with(json!({"content": [{"type": "text", "text": "It is"}]}), "length");
        assert_eq!(answer(&cut).unwrap().finish, Finish::Truncated);
    }
}
