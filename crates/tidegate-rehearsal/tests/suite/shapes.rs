//! What answers and refusals look like.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_http::Client;
use tidegate_rehearsal::{Counting, Limit, Refusals, Server, Window};

use crate::support::{ask, on_loop, post, question};

#[test]
fn a_chat_is_answered_in_openais_shape_and_the_same_question_the_same_way() {
    on_loop(async {
        let server = Server::builder().rpm(Limit::new(10)).tpm(Limit::new(1_000)).start().await.unwrap();
        let first = ask(&server, "Why do tides turn?").await;
        assert_eq!(first.status, 200);
        let choice = &first.body["choices"][0];
        assert!(choice["message"]["content"].as_str().unwrap().ends_with(": Why do tides turn?"));
        assert_eq!((&choice["finish_reason"], &choice["message"]["role"]), (&json!("stop"), &json!("assistant")));
        let usage = &first.body["usage"];
        // Two messages of 9 and 18 characters.
        assert_eq!(usage["prompt_tokens"], 3 + 5);
        let total = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
        assert_eq!(usage["total_tokens"], total);
        assert_eq!(first.header("x-ratelimit-limit-requests"), Some("10"));
        assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("9"));
        assert_eq!(first.header("x-ratelimit-remaining-tokens"), Some((1_000 - total).to_string().as_str()));
        assert_eq!(first.header("x-ratelimit-reset-requests"), Some("1m0s"));

        let second = ask(&server, "Why do tides turn?").await;
        assert_eq!(second.body["choices"], first.body["choices"]);
        assert_eq!(server.stats().repeated, 1);
        server.stop().await;
        assert!(server.is_stopped());
    });
}

#[test]
fn an_answer_is_cut_at_max_tokens() {
    on_loop(async {
        let server = Server::builder().start().await.unwrap();
        let mut body = question("Why do tides turn?");
        body["max_tokens"] = json!(3);
        let got = post(&server, "/v1/chat/completions", &[], &body).await;
        assert_eq!(got.body["choices"][0]["finish_reason"], "length");
        assert_eq!(got.body["usage"]["completion_tokens"], 3);
    });
}

#[test]
fn openai_refuses_with_the_limit_the_count_and_the_delay() {
    on_loop(async {
        let server = Server::builder().rpm(Limit::new(1)).start().await.unwrap();
        ask(&server, "one").await;
        let got = ask(&server, "two").await;
        assert_eq!(got.status, 429);
        let error = &got.body["error"];
        assert_eq!((&error["type"], &error["code"]), (&json!("requests"), &json!("rate_limit_exceeded")));
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("requests per min (RPM): Limit 1, Used 1, Requested 1. Please try again in"),
            "{message}"
        );
        assert_eq!(got.header("retry-after"), Some("60"));
        assert_eq!(got.header("x-ratelimit-remaining-requests"), Some("0"));
    });
}

#[test]
fn a_request_beyond_the_whole_limit_is_told_so() {
    on_loop(async {
        let server = Server::builder().tpm(Limit::new(5)).start().await.unwrap();
        let got = ask(&server, "far more than five tokens of four characters each").await;
        let message = got.body["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("Request too large for m") && message.contains("Limit 5, Requested"), "{message}");
        assert_eq!(got.header("retry-after"), None);
    });
}

#[test]
fn refusals_come_in_the_shape_that_was_asked_for() {
    on_loop(async {
        let refused = async |how| {
            let server = Server::builder().rpm(Limit::new(1)).refusals(how).start().await.unwrap();
            ask(&server, "one").await;
            ask(&server, "two").await
        };
        let bare = refused(Refusals::Bare).await;
        assert_eq!((bare.status, bare.header("retry-after")), (429, None));
        assert!(!bare.body["error"]["message"].as_str().unwrap().contains("try again"));
        let broke = refused(Refusals::InsufficientQuota).await;
        assert_eq!((broke.status, &broke.body["error"]["code"]), (429, &json!("insufficient_quota")));
        let litellm = refused(Refusals::Litellm).await;
        assert_eq!(litellm.body["error"]["code"], "429");
        assert_eq!(litellm.body["error"]["type"], "throttling_error");
        assert_eq!(litellm.header("llm_provider-retry-after"), Some("60"));
        assert_eq!(litellm.header("retry-after"), None);
    });
}

fn contents(text: &str) -> Value {
    json!({"contents": [{"role": "user", "parts": [{"text": text}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}}]}]})
}

#[test]
fn gemini_answers_and_refuses_with_quota_ids() {
    on_loop(async {
        let minute = Server::builder().rpm(Limit::new(1)).start().await.unwrap();
        let path = "/v1beta/models/gemini-x:generateContent";
        let got = post(&minute, path, &[], &contents("Why?")).await;
        assert_eq!(got.status, 200);
        assert!(got.body["candidates"][0]["content"]["parts"][0]["text"].as_str().unwrap().ends_with(": Why?"));
        assert_eq!(got.body["usageMetadata"]["promptTokenCount"], 1 + 258);
        assert_eq!(got.body["candidates"][0]["finishReason"], "STOP");

        let got = post(&minute, path, &[], &contents("And?")).await;
        let error = &got.body["error"];
        assert_eq!((got.status, &error["status"]), (429, &json!("RESOURCE_EXHAUSTED")));
        let violation = &error["details"][0]["violations"][0];
        assert_eq!(violation["quotaId"], "GenerateRequestsPerMinutePerProjectPerModel-FreeTier");
        assert_eq!(
            (&violation["quotaValue"], &violation["quotaDimensions"]["model"]),
            (&json!("1"), &json!("gemini-x"))
        );
        assert_eq!(error["details"][2]["retryDelay"], "59s", "the fraction is dropped");
        assert!(error["message"].as_str().unwrap().contains("Please retry in 59.9"));
        assert_eq!(got.header("retry-after"), None);

        let day = Limit::new(1).window(Window::Day("America/Los_Angeles".to_owned()));
        let daily = Server::builder().rpd(day).start().await.unwrap();
        post(&daily, path, &[], &contents("Why?")).await;
        let got = post(&daily, path, &[], &contents("And?")).await;
        let id = &got.body["error"]["details"][0]["violations"][0]["quotaId"];
        assert_eq!(id, "GenerateRequestsPerDayPerProjectPerModel-FreeTier");
        assert_eq!(daily.stats().refused.rpd, 1);
    });
}

#[test]
fn anthropic_answers_and_refuses() {
    on_loop(async {
        let server = Server::builder().rpm(Limit::new(1)).api_key("k").start().await.unwrap();
        let body = json!({"model": "claude", "max_tokens": 100, "messages": [{"role": "user", "content": "Why?"}]});
        let key = [("x-api-key", "k")];
        let got = post(&server, "/v1/messages", &key, &body).await;
        assert_eq!((got.status, &got.body["stop_reason"]), (200, &json!("end_turn")));
        assert!(got.body["content"][0]["text"].as_str().unwrap().ends_with(": Why?"));
        assert_eq!(got.header("anthropic-ratelimit-requests-remaining"), Some("0"));
        let got = post(&server, "/v1/messages", &key, &body).await;
        assert_eq!((got.status, &got.body["error"]["type"]), (429, &json!("rate_limit_error")));
        assert_eq!(got.header("retry-after"), Some("60"));
        let got = post(&server, "/v1/messages", &[], &body).await;
        assert_eq!((got.status, &got.body["error"]["type"]), (401, &json!("authentication_error")));
    });
}

#[test]
fn anthropic_counts_prompts_and_answers_apart() {
    on_loop(async {
        let server = Server::builder().itpm(Limit::new(1_000)).otpm(Limit::new(60)).start().await.unwrap();
        let ask =
            |text: &str| json!({"model": "claude", "max_tokens": 50, "messages": [{"role": "user", "content": text}]});
        let got = post(&server, "/v1/messages", &[], &ask("Why do tides turn twice a day?")).await;
        let (input, output) = (&got.body["usage"]["input_tokens"], &got.body["usage"]["output_tokens"]);
        let left = |unit: &str| got.header(&format!("anthropic-ratelimit-{unit}-tokens-remaining")).unwrap().to_owned();
        assert_eq!(left("input"), (1_000 - input.as_u64().unwrap()).to_string());
        assert_eq!(left("output"), (60 - output.as_u64().unwrap()).to_string());
        let got = post(&server, "/v1/messages", &[], &ask(&"The sea comes and goes. ".repeat(20))).await;
        assert_eq!(got.status, 429);
        assert!(got.body["error"]["message"].as_str().unwrap().contains("60 output tokens per minute"), "{}", got.body);
        assert_eq!((server.stats().refused.otpm, server.stats().refused.itpm), (1, 0));

        let declared = Server::builder().otpm(Limit::new(99)).counting(Counting::Declared).start().await.unwrap();
        let statuses = [
            post(&declared, "/v1/messages", &[], &ask("1")).await,
            post(&declared, "/v1/messages", &[], &ask("2")).await,
        ];
        assert_eq!(statuses.map(|got| got.status), [200, 429], "fifty each, however short the answer");
    });
}

#[test]
fn a_wrong_key_model_body_or_path_is_told_apart() {
    on_loop(async {
        let server = Server::builder().api_key("right").models(["m", "n"]).start().await.unwrap();
        let key = [("authorization", "Bearer right")];
        let path = "/v1/chat/completions";
        let status = async |path, headers: &[(&str, &str)], body| post(&server, path, headers, &body).await.status;
        assert_eq!(status(path, &[("authorization", "Bearer wrong")], question("?")).await, 401);
        assert_eq!(status(path, &key, json!({"model": "o", "messages": [{"content": "?"}]})).await, 404);
        assert_eq!(status(path, &key, json!({"model": "m"})).await, 400);
        assert_eq!(
            status(path, &key, json!({"model": "m", "stream": true, "messages": [{"content": "?"}]})).await,
            400
        );
        assert_eq!(status("/v1/nonsense", &key, question("?")).await, 404);
        assert_eq!(status("/v1beta/models/m:countTokens", &[("x-goog-api-key", "right")], contents("?")).await, 404);
        assert_eq!(status(path, &key, question("?")).await, 200);
        let stats = server.stats();
        assert_eq!((stats.rejected, stats.accepted), (6, 1));
        let models: Value = {
            let response = Client::new().get(&format!("{}/v1/models", server.base_url())).await.unwrap();
            response.into_body().json().await.unwrap()
        };
        assert_eq!(models["data"][1]["id"], "n");
    });
}

#[test]
fn embeddings_follow_their_text() {
    on_loop(async {
        let server = Server::builder().start().await.unwrap();
        let embed = async |text: &str| {
            let body = json!({"model": "e", "input": text});
            post(&server, "/v1/embeddings", &[], &body).await.body["data"][0]["embedding"].clone()
        };
        let one = embed("one").await;
        assert_eq!(one.as_array().unwrap().len(), 8);
        assert_eq!(embed("one").await, one);
        assert_ne!(embed("two").await, one);
    });
}

#[test]
fn the_figures_can_be_read_over_http() {
    on_loop(async {
        let server = Server::builder().rpm(Limit::new(1).per(Duration::from_secs(3_600))).start().await.unwrap();
        ask(&server, "one").await;
        ask(&server, "two").await;
        let response = Client::new().get(&format!("{}/rehearsal/stats?log=10", server.base_url())).await.unwrap();
        let shown: Value = response.into_body().json().await.unwrap();
        assert_eq!(shown["refused"]["rpm"], 1);
        assert_eq!(shown["limits"][0]["worst_offered"], 2);
        let log = shown["log"].as_array().unwrap();
        assert_eq!((&log[0]["status"], &log[1]["refused_by"]), (&json!(200), &json!("rpm")));
    });
}
