//! Gemini's shapes: Google's error model, with the quota's id and a delay without its fraction.

use serde::Serialize;
use serde_json::{Value, json};

use super::{Answer, Ask, Reply, Said, Task, Wrong, conversation};
use crate::fault::Refusals;
use crate::ledger::{Kind, Refusal};

const METRIC: &str = "generativelanguage.googleapis.com";

pub(super) fn read(body: &Value, model: &str) -> Result<Ask, String> {
    let contents = body.get("contents").and_then(Value::as_array).filter(|contents| !contents.is_empty());
    let contents = contents.ok_or("GenerateContentRequest.contents: contents is not specified")?;
    let parts = |content: &Value| Said::read(content.get("parts").unwrap_or(&Value::Null));
    let system = body.get("systemInstruction").or_else(|| body.get("system_instruction"));
    let said = system.map(|content| ("system", parts(content))).into_iter().chain(contents.iter().map(|content| {
        let role = content.get("role").and_then(Value::as_str).unwrap_or("user");
        (role, parts(content))
    }));
    let (prompt, tokens_in) = conversation(said);
    let max_tokens = body.get("generationConfig").and_then(|config| config.get("maxOutputTokens")?.as_u64());
    Ok(Ask { model: model.to_owned(), prompt, tokens_in, max_tokens, task: Task::Chat })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Generated<'a> {
    candidates: [Candidate<'a>; 1],
    usage_metadata: Spent,
    model_version: &'a str,
    response_id: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    content: Content<'a>,
    finish_reason: &'static str,
    index: u64,
}

#[derive(Serialize)]
struct Content<'a> {
    parts: [Part<'a>; 1],
    role: &'static str,
}

#[derive(Serialize)]
struct Part<'a> {
    text: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spent {
    prompt_token_count: u64,
    candidates_token_count: u64,
    total_token_count: u64,
}

pub(super) fn answer(ask: &Ask, answer: &Answer<'_>) -> Reply {
    let Answer { text, whole, tokens_in, tokens_out, number } = *answer;
    let content = Content { parts: [Part { text }], role: "model" };
    let body = Generated {
        candidates: [Candidate { content, finish_reason: if whole { "STOP" } else { "MAX_TOKENS" }, index: 0 }],
        usage_metadata: Spent {
            prompt_token_count: tokens_in,
            candidates_token_count: tokens_out,
            total_token_count: tokens_in + tokens_out,
        },
        model_version: &ask.model,
        response_id: format!("rehearsal{number:08}"),
    };
    Reply::new(200, &body)
}

pub(super) fn refuse(refusal: &Refusal, model: &str, how: Refusals) -> Reply {
    let (metric, id) = match refusal.kind {
        Kind::Rpm => ("generate_content_free_tier_requests", "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"),
        Kind::Tpm | Kind::Itpm => {
            ("generate_content_free_tier_input_token_count", "GenerateContentInputTokensPerModelPerMinute-FreeTier")
        }
        Kind::Otpm => {
            ("generate_content_free_tier_output_token_count", "GenerateContentOutputTokensPerModelPerMinute-FreeTier")
        }
        Kind::Rpd => ("generate_content_free_tier_requests", "GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
        Kind::Concurrency => ("generate_content_concurrent_requests", "ConcurrentRequestsPerProject"),
    };
    let plan = "You exceeded your current quota, please check your plan and billing details.";
    if how == Refusals::InsufficientQuota {
        let message =
            "Your prepayment credits are depleted. Please go to AI Studio to manage your project and billing.";
        return Reply::new(429, &error(429, message, "RESOURCE_EXHAUSTED", Vec::new()));
    }
    let mut message =
        format!("{plan}\n* Quota exceeded for metric: {METRIC}/{metric}, limit: {}, model: {model}", refusal.amount);
    let mut details = vec![
        json!({
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [{
                "quotaMetric": format!("{METRIC}/{metric}"),
                "quotaId": id,
                "quotaDimensions": {"location": "global", "model": model},
                "quotaValue": refusal.amount.to_string(),
            }],
        }),
        json!({
            "@type": "type.googleapis.com/google.rpc.Help",
            "links": [{"description": "Learn more about Gemini API quotas", "url": "https://ai.google.dev/gemini-api/docs/rate-limits"}],
        }),
    ];
    if how == Refusals::Bare {
        return Reply::new(429, &error(429, plan, "RESOURCE_EXHAUSTED", Vec::new()));
    }
    if let Some(delay) = refusal.delay {
        message.push_str(&format!("\nPlease retry in {}s.", delay.as_secs_f64()));
        details.push(json!({
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": format!("{}s", delay.as_secs()),
        }));
    }
    Reply::new(429, &error(429, &message, "RESOURCE_EXHAUSTED", details))
}

pub(super) fn reject(wrong: &Wrong) -> Reply {
    let (status, message, name) = match wrong {
        Wrong::Key => (400, "API key not valid. Please pass a valid API key.".to_owned(), "INVALID_ARGUMENT"),
        Wrong::Model(model) => (
            404,
            format!("models/{model} is not found for API version v1beta, or is not supported for generateContent."),
            "NOT_FOUND",
        ),
        Wrong::Request(why) => (400, why.clone(), "INVALID_ARGUMENT"),
        Wrong::Path(path) => (404, format!("there is no {path}"), "NOT_FOUND"),
    };
    let details = match wrong {
        Wrong::Key => vec![json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "API_KEY_INVALID",
            "domain": "googleapis.com",
        })],
        _ => Vec::new(),
    };
    Reply::new(status, &error(status, &message, name, details))
}

pub(super) fn fail(status: u16) -> Reply {
    let (message, name) = match status {
        500 => ("An internal error has occurred. Please retry.", "INTERNAL"),
        _ => ("The model is overloaded. Please try again later.", "UNAVAILABLE"),
    };
    Reply::new(status, &error(status, message, name, Vec::new()))
}

fn error(code: u16, message: &str, status: &str, details: Vec<Value>) -> Value {
    let mut error = json!({"error": {"code": code, "message": message, "status": status}});
    if !details.is_empty() {
        error["error"]["details"] = Value::Array(details);
    }
    error
}

pub(super) fn models(models: &[String]) -> Value {
    let models: Vec<Value> = models
        .iter()
        .map(|model| json!({"name": format!("models/{model}"), "supportedGenerationMethods": ["generateContent"]}))
        .collect();
    json!({"models": models})
}
