//! OpenAI's shapes, and litellm's refusals.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};

use super::{Answer, Ask, Reply, Said, Task, Wrong, conversation};
use crate::fault::Refusals;
use crate::ledger::{Kind, Level, Refusal};
use crate::text::{fingerprint, go_duration, tokens_of};
use crate::window::Now;

/// A vector as short as this is enough to see that it came from the right text.
const EMBEDDING_LEN: usize = 8;

pub(super) fn read(body: &Value, task: Task) -> Result<Ask, String> {
    let model = body.get("model").and_then(Value::as_str).ok_or("you must provide a model parameter")?.to_owned();
    if task == Task::Embed {
        let input = match body.get("input") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"),
            _ => return Err("'input' must be a text or a list of texts".to_owned()),
        };
        let tokens_in = tokens_of(&input);
        return Ok(Ask { model, prompt: input, tokens_in, max_tokens: None, task });
    }
    if body.get("stream").and_then(Value::as_bool) == Some(true) {
        return Err("'stream' is not supported here; leave it away".to_owned());
    }
    let messages = body.get("messages").and_then(Value::as_array).filter(|messages| !messages.is_empty());
    let messages = messages.ok_or("'messages' must be a list of at least one message")?;
    let said = messages.iter().map(|message| {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        (role, Said::read(message.get("content").unwrap_or(&Value::Null)))
    });
    let (prompt, tokens_in) = conversation(said);
    let max_tokens = ["max_completion_tokens", "max_tokens"].iter().find_map(|name| body.get(name)?.as_u64());
    Ok(Ask { model, prompt, tokens_in, max_tokens, task })
}

#[derive(Serialize)]
struct Completion<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    usage: Spent,
    system_fingerprint: &'static str,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u64,
    message: Message<'a>,
    logprobs: (),
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: (),
}

#[derive(Serialize)]
struct Spent {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

pub(super) fn answer(ask: &Ask, answer: &Answer<'_>, levels: &[Level], now: Now) -> Reply {
    let created = now.wall.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let Answer { text, whole, tokens_in, tokens_out, number } = *answer;
    let mut reply = match ask.task {
        Task::Chat => {
            let message = Message { role: "assistant", content: text, refusal: () };
            let finish_reason = if whole { "stop" } else { "length" };
            let body = Completion {
                id: format!("chatcmpl-rehearsal{number:08}"),
                object: "chat.completion",
                created,
                model: &ask.model,
                choices: [Choice { index: 0, message, logprobs: (), finish_reason }],
                usage: Spent {
                    prompt_tokens: tokens_in,
                    completion_tokens: tokens_out,
                    total_tokens: tokens_in + tokens_out,
                },
                system_fingerprint: "rehearsal",
            };
            Reply::new(200, &body)
        }
        Task::Embed => {
            let body = json!({
                "object": "list",
                "data": [{"object": "embedding", "index": 0, "embedding": embedding(&ask.prompt)}],
                "model": ask.model,
                "usage": {"prompt_tokens": tokens_in, "total_tokens": tokens_in},
            });
            Reply::new(200, &body)
        }
    };
    reply.header("x-request-id", format!("req_rehearsal{number:08}"));
    rate_headers(&mut reply, levels);
    reply
}

fn embedding(text: &str) -> Vec<f64> {
    let print = fingerprint(text.as_bytes()).to_le_bytes();
    print.iter().take(EMBEDDING_LEN).map(|byte| f64::from(*byte) / 128.0 - 1.0).collect()
}

/// What is left, and in how long it is all back.
fn rate_headers(reply: &mut Reply, levels: &[Level]) {
    for level in levels {
        let unit = match level.kind {
            Kind::Rpm => "requests",
            Kind::Tpm => "tokens",
            Kind::Itpm | Kind::Otpm | Kind::Rpd | Kind::Concurrency => continue,
        };
        reply.header(&format!("x-ratelimit-limit-{unit}"), level.amount);
        reply.header(&format!("x-ratelimit-remaining-{unit}"), level.remaining);
        reply.header(&format!("x-ratelimit-reset-{unit}"), go_duration(level.full_in));
    }
}

pub(super) fn refuse(refusal: &Refusal, model: &str, how: Refusals, levels: &[Level]) -> Reply {
    let Refusal { amount, used, requested, delay, .. } = refusal;
    if how == Refusals::InsufficientQuota {
        let message = "You exceeded your current quota, please check your plan and billing details.";
        return Reply::new(429, &error(message, "insufficient_quota", Some("insufficient_quota")));
    }
    let (name, kind) = match refusal.kind {
        Kind::Rpm => ("requests per min (RPM)", "requests"),
        Kind::Tpm => ("tokens per min (TPM)", "tokens"),
        Kind::Itpm => ("input tokens per min (ITPM)", "tokens"),
        Kind::Otpm => ("output tokens per min (OTPM)", "tokens"),
        Kind::Rpd => ("requests per day (RPD)", "requests"),
        Kind::Concurrency => ("concurrent requests", "requests"),
    };
    if how == Refusals::Litellm {
        let message =
            format!("litellm.RateLimitError: RateLimitError: {model}: over {name}. Limit: {amount}, current: {used}");
        let mut body = error(&message, "throttling_error", Some("429"));
        body["error"]["param"] = json!("None");
        let mut reply = Reply::new(429, &body);
        reply.header("llm_provider-retry-after", 60);
        return reply;
    }
    let too_large = requested > amount;
    let mut message = match too_large {
        true => format!(
            "Request too large for {model} in organization org-rehearsal on {name}: Limit {amount}, Requested {requested}."
        ),
        false => format!(
            "Rate limit reached for {model} in organization org-rehearsal on {name}: Limit {amount}, Used {used}, Requested {requested}."
        ),
    };
    let delay = delay.filter(|_| how == Refusals::Standard);
    if let Some(delay) = delay {
        message.push_str(&format!(" Please try again in {}.", go_duration(round_up(delay))));
    }
    let mut reply = Reply::new(429, &error(&message, kind, Some("rate_limit_exceeded")));
    if let Some(delay) = delay {
        reply.header("retry-after", delay.as_secs_f64().ceil());
        reply.header("retry-after-ms", delay.as_millis() + 1);
    }
    rate_headers(&mut reply, levels);
    reply
}

/// Rounds up to whole milliseconds: a request that is sent after this delay is not too early.
fn round_up(delay: Duration) -> Duration {
    Duration::from_millis(u64::try_from(delay.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX))
}

pub(super) fn reject(wrong: &Wrong) -> Reply {
    match wrong {
        Wrong::Key => {
            let message = "Incorrect API key provided. This mock server accepts only the key that it was started with.";
            Reply::new(401, &error(message, "invalid_request_error", Some("invalid_api_key")))
        }
        Wrong::Model(model) => {
            let message = format!("The model `{model}` does not exist or you do not have access to it.");
            Reply::new(404, &error(&message, "invalid_request_error", Some("model_not_found")))
        }
        Wrong::Request(why) => Reply::new(400, &error(why, "invalid_request_error", None)),
        Wrong::Path(path) => Reply::new(404, &error(&format!("Invalid URL ({path})"), "invalid_request_error", None)),
    }
}

pub(super) fn fail(status: u16) -> Reply {
    let message = match status {
        500 => "The server had an error while processing your request. Sorry about that!",
        _ => "That model is currently overloaded with other requests. You can retry your request.",
    };
    Reply::new(status, &error(message, "server_error", None))
}

fn error(message: &str, kind: &str, code: Option<&str>) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

pub(super) fn models(models: &[String]) -> Value {
    let models: Vec<Value> = models
        .iter()
        .map(|model| json!({"id": model, "object": "model", "created": 0, "owned_by": "rehearsal"}))
        .collect();
    json!({"object": "list", "data": models})
}
