//! What is read from a request's body, and the little that may be changed in it. Pure.

use serde_json::Value;

use crate::estimate::{ANSWER_TOKENS, Estimate, tokens_of_text};
use crate::provider::{Dialect, excerpt};

/// What a picture is taken to cost, whose size is not known without unpacking it: a large page.
const TOKENS_PER_PICTURE: u64 = 1_600;

/// What the framing of a message or of a part of it costs.
const FRAME: u64 = 4;

/// What a request will cost at the most, and what of it the server counts whether it is used or not.
pub(super) fn estimate(dialect: Dialect, path: &str, body: &Value) -> (Estimate, u64) {
    let input_tokens = 8 + ["messages", "contents", "input", "prompt", "system", "systemInstruction", "tools"]
        .iter()
        .filter_map(|name| body.get(name))
        .map(tokens)
        .sum::<u64>();
    let asked = |name: &str| body.get(name).and_then(Value::as_u64);
    let config = |name: &str| body.get("generationConfig")?.get(name)?.as_u64();
    let limit = asked("max_completion_tokens")
        .or_else(|| asked("max_tokens"))
        .or_else(|| asked("max_output_tokens"))
        .or_else(|| config("maxOutputTokens"));
    let answers = asked("n").or_else(|| config("candidateCount")).unwrap_or(1).max(1);
    let output_tokens = match path.ends_with("/embeddings") {
        true => 0,
        false => limit.unwrap_or(ANSWER_TOKENS).saturating_mul(answers),
    };
    // OpenAI counts the limit of an answer when the request comes, and gives nothing back.
    let admitted = if dialect == Dialect::OpenAi { limit.unwrap_or(0) } else { 0 };
    (Estimate { input_tokens, output_tokens }, admitted)
}

/// All texts in a value; what is a picture instead of one costs as such.
fn tokens(value: &Value) -> u64 {
    match value {
        Value::String(text) if text.starts_with("data:") => TOKENS_PER_PICTURE,
        Value::String(text) => tokens_of_text(text),
        Value::Array(items) => items.iter().map(|item| FRAME + tokens(item)).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match &**name {
                "inlineData" | "inline_data" | "fileData" | "file_data" => TOKENS_PER_PICTURE,
                // The bytes of a picture in Anthropic's shape.
                "source" => TOKENS_PER_PICTURE,
                "url" => TOKENS_PER_PICTURE,
                _ => tokens(value),
            })
            .sum(),
        Value::Number(_) => 1,
        Value::Bool(_) | Value::Null => 0,
    }
}

/// The body with another model.
pub(super) fn with_model(mut body: Value, model: &str) -> Vec<u8> {
    body["model"] = Value::from(model);
    body.to_string().into_bytes()
}

/// A path below the base URL: `/v1/chat/completions` below `https://host/v1` is `/chat/completions`.
pub(super) fn path_below<'u>(base: &str, url: &'u str) -> &'u str {
    let last = base.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    match url.strip_prefix('/').and_then(|path| path.split_once('/')) {
        Some((first, rest)) if first == last => &url[url.len() - rest.len() - 1..],
        _ => url,
    }
}

/// Whether a successful answer is one to its question; why not otherwise.
pub(super) fn check(dialect: Dialect, path: &str, body: &[u8]) -> Result<(), String> {
    if body.is_empty() {
        return Err("it is empty (0 bytes)".to_owned());
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| format!("it is not JSON ({error})"))?;
    let wanted: &[&str] = match dialect {
        Dialect::Gemini => &["candidates", "promptFeedback", "embedding", "embeddings", "totalTokens"],
        Dialect::Anthropic => &["content"],
        _ if path.ends_with("/chat/completions") => &["choices"],
        _ => &[],
    };
    let object = value.as_object().ok_or("it is not an object")?;
    // Some gateways put an error of the server behind them into a success.
    if let Some(error) = object.get("error").filter(|error| !error.is_null()) {
        let said = error.as_str().or_else(|| error.get("message")?.as_str()).map(str::to_owned);
        return Err(format!("it is an error: {}", excerpt(said.unwrap_or_else(|| error.to_string()).as_bytes())));
    }
    match wanted.is_empty() || wanted.iter().any(|name| object.contains_key(*name)) {
        true => Ok(()),
        false => Err(format!("it has no {:?}", wanted[0])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chat_costs_its_texts_and_the_longest_answer() {
        let text = "The moon pulls the sea, and the sea follows.";
        let body = json!({"model": "m", "max_tokens": 50, "n": 2, "messages": [{"role": "user", "content": text}]});
        let (estimate, admitted) = estimate(Dialect::OpenAi, "/chat/completions", &body);
        assert!(estimate.input_tokens > tokens_of_text(text), "{estimate:?}");
        assert!(estimate.input_tokens < tokens_of_text(text) + 20, "{estimate:?}");
        assert_eq!((estimate.output_tokens, admitted), (100, 50));
    }

    #[test]
    fn a_picture_is_not_counted_by_its_letters() {
        let url = format!("data:image/png;base64,{}", "A".repeat(1_000_000));
        let openai = json!({"messages": [{"content": [{"type": "image_url", "image_url": {"url": url}}]}]});
        let gemini = json!({"contents": [{"parts": [{"inlineData": {"data": "A".repeat(1_000_000)}}]}]});
        for (dialect, body) in [(Dialect::OpenAi, openai), (Dialect::Gemini, gemini)] {
            let (estimate, _) = estimate(dialect, "", &body);
            assert!((1_600..1_700).contains(&estimate.input_tokens), "{estimate:?}");
        }
    }

    #[test]
    fn embeddings_have_no_answer_to_pay_for() {
        let (estimate, _) = estimate(Dialect::OpenAi, "/embeddings", &json!({"input": ["one", "two"]}));
        assert_eq!(estimate.output_tokens, 0);
    }

    #[test]
    fn the_version_stands_once_in_the_address() {
        assert_eq!(path_below("https://h/v1", "/v1/chat/completions"), "/chat/completions");
        assert_eq!(path_below("https://h", "/v1/chat/completions"), "/v1/chat/completions");
        assert_eq!(path_below("https://h/proxy/v1/", "/v1/embeddings"), "/embeddings");
        assert_eq!(path_below("https://h/v1", "/v1"), "/v1");
        assert_eq!(path_below("https://h/v1", ""), "", "a line of Gemini's has none");
    }

    #[test]
    fn an_answer_that_is_none_is_noticed() {
        let ok = |dialect, path: &str, body: &[u8]| check(dialect, path, body).is_ok();
        assert!(ok(Dialect::OpenAi, "/chat/completions", b"{\"choices\":[]}"));
        assert!(!ok(Dialect::OpenAi, "/chat/completions", b"{}"));
        assert!(ok(Dialect::OpenAi, "/embeddings", b"{}"));
        assert!(!ok(Dialect::OpenAi, "/embeddings", b"<html>"));
        assert!(!ok(Dialect::Gemini, "/x", b"{}"));
    }

    #[test]
    fn an_error_in_a_success_is_an_error_and_says_what_the_server_said() {
        for path in ["/chat/completions", "/embeddings", "/responses"] {
            let body = br#"{"error":{"message":"upstream is away","code":502},"choices":[]}"#;
            assert_eq!(check(Dialect::OpenAi, path, body).unwrap_err(), "it is an error: upstream is away");
            assert_eq!(check(Dialect::OpenAi, path, br#"{"error":"away"}"#).unwrap_err(), "it is an error: away");
        }
        assert!(check(Dialect::OpenAi, "/responses", br#"{"error":null,"output":[]}"#).is_ok());
    }
}
