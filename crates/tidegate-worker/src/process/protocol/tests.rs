use serde_json::json;

use super::*;

fn greeted() -> Protocol {
    let mut protocol = Protocol::new(1 << 16);
    protocol.receive(&frame(br#"{"type":"ready","version":1,"handlers":["a"],"name":"x","future":1}"#));
    let ready = Ready { handlers: Some(vec!["a".into()]), name: "x".into(), interrupt: false };
    assert_eq!(protocol.next_event(), Ok(Some(Event::Ready(ready))));
    protocol
}

fn frame(content: &[u8]) -> Vec<u8> {
    [&u32::try_from(content.len()).unwrap().to_be_bytes()[..], content].concat()
}

fn answer(content: &str) -> Result<Option<Event>, Violation> {
    let mut protocol = greeted();
    protocol.run(&Task::new("a"), None, None).unwrap();
    protocol.wrote(protocol.output().len());
    protocol.receive(&frame(content.as_bytes()));
    protocol.next_event()
}

#[test]
fn orders_are_written_as_documented() {
    let mut protocol = Protocol::new(1 << 16);
    let mut task = Task::new("resize").arg(1).kwarg("to", "x");
    task.id = "id-1".into();
    task.retries = 2;
    let limits = (Some(Duration::from_millis(1500)), Some(Duration::from_secs(2)));
    assert_eq!(protocol.run(&task, limits.0, limits.1), Ok(1));
    protocol.soft(1);
    protocol.recall(1);
    let expected = [
        r#"{"type":"hello","version":1,"max_frame":65536}"#,
        r#"{"type":"run","run":1,"id":"id-1","task":"resize","args":[1],"kwargs":{"to":"x"},"retries":2,"soft_ms":1500.0,"hard_ms":2000.0}"#,
        r#"{"type":"soft","run":1}"#,
        r#"{"type":"recall","run":1}"#,
    ];
    let bytes: Vec<u8> = expected.iter().flat_map(|content| frame(content.as_bytes())).collect();
    assert_eq!(String::from_utf8_lossy(protocol.output()), String::from_utf8_lossy(&bytes));
    protocol.wrote(bytes.len() - 1);
    assert_eq!(protocol.output(), b"}");
    protocol.wrote(1);
    assert_eq!(protocol.output(), b"");
}

#[test]
fn integers_of_any_size_pass_in_both_directions() {
    let text = "[1000000000000000000000000000001,-18446744073709551616]";
    let mut protocol = greeted();
    protocol.wrote(protocol.output().len());
    let mut task = Task::new("a");
    task.args = json::from_slice(text.as_bytes()).unwrap();
    protocol.run(&task, None, None).unwrap();
    let sent = String::from_utf8(protocol.output()[4..].to_vec()).unwrap();
    assert!(sent.contains(&format!(r#""args":{text},"#)), "{sent}");
    protocol.wrote(protocol.output().len());
    protocol.receive(&frame(format!(r#"{{"type":"done","run":1,"value":{text}}}"#).as_bytes()));
    assert_eq!(protocol.next_event(), Ok(Some(Event::Answered(1, Answer::Done(Value::Array(task.args))))));
}

#[test]
fn answers_are_read_as_documented() {
    let error = |kind: &str, message: &str, traceback: Option<&str>| TaskError {
        kind: kind.into(),
        message: message.into(),
        traceback: traceback.map(Into::into),
    };
    let after = Some(Duration::from_millis(1500));
    for (content, expected) in [
        (r#"{"type":"done","run":1,"value":[1]}"#, Answer::Done(json!([1]))),
        (r#"{"run":1,"type":"done"}"#, Answer::Done(Value::Null)),
        (
            r#"{"type":"failed","run":1,"error":{"kind":"E","message":"m","traceback":"t"}}"#,
            Answer::Failed(error("E", "m", Some("t"))),
        ),
        (
            r#"{"type":"failed","run":1,"final":true,"error":{"kind":"E","message":"m"}}"#,
            Answer::Final(error("E", "m", None)),
        ),
        (
            r#"{"type":"retry","run":1,"after_ms":1500,"error":{"kind":"E","message":"m"}}"#,
            Answer::Retry { after, error: error("E", "m", None) },
        ),
        (
            r#"{"type":"retry","run":1,"after_ms":-1,"error":{"kind":"E","message":"m"}}"#,
            Answer::Retry { after: None, error: error("E", "m", None) },
        ),
        (
            r#"{"type":"retry","run":1,"after_ms":18446744073709551616,"error":{"kind":"E","message":"m"}}"#,
            Answer::Retry {
                after: Duration::try_from_secs_f64(18446744073709551.616).ok(),
                error: error("E", "m", None),
            },
        ),
        (r#"{"type":"soft-limit","run":1}"#, Answer::SoftLimit(None)),
        (r#"{"type":"soft-limit","run":1,"limit_ms":1500}"#, Answer::SoftLimit(after)),
        (r#"{"type":"rejected","run":1,"reason":"no"}"#, Answer::Rejected("no".into())),
    ] {
        assert_eq!(answer(content), Ok(Some(Event::Answered(1, expected))), "{content}");
    }
}

#[test]
fn an_order_counts_from_its_last_byte_on() {
    let mut protocol = greeted();
    protocol.run(&Task::new("a"), None, None).unwrap();
    protocol.run(&Task::new("b"), None, None).unwrap();
    protocol.wrote(protocol.output().len());
    protocol.recall(2);
    for last in [false, true] {
        protocol.wrote(if last { 1 } else { protocol.output().len() - 1 });
        protocol.receive(&frame(br#"{"type":"returned","run":2}"#));
        let expected = if last { Ok(Some(Event::Returned(2))) } else { Err(Violation::NotRecalled { run: 2 }) };
        assert_eq!(protocol.next_event(), expected);
    }
    protocol.run(&Task::new("c"), None, None).unwrap();
    protocol.receive(&frame(br#"{"type":"done","run":1}"#));
    assert_eq!(protocol.next_event(), Ok(Some(Event::Answered(1, Answer::Done(Value::Null)))));
    for last in [false, true] {
        protocol.wrote(if last { 1 } else { protocol.output().len() - 1 });
        protocol.receive(&frame(br#"{"type":"done","run":3}"#));
        let answered = Ok(Some(Event::Answered(3, Answer::Done(Value::Null))));
        assert_eq!(protocol.next_event(), if last { answered } else { Err(Violation::NotSent { run: 3 }) });
    }
}

#[test]
fn a_result_that_cannot_be_read_is_its_handlers_failure() {
    let deep = format!(r#"{{"type":"done","run":1,"value":{}1{}}}"#, "[".repeat(500), "]".repeat(500));
    for content in [deep.as_str(), r#"{"type":"done","run":1,"value":1e999}"#] {
        let Ok(Some(Event::Answered(1, Answer::Failed(error)))) = answer(content) else { panic!("{content}") };
        assert_eq!(error.kind, "UnreadableResult");
    }
}

#[test]
fn what_is_not_as_documented_is_a_violation() {
    assert!(matches!(answer("no json"), Err(Violation::NotJson { .. })));
    assert!(matches!(answer("{}"), Err(Violation::NotJson { .. })));
    assert!(matches!(answer(r#"{"type":"failed","run":1,"error":7}"#), Err(Violation::NotJson { .. })));
    assert!(matches!(answer(r#"{"type":"what","run":1}"#), Err(Violation::UnknownKind { .. })));
    assert_eq!(answer(r#"{"type":"done","run":2}"#), Err(Violation::Order { run: Some(2), expected: Some(1) }));
    assert_eq!(answer(r#"{"type":"done"}"#), Err(Violation::Order { run: None, expected: Some(1) }));
    assert!(matches!(answer(r#"{"type":"returned","run":9}"#), Err(Violation::Order { .. })));
    assert_eq!(answer(r#"{"type":"returned","run":1}"#), Err(Violation::NotRecalled { run: 1 }));
    assert!(matches!(answer(r#"{"type":"ready","version":1}"#), Err(Violation::Greeting { .. })));
    let mut early = Protocol::new(100);
    early.receive(&frame(br#"{"type":"done","run":1}"#));
    assert!(matches!(early.next_event(), Err(Violation::Greeting { .. })));
}

#[test]
fn no_bytes_whatsoever_make_it_panic() {
    let contents =
        [&b"{\"type\":\"done\",\"run\":1,\"value\":null}"[..], b"{\"type\":\"ready\",\"version\":1}", b"[]", b""];
    for seed in tidegate_seeds::seeds(20_000) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut protocol = greeted();
        protocol.run(&Task::new("a"), None, None).unwrap();
        protocol.wrote(protocol.output().len());
        let mut bytes: Vec<u8> = (0..3).flat_map(|_| frame(contents[random.usize(..contents.len())])).collect();
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        for piece in bytes.chunks(random.usize(1..40)) {
            protocol.receive(piece);
        }
        while let Ok(Some(_)) = protocol.next_event() {}
    }
}
