//! One request, by the class of what comes back.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use tidegate_batch::{ApiKey, Call, CallError, Caller, Dialect, Estimate, Question, Quotas, Remote};
use tidegate_batch::{Parameters, Provider as _};
use tidegate_limit::{Gate, Limit};
use tidegate_loop::{EventLoop, LoopHandle, run, spawn, timeout, yield_now};

use crate::support::{Act, Server, answer, error, gate, hasty, parameters};

fn call() -> Call {
    Call::new("/chat/completions", "{}".into(), Estimate { input_tokens: 50, output_tokens: 50 })
}

#[test]
fn a_passing_fault_is_tried_again_and_a_lasting_one_is_not() {
    run(async {
        let server = Server::start(|number, _| match number {
            0 => error(500, "oops", "server_error"),
            1 => Act::Say(503, "overloaded".into()),
            2 => answer("yes"),
            _ => error(400, "max_tokens is too large", "invalid"),
        })
        .await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(5));
        let reply = caller.call_json(gate.unscoped(), &call()).await.unwrap();
        assert_eq!((reply.attempts, reply.usage.unwrap().total()), (3, 110));
        let refused = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        assert!(matches!(&refused, CallError::Refused { status: 400, message, .. } if message.contains("max_tokens")));
        assert!(refused.is_lasting());
        assert_eq!(server.seen().len(), 4, "not asked again");
        assert_eq!(gate.stats().current, 0);
    })
    .unwrap();
}

#[test]
fn a_429_holds_its_request_for_as_long_as_it_says_and_uses_up_no_attempt() {
    run(async {
        let throttled = r#"{"error":{"message":"Rate limit reached on requests per min (RPM). Please try again in 80ms.","type":"requests","code":"rate_limit_exceeded"}}"#;
        let server =
            Server::start(move |number, _| if number == 0 { Act::Say(429, throttled.into()) } else { answer("yes") }).await;
        let gate = gate(&Quotas { rpm: Some(1_000), ..Quotas::default() });
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(0));
        let began = Instant::now();
        let reply = caller.call_json(gate.unscoped(), &call()).await.unwrap();
        assert_eq!(reply.attempts, 2);
        assert_eq!(caller.stats().throttled, 1);
        assert!(began.elapsed() >= Duration::from_millis(80), "{:?}", began.elapsed());
        assert_eq!(gate.stats().limit("rpm").unwrap().used, 1, "what was refused is not counted");
    })
    .unwrap();
}

/// A server that asks for an absurd delay is asked again within minutes, whichever status it uses.
#[test]
fn a_delay_of_aeons_costs_minutes() {
    for status in [429, 503] {
        let absurd = move |number, _: &_| match number {
            0 => Act::SayWith(status, ("retry-after", "1e20"), String::new()),
            _ => answer("yes"),
        };
        let took = EventLoop::builder().manual_clock().build().unwrap().run_until_complete(async move {
            let server = Server::start(absurd).await;
            let gate = gate(&Quotas { rpm: Some(1_000), ..Quotas::default() });
            let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(5));
            let (seen, begun) = (gate.clone(), LoopHandle::current().time());
            // The clock moves while no request is on its way.
            let clock = spawn(async move {
                loop {
                    for _ in 0..4 {
                        yield_now().await;
                    }
                    if seen.stats().current == 0 {
                        LoopHandle::current().advance(Duration::from_secs(1));
                    }
                }
            });
            let reply = caller.call_json(gate.unscoped(), &call()).await.unwrap();
            clock.cancel();
            assert_eq!(reply.attempts, 2);
            LoopHandle::current().time() - begun
        });
        let took = took.unwrap();
        assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(15 * 60), "{status}: {took:?}");
    }
}

#[test]
fn the_next_request_is_sent_before_the_last_answer_is_read() {
    run(async {
        let server = Server::start(|_, _| answer("yes")).await;
        let gate = Gate::builder().limit(Limit::concurrency("global", 1)).build().unwrap();
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        let sent_when_read = |caller: Caller| async move {
            let scope = caller.gate().unscoped();
            caller.call(scope, &call(), |_| Ok(caller.stats().sent)).await.unwrap().value
        };
        let first = spawn(sent_when_read(caller.clone()));
        let second = spawn(sent_when_read(caller.clone()));
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (2, 2));
        assert_eq!(gate.stats().peak, 1);
    })
    .unwrap();
}

#[test]
fn a_wrong_key_shuts_the_gate_and_is_not_repeated_in_the_message() {
    run(async {
        let server =
            Server::start(|_, _| error(401, "Incorrect API key provided: sk-hush-9.", "invalid_api_key")).await;
        let gate = gate(&Quotas::default());
        let key = ApiKey::new("sk-hush-9", "OPENAI_API_KEY").unwrap();
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_key(Some(key));
        let first = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        let message = first.to_string();
        assert!(matches!(first, CallError::Shut { .. }));
        assert!(message.contains("OPENAI_API_KEY") && !message.contains("hush"), "{message}");
        let second = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        assert_eq!(second.to_string(), message);
        assert_eq!(server.seen().len(), 1, "nobody else has to find out");
        assert_eq!(server.seen()[0].headers["authorization"], "Bearer sk-hush-9");
        assert!(!format!("{caller:?}").contains("hush"));
    })
    .unwrap();
}

#[test]
fn no_credit_is_final_for_everybody() {
    run(async {
        let server = Server::start(|_, _| error(429, "You exceeded your current quota", "insufficient_quota")).await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(5));
        for _ in 0..2 {
            let error = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
            assert!(matches!(&error, CallError::Shut { reason } if reason.contains("credit")), "{error}");
        }
        assert_eq!(server.seen().len(), 1);
    })
    .unwrap();
}

#[test]
fn garbage_is_asked_for_again_twice_and_no_more() {
    run(async {
        let server = Server::start(|_, _| Act::Say(200, "<html>It works!</html>".into())).await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(9));
        let error = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        assert!(matches!(error, CallError::Garbled { attempts: 3, .. }), "{error}");
        assert!(error.to_string().contains("It works!"), "{error}");
    })
    .unwrap();
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    run(async {
        let server = Server::start(|_, _| Act::Hang).await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base)
            .unwrap()
            .with_retries(hasty(1))
            .with_timeout(Duration::from_millis(30));
        let error = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        assert!(matches!(error, CallError::Unavailable { attempts: 2, .. }), "{error}");
        assert_eq!(gate.stats().current, 0);
    })
    .unwrap();
}

#[test]
fn nobody_at_the_address_is_told_and_nothing_is_counted() {
    run(async {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let gate = gate(&Quotas { rpm: Some(10), ..Quotas::default() });
        let base = format!("http://127.0.0.1:{port}");
        let caller = Caller::new(&gate, Dialect::OpenAi, &base).unwrap().with_retries(hasty(3));
        let error = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
        assert_eq!(gate.stats().limit("rpm").unwrap().used, 0, "no request reached anybody");
    })
    .unwrap();
}

#[test]
fn what_was_booked_is_settled_by_the_answer_but_not_below_what_the_server_counted() {
    run(async {
        let server = Server::start(|_, _| answer("yes")).await;
        let gate = gate(&Quotas { tpm: Some(10_000), ..Quotas::default() });
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        caller.call_json(gate.unscoped(), &call()).await.unwrap();
        assert_eq!(gate.stats().limit("tpm").unwrap().used, 110);
        let admitted = Call { admitted_tokens: 500, ..call() };
        caller.call_json(gate.unscoped(), &admitted).await.unwrap();
        assert_eq!(gate.stats().limit("tpm").unwrap().used, 610);
    })
    .unwrap();
}

#[test]
fn a_request_above_the_limit_is_told_so_without_being_sent() {
    run(async {
        let server = Server::start(|_, _| answer("yes")).await;
        let gate = gate(&Quotas { tpm: Some(99), ..Quotas::default() });
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        let error = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        assert!(matches!(error, CallError::TooLarge { .. }) && error.to_string().contains("tpm"), "{error}");
        assert!(server.seen().is_empty());
    })
    .unwrap();
}

#[test]
fn each_dialect_goes_where_its_servers_listen() {
    run(async {
        let server = Server::start(|_, seen| match seen.path.as_str() {
            "/chat/completions" => answer("from openai"),
            "/v1/messages" => {
                let body = json!({"content": [{"type": "text", "text": "from anthropic"}], "stop_reason": "end_turn"});
                Act::Say(200, body.to_string())
            }
            "/v1beta/models/test:generateContent" => {
                let part =
                    json!({"candidates": [{"content": {"parts": [{"text": "from gemini"}]}, "finishReason": "STOP"}]});
                Act::SayWith(200, ("x-request-id", "r1"), part.to_string())
            }
            other => error(404, other, "not_found"),
        })
        .await;
        let gate = gate(&Quotas::default());
        let question = Question { prompt: "PAGE<1>.".into(), page: 1, text: "Tides.".into(), ..Question::default() };
        for dialect in [Dialect::OpenAi, Dialect::Gemini, Dialect::Anthropic] {
            // A slash too many is no other address.
            let caller = Caller::new(&gate, dialect, &format!("{}/", server.base)).unwrap();
            let asked = Remote::new(caller, parameters()).ask(&gate.unscoped().into(), &question).await.unwrap();
            assert_eq!(asked.answer.text, format!("from {}", dialect.name()));
        }
        assert!(server.seen().iter().all(|seen| seen.page() == 1));
        assert!(server.seen()[2].headers.contains_key("anthropic-version"));
        let unlimited = Parameters { model: "other".into(), ..parameters() };
        let caller = Caller::new(&gate, Dialect::Gemini, &server.base).unwrap();
        let error = Remote::new(caller, unlimited).ask(&gate.unscoped().into(), &question).await.unwrap_err();
        assert!(matches!(error, CallError::Refused { status: 404, .. }) && !error.is_lasting());
    })
    .unwrap();
}

#[test]
fn more_large_answers_than_are_in_memory_at_once_all_arrive() {
    run(async {
        let text = "x".repeat(2 << 20);
        let body = json!({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).to_string();
        let server = Server::start(move |_, _| Act::Say(200, body.clone())).await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        let ask = || {
            let (caller, gate) = (caller.clone(), gate.clone());
            spawn(async move {
                let call = Call::new("/chat/completions", Bytes::from_static(b"{}"), Estimate::default());
                let reply = caller.call_json(gate.unscoped(), &call).await.unwrap();
                // It is in the caller's hands now, and takes no room from those that are still read.
                reply.value["choices"][0]["message"]["content"].as_str().unwrap().len()
            })
        };
        let asked: Vec<_> = (0..40).map(|_| ask()).collect();
        for answer in asked {
            assert_eq!(timeout(Duration::from_secs(120), answer).await.unwrap().unwrap(), 2 << 20);
        }
    })
    .unwrap();
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    run(async {
        let gate = gate(&Quotas::default());
        for base in ["", "api.example.com/v1", "ftp://x/", "http://", "not a url"] {
            let error = Caller::new(&gate, Dialect::OpenAi, base).unwrap_err();
            assert!(error.to_string().contains("https://api.openai.com/v1"), "{error}");
        }
    })
    .unwrap();
}

#[test]
fn an_answer_without_usage_is_counted_by_its_text() {
    run(async {
        let body = json!({"choices": [{"message": {"content": "Tides ebb."}, "finish_reason": "stop"}], "usage": null});
        let server = Server::start(move |_, _| Act::Say(200, body.to_string())).await;
        let gate = Gate::builder().limit(Limit::tpm(10_000)).build().unwrap();
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        let call = Call::new("/chat/completions", "{}".into(), Estimate { input_tokens: 50, output_tokens: 5_000 });
        let reply = caller.call_json(gate.unscoped(), &call).await.unwrap();
        assert_eq!(reply.usage, None);
        let used = gate.stats().limit("tpm").unwrap().used;
        assert!((51..80).contains(&used), "{used} of the 5,050 that were booked");
        assert_eq!(caller.stats().usage.total(), 0, "what the server did not count is not reported as counted");
    })
    .unwrap();
}

#[test]
fn a_stream_that_was_not_asked_for_is_read_and_paid_for_once() {
    run(async {
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"yes\"},\"finish_reason\":\"stop\"}],\
                      \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";
        let server = Server::start(move |number, _| match number {
            0 => Act::Say(200, stream.into()),
            _ => Act::Say(200, "event: ping\ndata: {}\n\n".into()),
        })
        .await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(5));
        let reply = caller.call_json(gate.unscoped(), &call()).await.unwrap();
        assert_eq!(reply.value["choices"][0]["message"]["content"], "yes");
        assert_eq!(reply.usage.unwrap().total(), 10);
        let refused = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        assert!(matches!(&refused, CallError::Declined { reason } if reason.contains("event stream")), "{refused}");
        assert_eq!(server.seen().len(), 2, "not asked again");
    })
    .unwrap();
}

#[test]
fn a_redirect_names_its_target_and_a_conflict_is_tried_again() {
    run(async {
        let server = Server::start(|number, _| match number {
            0 => error(409, "conflict", "conflict"),
            1 => answer("yes"),
            _ => Act::SayWith(308, ("location", "https://elsewhere.example/v1"), String::new()),
        })
        .await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(5));
        assert_eq!(caller.call_json(gate.unscoped(), &call()).await.unwrap().attempts, 2);
        let refused = caller.call_json(gate.unscoped(), &call()).await.unwrap_err();
        assert!(refused.to_string().contains("https://elsewhere.example/v1"), "{refused}");
        assert!(!refused.is_lasting(), "the next run may have the right address");
        assert_eq!(server.seen().len(), 3, "not followed");
    })
    .unwrap();
}

#[test]
fn a_parameter_with_another_name_is_renamed_once_for_all_calls() {
    run(async {
        let server = Server::start(|_, seen| match seen.body.get("max_tokens") {
            Some(_) => {
                let message = "Unsupported parameter: 'max_tokens' is not supported with this model.";
                error(400, message, "unsupported_parameter")
            }
            None => answer("yes"),
        })
        .await;
        let gate = gate(&Quotas::default());
        let notices = Rc::new(RefCell::new(Vec::new()));
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(0)).with_notice({
            let notices = Rc::clone(&notices);
            move |line| notices.borrow_mut().push(line.to_owned())
        });
        let call = Call { body: r#"{"max_tokens":5}"#.into(), ..call() };
        for _ in 0..3 {
            caller.call_json(gate.unscoped(), &call).await.unwrap();
        }
        assert_eq!(server.seen().len(), 4, "one was refused");
        assert_eq!(server.seen()[3].body["max_completion_tokens"], 5);
        assert_eq!(caller.renamed_parameter(), Some(("max_tokens", "max_completion_tokens")));
        assert_eq!(*notices.borrow(), ["the model does not take max_tokens; max_completion_tokens is sent instead"]);
    })
    .unwrap();
}

#[test]
fn a_parameter_that_is_refused_by_both_names_is_not_sent_for_ever() {
    run(async {
        let server = Server::start(|_, seen| {
            let name = if seen.body.get("max_tokens").is_some() { "max_tokens" } else { "max_completion_tokens" };
            error(400, &format!("Unsupported parameter: '{name}'"), "unsupported_parameter")
        })
        .await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        let call = Call { body: r#"{"max_tokens":5}"#.into(), ..call() };
        let refused = caller.call_json(gate.unscoped(), &call).await.unwrap_err();
        assert!(matches!(refused, CallError::Refused { status: 400, .. }), "{refused}");
        assert_eq!(server.seen().len(), 2);
    })
    .unwrap();
}

#[test]
fn an_answer_with_a_number_or_a_byte_that_cannot_be_read_is_paid_for_once() {
    run(async {
        let endless = "{\"choices\":[{\"message\":{\"content\":\"yes\"},\"finish_reason\":\"stop\",\"logprobs\":[-1e999]}],\
                       \"usage\":{\"prompt_tokens\":1e400,\"completion_tokens\":5}}";
        let broken = endless.replace("yes", "yXs").replace("1e400", "9").into_bytes();
        let broken: Vec<u8> = broken.into_iter().map(|byte| if byte == b'X' { 0xff } else { byte }).collect();
        let server = Server::start(move |number, _| match number % 2 {
            0 => Act::Say(200, endless.into()),
            _ => Act::SayBytes(200, broken.clone()),
        })
        .await;
        let gate = gate(&Quotas::default());
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(5));
        for (said, tokens) in [("yes", 5), ("y\u{fffd}s", 14)] {
            let reply = caller.call_json(gate.unscoped(), &call()).await.unwrap();
            assert_eq!(reply.value["choices"][0]["message"]["content"], said);
            assert_eq!((reply.usage.unwrap().total(), reply.attempts), (tokens, 1));
        }
        for said in ["yes", "y\u{fffd}s"] {
            let reply = caller.call(gate.unscoped(), &call(), |body| Dialect::OpenAi.answer(body)).await.unwrap();
            assert_eq!((reply.value.text.as_str(), reply.attempts), (said, 1));
        }
    })
    .unwrap();
}
