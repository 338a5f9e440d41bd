//! Anthropic's shapes.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Answer, Ask, Reply, Said, Task, Wrong, conversation};
use crate::fault::Refusals;
use crate::ledger::{Kind, Level, Refusal};
use crate::window::Now;

pub(super) fn read(body: &Value) -> Result<Ask, String> {
    let model = body.get("model").and_then(Value::as_str).ok_or("model: Field required")?.to_owned();
    let max_tokens = body.get("max_tokens").and_then(Value::as_u64).ok_or("max_tokens: Field required")?;
    let messages = body.get("messages").and_then(Value::as_array).filter(|messages| !messages.is_empty());
    let messages = messages.ok_or("messages: at least one message is required")?;
    let system = body.get("system").map(|system| ("system", Said::read(system)));
    let said = system.into_iter().chain(messages.iter().map(|message| {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        (role, Said::read(message.get("content").unwrap_or(&Value::Null)))
    }));
    let (prompt, tokens_in) = conversation(said);
    Ok(Ask { model, prompt, tokens_in, max_tokens: Some(max_tokens), task: Task::Chat })
}

#[derive(Serialize)]
struct Message<'a> {
    id: String,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: [Block<'a>; 1],
    stop_reason: &'static str,
    stop_sequence: (),
    usage: Spent,
}

#[derive(Serialize)]
struct Block<'a> {
    r#type: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
struct Spent {
    input_tokens: u64,
    output_tokens: u64,
}

pub(super) fn answer(ask: &Ask, answer: &Answer<'_>, levels: &[Level], now: Now) -> Reply {
    let Answer { text, whole, tokens_in, tokens_out, number } = *answer;
    let body = Message {
        id: format!("msg_rehearsal{number:08}"),
        r#type: "message",
        role: "assistant",
        model: &ask.model,
        content: [Block { r#type: "text", text }],
        stop_reason: if whole { "end_turn" } else { "max_tokens" },
        stop_sequence: (),
        usage: Spent { input_tokens: tokens_in, output_tokens: tokens_out },
    };
    let mut reply = Reply::new(200, &body);
    reply.header("request-id", format!("req_rehearsal{number:08}"));
    rate_headers(&mut reply, levels, now);
    reply
}

fn rate_headers(reply: &mut Reply, levels: &[Level], now: Now) {
    for level in levels {
        let unit = match level.kind {
            Kind::Rpm => "requests",
            Kind::Tpm => "tokens",
            Kind::Itpm => "input-tokens",
            Kind::Otpm => "output-tokens",
            Kind::Rpd | Kind::Concurrency => continue,
        };
        reply.header(&format!("anthropic-ratelimit-{unit}-limit"), level.amount);
        reply.header(&format!("anthropic-ratelimit-{unit}-remaining"), level.remaining);
        if let Ok(at) = Timestamp::try_from(now.wall + level.full_in) {
            reply.header(&format!("anthropic-ratelimit-{unit}-reset"), at);
        }
    }
}

pub(super) fn refuse(refusal: &Refusal, how: Refusals, levels: &[Level], now: Now) -> Reply {
    if how == Refusals::InsufficientQuota {
        let message = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing.";
        return Reply::new(400, &error("invalid_request_error", message));
    }
    let what = match refusal.kind {
        Kind::Rpm => "requests per minute",
        Kind::Tpm => "tokens per minute",
        Kind::Itpm => "input tokens per minute",
        Kind::Otpm => "output tokens per minute",
        Kind::Rpd => "requests per day",
        Kind::Concurrency => "concurrent connections",
    };
    let message = format!("This request would exceed your organization's rate limit of {} {what}.", refusal.amount);
    let mut reply = Reply::new(429, &error("rate_limit_error", &message));
    if let Some(delay) = refusal.delay.filter(|_| how != Refusals::Bare) {
        reply.header("retry-after", delay.as_secs_f64().ceil());
    }
    rate_headers(&mut reply, levels, now);
    reply
}

pub(super) fn reject(wrong: &Wrong) -> Reply {
    match wrong {
        Wrong::Key => Reply::new(401, &error("authentication_error", "invalid x-api-key")),
        Wrong::Model(model) => Reply::new(404, &error("not_found_error", &format!("model: {model}"))),
        Wrong::Request(why) => Reply::new(400, &error("invalid_request_error", why)),
        Wrong::Path(path) => Reply::new(404, &error("not_found_error", path)),
    }
}

pub(super) fn fail(status: u16) -> Reply {
    match status {
        500 => Reply::new(500, &error("api_error", "Internal server error")),
        _ => Reply::new(status, &error("overloaded_error", "Overloaded")),
    }
}

fn error(kind: &str, message: &str) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": message}})
}
