//! Gemini's `generateContent`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::model::{BadModel, in_path};
use super::{Parameters, Unreadable, count, text};
use crate::question::{Answer, Finish, Question, Usage};

/// The path of the model. The folder `models/` may be left out of its name; tuned models have a folder of their own.
pub(super) fn path(model: &str) -> Result<String, BadModel> {
    let name = in_path(model)?;
    let folder = if ["models/", "tunedModels/"].iter().any(|folder| name.starts_with(folder)) { "" } else { "models/" };
    Ok(format!("/v1beta/{folder}{name}:generateContent"))
}

pub(super) fn body(question: &Question, parameters: &Parameters) -> Value {
    let mut parts = vec![json!({"text": question.to_text()})];
    if let Some(picture) = &question.picture {
        parts.push(json!({"inlineData": {"mimeType": "image/png", "data": STANDARD.encode(&picture.png)}}));
    }
    let mut config = Map::new();
    if let Some(max_tokens) = parameters.max_tokens {
        config.insert("maxOutputTokens".into(), json!(max_tokens));
    }
    if let Some(temperature) = parameters.temperature {
        config.insert("temperature".into(), json!(temperature));
    }
    json!({"contents": [{"role": "user", "parts": parts}], "generationConfig": config})
}

pub(super) fn answer(body: &Value) -> Result<Answer, Unreadable> {
    let garbled = |what: &str| Unreadable::Garbled(format!("{what}: {}", super::excerpt(body.to_string().as_bytes())));
    if let Some(reason) = body.pointer("/promptFeedback/blockReason").and_then(Value::as_str) {
        return Err(Unreadable::Declined(format!("the provider blocked the question ({reason})")));
    }
    let candidate = body.pointer("/candidates/0").ok_or_else(|| garbled("it has no candidates"))?;
    let parts = candidate.pointer("/content/parts").and_then(Value::as_array);
    let said: String =
        parts.into_iter().flatten().filter(|part| is_said(part)).filter_map(|part| text(part, "text")).collect();
    let reason = text(candidate, "finishReason");
    match reason {
        Some("SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "LANGUAGE" | "IMAGE_SAFETY") => {
            return Err(Unreadable::Declined(format!("the provider stopped the answer ({})", reason.unwrap_or(""))));
        }
        Some("MAX_TOKENS") if said.trim().is_empty() => {
            return Err(Unreadable::Declined(
                "the answer was cut off before a word of it was there: allow more tokens (--max-tokens)".into(),
            ));
        }
        _ if said.trim().is_empty() => return Err(garbled("its candidate has no text")),
        _ => {}
    }
    Ok(Answer {
        text: said,
        usage: usage(body).unwrap_or_default(),
        finish: if reason == Some("MAX_TOKENS") { Finish::Truncated } else { Finish::Complete },
        model: text(body, "modelVersion").map(Into::into),
    })
}

/// Returns `true` if the text of this part is part of the answer and not a thought.
pub(super) fn is_said(part: &Value) -> bool {
    part.get("thought").and_then(Value::as_bool) != Some(true)
}

pub(super) fn usage(body: &Value) -> Option<Usage> {
    let usage = body.get("usageMetadata").filter(|usage| usage.is_object())?;
    Some(usage_of(|name| count(usage, name)))
}

pub(super) fn usage_of(count: impl Fn(&str) -> u64) -> Usage {
    let input_tokens = count("promptTokenCount");
    let told = count("candidatesTokenCount").saturating_add(count("thoughtsTokenCount"));
    Usage { input_tokens, output_tokens: told.max(count("totalTokenCount").saturating_sub(input_tokens)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Picture;

    #[test]
    fn a_question_has_the_documented_shape() {
        let picture = Picture { png: bytes::Bytes::from_static(b"\x89PNG"), width: 1, height: 1 };
        let question = Question { prompt: "Explain.".into(), picture: Some(picture), ..Question::default() };
        let parameters = Parameters { model: "gemini-2.0-flash".into(), max_tokens: Some(9), temperature: Some(0.5) };
        let body = body(&question, &parameters);
        assert_eq!(body["contents"][0]["role"], "user");
        assert!(body["contents"][0]["parts"][0]["text"].as_str().unwrap().starts_with("Explain."));
        let inline = &body["contents"][0]["parts"][1]["inlineData"];
        assert_eq!((&inline["mimeType"], &inline["data"]), (&json!("image/png"), &json!("iVBORw==")));
        assert_eq!(body["generationConfig"], json!({"maxOutputTokens": 9, "temperature": 0.5}));
        assert_eq!(path("gemini-2.0-flash").unwrap(), "/v1beta/models/gemini-2.0-flash:generateContent");
        assert_eq!(path("models/gemini-2.0-flash"), path("gemini-2.0-flash"));
        assert_eq!(path("tunedModels/tides-7x").unwrap(), "/v1beta/tunedModels/tides-7x:generateContent");
    }

    #[test]
    fn a_model_name_cannot_choose_another_path() {
        for model in ["../../v1beta/cachedContents?x=", "models/../files", "m#", "models/", "tunedModels/", ""] {
            assert!(path(model).is_err(), "{model:?}");
        }
    }

    #[test]
    fn an_answer_in_parts_is_joined_and_thoughts_are_left_out() {
        let body = json!({
            "candidates": [{"content": {"role": "model", "parts": [
                {"text": "hm", "thought": true}, {"text": "It is "}, {"text": "about tides."}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 300, "candidatesTokenCount": 20, "thoughtsTokenCount": 50, "totalTokenCount": 370},
            "modelVersion": "gemini-2.0-flash-001"
        });
        let answer = answer(&body).unwrap();
        assert_eq!(answer.text, "It is about tides.");
        assert_eq!(answer.usage, Usage { input_tokens: 300, output_tokens: 70 });
    }

    #[test]
    fn blocks_are_final_and_emptiness_is_not() {
        for body in [
            json!({"promptFeedback": {"blockReason": "SAFETY"}}),
            json!({"candidates": [{"finishReason": "RECITATION"}]}),
            json!({"candidates": [{"finishReason": "MAX_TOKENS", "content": {"role": "model"}}]}),
        ] {
            assert!(matches!(answer(&body), Err(Unreadable::Declined(_))), "{body}");
        }
        assert!(matches!(answer(&json!({"candidates": [{"finishReason": "STOP"}]})), Err(Unreadable::Garbled(_))));
    }
}
