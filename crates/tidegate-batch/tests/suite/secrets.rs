//! A server that repeats what it was sent, and addresses that have a password.

use serde_json::{Value, json};
use tidegate_batch::{ApiKey, Call, CallError, Caller, Dialect, Estimate, Quotas};
use tidegate_loop::run;

use crate::support::{Act, Seen, Server, error, gate, hasty};

const KEY: &str = "sk-proj-hush-4711-0815";

fn call() -> Call {
    Call::new("/chat/completions", "{}".into(), Estimate { input_tokens: 50, output_tokens: 50 })
}

fn key() -> Option<ApiKey> {
    Some(ApiKey::new(KEY, "OPENAI_API_KEY").unwrap())
}

/// The request's head, as debug proxies answer with it, behind so much else that an excerpt ends within the key.
fn echo(seen: &Seen, before: usize) -> String {
    let authorization = seen.headers["authorization"].to_str().unwrap();
    format!("{} authorization: {authorization}", "x".repeat(before))
}

#[test]
fn an_answer_that_is_no_json_and_repeats_the_request_shows_no_part_of_the_key() {
    run(async {
        // The excerpt has 160 characters: the key stands before, at and behind its end.
        for before in [0, 100, 110, 120, 125, 130, 200] {
            let server = Server::start(move |_, seen| Act::Say(200, echo(seen, before))).await;
            let gate = gate(&Quotas::default());
            let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
            let caller = caller.with_key(key()).with_retries(hasty(5));
            let garbled = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
            let shown = format!("{garbled} {garbled:?}");
            assert!(matches!(garbled, CallError::Garbled { .. }), "{shown}");
            assert!(!shown.contains("sk-"), "{shown}");
        }
    })
    .unwrap();
}

#[test]
fn answers_and_refusals_that_repeat_the_key_are_passed_on_without_it() {
    run(async {
        let server = Server::start(|number, seen| match number {
            0 => Act::Say(200, format!(r#"{{"said":"{}"}}"#, echo(seen, 0))),
            _ => Act::Say(422, format!("{} no such thing", echo(seen, 100))),
        })
        .await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_key(key());
        let reply = caller.call_json(gate.unscoped(), &call()).await.unwrap();
        assert_eq!(reply.value["said"], " authorization: Bearer (secret)");
        let refused = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        let CallError::Refused { message, body, .. } = refused else { panic!("{refused}") };
        assert!(message.ends_with("(secret) no such thing"), "{message}");
        assert!(!String::from_utf8_lossy(&body).contains("hush"));
    })
    .unwrap();
}

/// The shapes of an answer in which each provider joins texts, with the key divided between two of them.
fn divided(key: &str) -> [(Dialect, Value); 3] {
    let (first, second) = (format!("key {}", &key[..9]), format!("{} end", &key[9..]));
    let texts = json!([{"type": "text", "text": first}, {"type": "text", "text": second}]);
    [
        (Dialect::OpenAi, json!({"choices": [{"message": {"content": texts}, "finish_reason": "stop"}]})),
        (Dialect::Gemini, json!({"candidates": [{"content": {"parts": texts}, "finishReason": "STOP"}]})),
        (Dialect::Anthropic, json!({"content": texts, "stop_reason": "end_turn"})),
    ]
}

#[test]
fn a_key_that_is_divided_among_the_texts_of_an_answer_is_removed() {
    run(async {
        for (dialect, body) in divided(KEY) {
            let body = body.to_string();
            let server = Server::start(move |_, _| Act::Say(200, body.clone())).await;
            let gate = gate(&Quotas::default());
            let caller = Caller::new(&gate, dialect, &server.base).unwrap().with_key(key());
            let answer = caller.call(gate.unscoped(), &call(), |body| dialect.answer(body)).await.unwrap().value;
            assert_eq!(answer.text, "key (secret) end", "{dialect:?}");
            let whole = caller.call_json(gate.unscoped(), &call()).await.unwrap().value.to_string();
            assert!(!whole.contains(&KEY[..9]) && !whole.contains(&KEY[9..]), "{whole}");
        }
        // Two chunks of a stream, although no stream was asked for.
        let chunk = |text: &str| format!("data: {}\n\n", json!({"choices": [{"delta": {"content": text}}]}));
        let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
        let stream = format!("{}{}{end}", chunk(&KEY[..9]), chunk(&KEY[9..]));
        let server = Server::start(move |_, _| Act::Say(200, stream.clone())).await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_key(key());
        let answer = caller.call(gate.unscoped(), &call(), |body| Dialect::OpenAi.answer(body)).await.unwrap().value;
        assert_eq!(answer.text, "(secret)");
    })
    .unwrap();
}

/// As a server says it that quotes what another server has said.
#[test]
fn a_key_whose_escapes_are_text_is_removed_from_answers_and_from_refusals() {
    run(async {
        let key = "sk-Very+Secret/Key=1234567890abcdef";
        let escaped: String = key.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
        let partly = key.replace('/', "\\/").replace('+', "\\u002b");
        for form in [escaped, partly] {
            let said = format!("upstream said {{\"key\":\"{form}\"}} end");
            for (dialect, body) in divided(KEY) {
                let whole = body.to_string().replace(&KEY[..9], "").replace(&KEY[9..], "");
                let whole = whole.replace("key ", json!(said).to_string().trim_matches('"'));
                let refusal = json!({"error": {"message": said, "type": said, "code": said}}).to_string();
                let server = Server::start(move |number, _| match number {
                    0 | 1 => Act::Say(200, whole.clone()),
                    _ => Act::Say(400, refusal.clone()),
                })
                .await;
                let gate = gate(&Quotas::default());
                let caller = Caller::new(&gate, dialect, &server.base).unwrap();
                let caller = caller.with_key(Some(ApiKey::new(key, "a test").unwrap()));
                let answer = caller.call(gate.unscoped(), &call(), |body| dialect.answer(body)).await.unwrap().value;
                assert_eq!(answer.text, "upstream said {\"key\":\"(secret)\"} end end", "{dialect:?}");
                let value = caller.call_json(gate.unscoped(), &call()).await.unwrap().value.to_string();
                let refused = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
                let CallError::Refused { message, body, .. } = &refused else { panic!("{refused}") };
                assert_eq!(message, "upstream said {\"key\":\"(secret)\"} end");
                for shown in [value, String::from_utf8_lossy(body).into_owned()] {
                    assert!(!shown.contains("u002b") && shown.contains("(secret)"), "{shown}");
                }
            }
        }
    })
    .unwrap();
}

#[test]
fn a_short_key_that_is_a_word_does_not_change_answers() {
    run(async {
        let server = Server::start(|number, _| match number {
            0 => Act::Say(200, r#"{"said":"the test is over"}"#.into()),
            _ => error(401, "wrong key: test", "invalid_api_key"),
        })
        .await;
        let gate = gate(&Quotas::default());
        let test = Some(ApiKey::new("test", "a test").unwrap());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_key(test);
        assert_eq!(caller.call_json(gate.unscoped(), &call()).await.unwrap().value["said"], "the test is over");
        let shut = caller.call_json(gate.unscoped(), &call()).await.unwrap_err().to_string();
        assert!(shut.contains("wrong key: (secret)"), "{shut}");
    })
    .unwrap();
}

#[test]
fn user_and_password_of_the_address_are_sent_as_a_header_and_shown_nowhere() {
    run(async {
        let server = Server::start(|_, seen| Act::Say(401, echo(seen, 0))).await;
        let gate = gate(&Quotas::default());
        let base = server.base.replace("http://", "http://joe:hunter2@");
        let caller = Caller::new(&gate, Dialect::OpenAi, &base).unwrap();
        assert_eq!(caller.base_url(), server.base);
        let shut = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        let shown = format!("{shut} {shut:?} {caller:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("am9lOmh1bnRlcjI"), "{shown}");
        assert!(shown.contains("Basic (secret)"), "{shown}");
        assert_eq!(server.seen()[0].headers["authorization"], "Basic am9lOmh1bnRlcjI=");
    })
    .unwrap();
}

#[test]
fn a_key_is_not_sent_unencrypted_to_another_machine() {
    run(async {
        // An address that is reserved for documentation: nobody would answer.
        for base in ["http://192.0.2.1/v1", "http://joe:hunter2@192.0.2.1/v1"] {
            let gate = gate(&Quotas::default());
            let key = key().filter(|_| !base.contains("joe"));
            let caller = Caller::new(&gate, Dialect::OpenAi, base).unwrap().with_key(key);
            let shut = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
            assert!(matches!(shut, CallError::Shut { .. }), "{shut}");
            assert!(shut.to_string().contains("http://192.0.2.1/v1 unencrypted"), "{shut}");
            assert_eq!(caller.stats().sent, 0);
        }
    })
    .unwrap();
}
