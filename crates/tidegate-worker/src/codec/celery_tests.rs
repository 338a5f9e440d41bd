//! Messages as Celery 5 sent them over RabbitMQ.

use super::*;

/// As captured, with a header changed or added.
fn captured(changes: Value) -> Envelope {
    let mut headers = json!({
        "lang": "py", "task": "add", "id": "5530f881-c693-4f1a-b1a1-8dbcde8e1b28", "shadow": null, "eta": null,
        "expires": null, "group": null, "group_index": null, "retries": 0, "timelimit": [null, null],
        "root_id": "5530f881-c693-4f1a-b1a1-8dbcde8e1b28", "parent_id": null, "argsrepr": "(1, 2)",
        "kwargsrepr": "{'x': 1}", "origin": "gen26069@host", "ignore_result": null, "replaced_task_nesting": 0,
        "stamped_headers": null, "stamps": {}, "amqp.content_type": "application/json",
        "amqp.content_encoding": "utf-8", "amqp.correlation_id": "5530f881-c693-4f1a-b1a1-8dbcde8e1b28",
        "amqp.reply_to": "c24b8a9b-a45b-329e-92dc-6c54e355dbf6",
    });
    let (Some(all), Value::Object(changes)) = (headers.as_object_mut(), changes) else { panic!("objects") };
    all.extend(changes);
    let body = r#"[[1, 2], {"x": 1}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]"#;
    let mut envelope = Envelope::new("cel", body.into());
    envelope.headers = all.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    envelope
}

#[test]
fn a_plain_message_is_read() {
    let envelope = captured(json!({}));
    assert!(is_celery(&envelope));
    let message = read(&envelope, 2).unwrap();
    let task = &message.task;
    assert_eq!((task.id.as_str(), task.name.as_str()), ("5530f881-c693-4f1a-b1a1-8dbcde8e1b28", "add"));
    assert_eq!((&task.args, task.kwargs.get("x")), (&vec![json!(1), json!(2)], Some(&json!(1))));
    assert_eq!((task.retries, task.soft_limit, task.hard_limit), (2, None, None));
    let reply = message.reply.unwrap();
    assert_eq!(reply.queue, "c24b8a9b-a45b-329e-92dc-6c54e355dbf6");
    assert_eq!(reply.correlation_id, task.id.as_str());
    assert!(!message.ignore_result && message.chain.is_empty() && message.chord.is_none());
}

#[test]
fn countdown_and_expiry_are_times() {
    let envelope = captured(json!({
        "eta": "2026-11-15T19:25:24.520952+00:00", "expires": "2026-11-15T19:26:14.520952",
    }));
    let (eta, expires) = times(&envelope.headers);
    assert_eq!(eta.unwrap().as_microsecond(), 1_794_770_724_520_952);
    assert_eq!(expires.unwrap().as_microsecond() - eta.unwrap().as_microsecond(), 50_000_000);
    assert_eq!(times(&captured(json!({"eta": "tomorrow"})).headers), (None, None));
}

#[test]
fn limits_are_hard_then_soft() {
    let message = read(&captured(json!({"timelimit": [30, 20], "ignore_result": true, "retries": 3})), 1).unwrap();
    assert_eq!(message.task.hard_limit, Some(Duration::from_secs(30)));
    assert_eq!(message.task.soft_limit, Some(Duration::from_secs(20)));
    assert_eq!(message.task.retries, 4);
    assert_eq!(message.answer(Status::Started, Timestamp::UNIX_EPOCH), None, "nobody wants to know");
}

#[test]
fn what_does_not_fit_is_named() {
    let reason = |envelope: &Envelope| read(envelope, 0).unwrap_err().message;
    assert!(reason(&Envelope::new("q", b"{}".to_vec())).contains("header \"task\""));
    let pickled = captured(json!({"amqp.content_type": "application/x-python-serialize"}));
    assert!(reason(&pickled).contains("task_serializer = 'json'"), "{}", reason(&pickled));
    for body in ["nonsense", "{}", "[1, 2]", "[1, {}, {}]", "[[], [], {}]", "[[], {}, 3]"] {
        let mut envelope = captured(json!({}));
        envelope.body = body.into();
        assert!(reason(&envelope).contains("the body"), "{body}");
    }
    assert!(reason(&captured(json!({"timelimit": ["x", 1]}))).contains("[hard, soft]"));
}

#[test]
fn what_is_written_is_what_celery_reads() {
    let mut task = Task::new("mail.send").arg(7).kwarg("to", "a@example.org");
    task.hard_limit = Some(Duration::from_secs(30));
    let extras = Extras { reply_to: Some("answers".into()), priority: 5, ..Extras::default() };
    let envelope = encode(&task, "celery", &extras);
    let theirs = captured(json!({}));
    assert_eq!(envelope.headers.keys().collect::<Vec<_>>(), theirs.headers.keys().collect::<Vec<_>>());
    assert_eq!(envelope.headers["timelimit"], json!([30.0, null]));
    let body: Value = serde_json::from_slice(&envelope.body).unwrap();
    let nothing = json!({"callbacks": null, "errbacks": null, "chain": null, "chord": null});
    assert_eq!(body, json!([[7], {"to": "a@example.org"}, nothing]));
    assert_eq!(read(&envelope, 0).unwrap().task, task);
}

#[test]
fn answers_are_what_rpc_expects() {
    let message = read(&captured(json!({})), 0).unwrap();
    let now: Timestamp = "2026-11-15T19:25:19.202486Z".parse().unwrap();
    let answer = |status| -> Value { serde_json::from_slice(&message.answer(status, now).unwrap().1).unwrap() };
    let expected = json!({
        "status": "SUCCESS", "result": 3, "traceback": null, "children": [], "date_done": "2026-11-15T19:25:19.202486Z",
        "task_id": "5530f881-c693-4f1a-b1a1-8dbcde8e1b28",
    });
    let three = json!(3);
    assert_eq!(answer(Status::Success(&three)), expected);
    let error = TaskError { kind: "ValueError".into(), message: "bad".into(), traceback: Some("Traceback".into()) };
    let failed = answer(Status::Failure(&error));
    assert_eq!(failed["result"], json!({"exc_type": "ValueError", "exc_message": ["bad"], "exc_module": "builtins"}));
    assert_eq!((&failed["status"], &failed["traceback"]), (&json!("FAILURE"), &json!("Traceback")));
    assert_eq!(answer(Status::Retry(&error))["date_done"], Value::Null);
    assert_eq!(answer(Status::Revoked)["result"]["exc_type"], json!("TaskRevokedError"));
}

fn signature(task: &str, args: &Value, options: &Value) -> Value {
    json!({"task": task, "args": args, "kwargs": {}, "options": options, "subtask_type": null, "immutable": false})
}

#[test]
fn a_chain_goes_on_from_its_end_with_the_result_first() {
    let mut envelope = captured(json!({}));
    let chain = [
        signature("last", &json!([]), &json!({"task_id": "t3"})),
        signature("next", &json!([10]), &json!({"task_id": "t2", "reply_to": "r", "queue": "other"})),
    ];
    envelope.body =
        json!([[1, 2], {}, {"callbacks": null, "errbacks": null, "chain": chain, "chord": null}]).to_string().into();
    let message = read(&envelope, 0).unwrap();
    let following = message.after_success(&json!(3)).unwrap();
    assert_eq!(following.len(), 1);
    let next = read(&following[0], 0).unwrap();
    assert_eq!(
        (next.task.id.as_str(), next.task.name.as_str(), &next.task.args),
        ("t2", "next", &vec![json!(3), json!(10)])
    );
    assert_eq!((following[0].queue.as_str(), next.reply.as_ref().unwrap().queue.as_str()), ("other", "r"));
    assert_eq!(following[0].headers["parent_id"], json!(message.task.id.as_str()));
    assert_eq!(following[0].headers["root_id"], json!("5530f881-c693-4f1a-b1a1-8dbcde8e1b28"));
    let last = &next.after_success(&json!(13)).unwrap()[0];
    assert_eq!(read(last, 0).unwrap().task.args, [json!(13)]);
    assert!(read(last, 0).unwrap().chain.is_empty());
}

#[test]
fn callbacks_get_the_result_errbacks_the_id_and_immutable_ones_nothing() {
    let mut envelope = captured(json!({}));
    let mut still = signature("still", &json!(["own"]), &json!({}));
    still["immutable"] = json!(true);
    let callbacks = [signature("told", &json!([]), &json!({})), still];
    let errbacks = [signature("sorry", &json!([]), &json!({}))];
    envelope.body = json!([[], {}, {"callbacks": callbacks, "errbacks": errbacks, "chain": null, "chord": null}])
        .to_string()
        .into();
    let message = read(&envelope, 0).unwrap();
    let args = |envelope: &Envelope| read(envelope, 0).unwrap().task.args;
    let told = message.after_success(&json!({"n": 1})).unwrap();
    assert_eq!(told.iter().map(args).collect::<Vec<_>>(), [vec![json!({"n": 1})], vec![json!("own")]]);
    assert_eq!(told[0].queue, "cel");
    let sorry = message.after_failure().unwrap();
    assert_eq!(args(&sorry[0]), [json!("5530f881-c693-4f1a-b1a1-8dbcde8e1b28")]);
}
