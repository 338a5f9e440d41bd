//! Messages as Celery 5 sent them over RabbitMQ.

use super::*;
use crate::broker::TaskError;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// The tasks that follow `message` if it returns `value`.
fn after(message: &Message, value: &Value) -> Vec<Envelope> {
    message.following(Status::Success(value), NOW, Chords::Refused).tasks
}

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
    assert_eq!(message.task.retries, 3, "what the message says, unless the broker has counted more");
    let started = Status::Started { pid: 1, hostname: "a@b" };
    assert_eq!(message.answer(started, NOW), None, "no caller waits");
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
    let mut part = captured(json!({}));
    part.body = json!([[], {}, {"chord": signature("body", &json!([]), &json!({}))}]).to_string().into();
    assert!(decode(&part, 0).unwrap_err().message.contains("chord"));
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
fn integers_of_any_size_stay_in_arguments_answers_chains_and_chords() {
    let long = "1000000000000000000000000000001";
    let mut envelope = captured(json!({"group": "g"}));
    let step = signature("b", &json!([]), &json!({}));
    envelope.body = format!(r#"[[{long}], {{"n": -{long}}}, {{"chain": [{step}], "chord": {step}}}]"#).into();
    let message = read(&envelope, 0).unwrap();
    let written = String::from_utf8(encode(&message.task, "q", &Extras::default()).body).unwrap();
    assert!(written.starts_with(&format!(r#"[[{long}],{{"n":-{long}}},"#)), "{written}");
    let result: Value = exact::from_slice(long.as_bytes()).unwrap();
    assert_eq!(repr::repr(&result), long);
    let following = message.following(Status::Success(&result), NOW, Chords::Counted);
    let next = String::from_utf8(following.tasks[0].body.clone()).unwrap();
    assert!(next.starts_with(&format!("[[{long}],{{}},")), "{next}");
    let answer = String::from_utf8(following.answers[0].body.clone()).unwrap();
    assert!(answer.contains(&format!(r#""result":{long},"#)), "{answer}");
    let part = following.parts[0].returned.encode();
    assert!(String::from_utf8(part.clone()).unwrap().contains(&format!(r#""SUCCESS",{long}]"#)));
    assert_eq!(Returned::decode(&part).unwrap().result, result);
    envelope.body = format!("[[], {long}, {{}}]").into();
    assert!(read(&envelope, 0).unwrap_err().message.contains("kwargs no object"));
}

#[test]
fn answers_are_what_rpc_expects() {
    let message = read(&captured(json!({})), 0).unwrap();
    let now: Timestamp = "2026-11-15T19:25:19.202486Z".parse().unwrap();
    let answer = |status| -> Value { serde_json::from_slice(&message.answer(status, now).unwrap().body).unwrap() };
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
    assert_eq!(answer(Status::Revoked("expired"))["result"]["exc_type"], json!("TaskRevokedError"));
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
    let following = after(&message, &json!(3));
    assert_eq!(following.len(), 1);
    let next = read(&following[0], 0).unwrap();
    assert_eq!(
        (next.task.id.as_str(), next.task.name.as_str(), &next.task.args),
        ("t2", "next", &vec![json!(3), json!(10)])
    );
    assert_eq!((following[0].queue.as_str(), next.reply.as_ref().unwrap().queue.as_str()), ("other", "r"));
    assert_eq!(following[0].headers["parent_id"], json!(message.task.id.as_str()));
    assert_eq!(following[0].headers["root_id"], json!("5530f881-c693-4f1a-b1a1-8dbcde8e1b28"));
    let last = &after(&next, &json!(13))[0];
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
    let told = after(&message, &json!({"n": 1}));
    assert_eq!(told.iter().map(args).collect::<Vec<_>>(), [vec![json!({"n": 1})], vec![json!("own")]]);
    assert_eq!(told[0].queue, "cel");
    let error = TaskError { kind: "ValueError".into(), message: "bad".into(), traceback: None };
    let sorry = message.following(Status::Failure(&error), NOW, Chords::Refused).tasks;
    assert_eq!(args(&sorry[0]), [json!("5530f881-c693-4f1a-b1a1-8dbcde8e1b28")]);
}

/// A message with these parts beside its arguments.
fn with(embed: Value) -> Message {
    let mut envelope = captured(json!({}));
    envelope.body = json!([[1, 2], {}, embed]).to_string().into();
    read(&envelope, 0).unwrap()
}

fn nested(kind: &str, members: &[Value], options: &Value) -> Value {
    let name = format!("celery.{kind}");
    json!({"task": name, "args": [], "kwargs": {"tasks": members}, "options": options, "subtask_type": kind, "immutable": false})
}

#[test]
fn a_group_at_the_end_of_a_chain_is_fanned_out() {
    let members = [
        signature("b", &json!([10]), &json!({"task_id": "b1", "group_id": "g", "reply_to": "r"})),
        signature("c", &json!([20]), &json!({"task_id": "c1", "group_id": "g", "reply_to": "r"})),
    ];
    let message = with(json!({"chain": [nested("group", &members, &json!({"task_id": "g"}))]}));
    let following = message.following(Status::Success(&json!(3)), NOW, Chords::Refused);
    let told: Vec<_> =
        following.tasks.iter().map(|task| (task.id.as_str(), read(task, 0).unwrap().task.args)).collect();
    assert_eq!(told, [("b1", vec![json!(3), json!(10)]), ("c1", vec![json!(3), json!(20)])]);
    assert_eq!(
        (&following.tasks[1].headers["group"], &following.tasks[1].headers["group_index"]),
        (&json!("g"), &json!(1))
    );
    let answer: Value = serde_json::from_slice(&following.answers[0].body).unwrap();
    assert_eq!(answer["children"], json!([[["g", null], [[["b1", null], null], [["c1", null], null]]]]));
}

#[test]
fn a_chain_as_callback_is_spliced_before_what_comes_behind() {
    let inner = nested("chain", &[signature("x", &json!([]), &json!({}))], &json!({}));
    let steps = [signature("a", &json!([5]), &json!({})), inner, signature("z", &json!([]), &json!({}))];
    let options = json!({"task_id": "end", "link_error": [signature("sorry", &json!([]), &json!({}))]});
    let message = with(json!({"callbacks": [nested("chain", &steps, &options)]}));
    let first = read(&after(&message, &json!(1))[0], 0).unwrap();
    assert_eq!((first.task.name.as_str(), &first.task.args), ("a", &vec![json!(1), json!(5)]));
    assert_eq!(first.errbacks.len(), 1);
    let second = read(&after(&first, &json!(2))[0], 0).unwrap();
    let third = read(&after(&second, &json!(3))[0], 0).unwrap();
    assert_eq!((second.task.name.as_str(), third.task.name.as_str(), third.task.id.as_str()), ("x", "z", "end"));
    assert_eq!(third.reply.as_ref().unwrap().queue, "c24b8a9b-a45b-329e-92dc-6c54e355dbf6");
    assert!(after(&third, &json!(4)).is_empty());
}

#[test]
fn those_who_wait_for_the_end_of_a_chain_hear_that_it_failed() {
    let chain = [
        signature("last", &json!([]), &json!({"task_id": "t3", "reply_to": "r3"})),
        signature("next", &json!([10]), &json!({"task_id": "t2"})),
    ];
    let message = with(json!({"chain": chain}));
    let error = TaskError { kind: "Crash".into(), message: "killed".into(), traceback: None };
    let following = message.following(Status::Failure(&error), NOW, Chords::Refused);
    let told: Vec<_> = following
        .answers
        .iter()
        .map(|answer| answer.reply.as_ref().unwrap())
        .map(|reply| (reply.queue.as_str(), reply.correlation_id.as_str()))
        .collect();
    let own = "c24b8a9b-a45b-329e-92dc-6c54e355dbf6";
    assert_eq!(told, [(own, "5530f881-c693-4f1a-b1a1-8dbcde8e1b28"), ("r3", "t3"), (own, "t2")]);
    for answer in &following.answers {
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((&body["status"], &body["result"]["exc_type"]), (&json!("FAILURE"), &json!("WorkerLostError")));
    }
    assert!(following.tasks.is_empty());
}

#[test]
fn options_of_a_signature_are_its_own() {
    let options = json!({
        "countdown": 5, "expires": {"__type__": "datetime", "__value__": "1970-01-01T00:01:00"}, "priority": 4,
        "time_limit": 9, "ignore_result": true, "retries": 2,
    });
    let message = with(json!({"callbacks": [signature("later", &json!([]), &options)]}));
    let later = &after(&message, &json!(1))[0];
    assert_eq!((later.eta, later.expires), (Timestamp::from_second(5).ok(), Timestamp::from_second(60).ok()));
    assert_eq!(later.priority, 4);
    let read = read(later, 0).unwrap();
    assert!(read.ignore_result);
    assert_eq!((read.task.hard_limit, read.task.retries), (Some(Duration::from_secs(9)), 2));
}

#[test]
fn what_cannot_follow_is_a_failure_that_says_why() {
    let deep = (0..38).fold(signature("a", &json!([]), &json!({})), |inner, _| nested("group", &[inner], &json!({})));
    for (embed, why) in [
        (json!({"chain": [nested("chord", &[], &json!({}))]}), "chord"),
        (json!({"callbacks": [{"args": []}]}), "names no task"),
        (json!({"callbacks": [deep]}), "deep"),
    ] {
        let following = with(embed).following(Status::Success(&json!(1)), NOW, Chords::Refused);
        let body: Value = serde_json::from_slice(&following.answers[0].body).unwrap();
        assert_eq!(body["status"], json!("FAILURE"));
        assert!(body["result"]["exc_message"][0].as_str().unwrap().contains(why), "{body}");
    }
}

#[test]
fn a_chord_within_a_chain_begins_where_somebody_counts() {
    let header = [
        signature("a", &json!([1]), &json!({})),
        nested("chain", &[signature("b", &json!([]), &json!({})), signature("c", &json!([]), &json!({}))], &json!({})),
    ];
    let body = signature("sum", &json!([]), &json!({"task_id": "body", "reply_to": "r"}));
    let mut chord = nested("chord", &[], &json!({"task_id": "body"}));
    chord["kwargs"] = json!({"header": nested("group", &header, &json!({})), "body": body, "kwargs": {}});
    let behind = signature("last", &json!([]), &json!({"task_id": "end"}));
    let message = with(json!({"chain": [behind, chord]}));
    let following = message.following(Status::Success(&json!(7)), NOW, Chords::Counted);
    let [Begun { group, size: 2, shape: None }] = &following.chords[..] else { panic!("{:?}", following.chords) };
    let first = read(&following.tasks[0], 0).unwrap();
    assert_eq!(
        (&first.task.args, first.group.as_ref(), first.group_index),
        (&vec![json!(7), json!(1)], Some(group), Some(0))
    );
    // Of a chain within the group its end is counted.
    let begin = read(&following.tasks[1], 0).unwrap();
    assert_eq!((begin.task.name.as_str(), &begin.chord, &begin.group), ("b", &None, &None));
    let end = read(&begin.following(Status::Success(&json!(8)), NOW, Chords::Counted).tasks[0], 0).unwrap();
    assert_eq!((end.task.name.as_str(), end.group.as_ref(), end.group_index), ("c", Some(group), Some(1)));

    let part = |message: &Message, status: Status<'_>| {
        let mut parts = message.following(status, NOW, Chords::Counted).parts;
        assert_eq!(parts.len(), 1);
        parts.remove(0)
    };
    let last = part(&end, Status::Success(&json!(20)));
    let parts = [part(&first, Status::Success(&json!(10))).returned, last.returned.clone()];
    assert_eq!(Returned::decode(&parts[0].encode()).as_ref(), Some(&parts[0]));
    let sum = read(&end.after_chord(&last, &parts, None, NOW).tasks[0], 0).unwrap();
    assert_eq!((sum.task.id.as_str(), &sum.task.args), ("body", &vec![json!([10, 20])]));
    let last = read(&sum.following(Status::Success(&json!(30)), NOW, Chords::Counted).tasks[0], 0).unwrap();
    assert_eq!((last.task.id.as_str(), &last.task.args), ("end", &vec![json!(30)]));

    let error = TaskError { kind: "ValueError".into(), message: "bad".into(), traceback: None };
    let failed = part(&end, Status::Failure(&error));
    let told = first.after_chord(&failed, &[parts[0].clone(), failed.returned.clone()], None, NOW);
    assert_eq!(told.answers.iter().map(|answer| answer.id.as_str()).collect::<Vec<_>>(), ["body", "end"]);
    let body: Value = serde_json::from_slice(&told.answers[0].body).unwrap();
    assert_eq!(body["result"]["exc_type"], json!("ChordError"));
    assert!(body["result"]["exc_message"][0].as_str().unwrap().ends_with("raised ValueError('bad')"), "{body}");

    // A chain that ends before its end was reached is counted all the same, or the chord would wait for ever.
    let early = part(&begin, Status::Failure(&error));
    assert_eq!((early.returned.id.as_str(), &early.group, early.index), (end.task.id.as_str(), group, Some(1)));
    assert_eq!((early.returned.state.as_str(), &early.body), ("FAILURE", end.chord.as_ref().unwrap()));
    let nobody = begin.following(Status::Failure(&error), NOW, Chords::Refused);
    assert!(nobody.parts.is_empty());
}

/// The form of producers of Celery 5.3 to 5.6: only the last step of a body that is a chain has the id that is waited for.
#[test]
fn the_result_of_a_chord_whose_body_is_a_chain_has_the_id_of_its_last_step() {
    let header = nested("group", &[signature("a", &json!([1]), &json!({}))], &json!({"task_id": "group"}));
    let steps = |last: Value| [signature("b", &json!([]), &json!({"task_id": "second-last"})), last];
    let last = signature("c", &json!([]), &json!({"task_id": "end", "reply_to": "r"}));
    // A single step may stand without a list, and a chain may end with a chain.
    let within = nested("chain", &steps(last.clone()), &json!({"task_id": null}));
    let mut alone = nested("chain", &[], &json!({}));
    alone["kwargs"]["tasks"] = within.clone();
    for (body, outer_id) in [
        (within.clone(), None),
        (within, Some("outer")),
        (alone, None),
        (nested("chain", &steps(nested("chain", &[last], &json!({}))), &json!({})), None),
    ] {
        let mut chord = nested("chord", &[], &json!({"task_id": outer_id}));
        chord["kwargs"] = json!({"header": header, "body": body, "kwargs": {}});
        let around = json!({"task": "around", "args": [], "kwargs": {}, "options": {"task_id": "around"}});
        let behind = signature(
            "d",
            &json!([]),
            &json!({"task_id": "behind", "group_id": "g", "group_index": 3, "chord": around}),
        );
        let message = with(json!({"chain": [behind, chord]}));
        let following = message.following(Status::Success(&json!(7)), NOW, Chords::Counted);
        let first = read(&following.tasks[0], 0).unwrap();
        let part = first.following(Status::Success(&json!(8)), NOW, Chords::Counted).parts.remove(0);

        let mut step =
            read(&first.after_chord(&part, std::slice::from_ref(&part.returned), None, NOW).tasks[0], 0).unwrap();
        let mut seen = Vec::new();
        loop {
            seen.push((step.task.name.clone(), step.task.id.to_string()));
            let following = step.following(Status::Success(&json!(9)), NOW, Chords::Counted);
            let Some(next) = following.tasks.first() else {
                assert_eq!((following.parts[0].group.as_str(), following.parts[0].index), ("g", Some(3)));
                break;
            };
            step = read(next, 0).unwrap();
        }
        let expected =
            [("b", "second-last"), ("c", "end"), ("d", "behind")].map(|(name, id)| (name.to_owned(), id.to_owned()));
        assert_eq!(seen, expected, "{body}");

        let error = TaskError { kind: "ValueError".into(), message: "bad".into(), traceback: None };
        let failed = first.following(Status::Failure(&error), NOW, Chords::Counted).parts.remove(0);
        let told = first.after_chord(&failed, std::slice::from_ref(&failed.returned), None, NOW);
        let told: Vec<&str> = told.answers.iter().map(|answer| answer.id.as_str()).collect();
        assert_eq!(told, ["second-last", "end", "behind"]);
    }
}

#[test]
fn a_chord_that_failed_is_a_failed_part_of_the_chord_around_it() {
    let outer = signature("outer", &json!([]), &json!({"task_id": "outer"}));
    let body = signature(
        "inner",
        &json!([]),
        &json!({
            "task_id": "inner", "group_id": "around", "group_index": 4, "chord": outer,
        }),
    );
    let mut envelope = captured(json!({"group": "within", "group_index": 0}));
    envelope.body = json!([[], {}, {"chord": body}]).to_string().into();
    let message = read(&envelope, 0).unwrap();
    let error = TaskError { kind: "ValueError".into(), message: "bad".into(), traceback: None };
    let mut following = message.following(Status::Failure(&error), NOW, Chords::Counted);
    let part = following.parts.remove(0);
    let failed = message.after_chord(&part, std::slice::from_ref(&part.returned), None, NOW);
    let [around] = &failed.parts[..] else { panic!("{:?}", failed.parts) };
    assert_eq!((around.group.as_str(), around.index, around.returned.id.as_str()), ("around", Some(4), "inner"));
    assert_eq!((&around.body, &around.returned.result["exc_type"]), (&outer, &json!("ChordError")));
    let told = message.after_chord(around, std::slice::from_ref(&around.returned), None, NOW);
    assert_eq!((told.answers[0].id.as_str(), told.parts.len()), ("outer", 0));
}

#[test]
fn groups_within_a_chord_are_lists_within_the_bodys_list() {
    let group = nested("group", &["x", "y"].map(|id| signature("b", &json!([]), &json!({"task_id": id}))), &json!({}));
    let fan = nested("chain", &[signature("a", &json!([]), &json!({})), group], &json!({}));
    let mut chord = nested("chord", &[], &json!({"task_id": "body"}));
    let header = nested("group", &[signature("c", &json!([]), &json!({"task_id": "z"})), fan], &json!({}));
    chord["kwargs"] = json!({"header": header, "body": signature("sum", &json!([]), &json!({}))});
    let message = with(json!({"chain": [chord]}));
    let following = message.following(Status::Success(&json!(7)), NOW, Chords::Counted);
    let [Begun { group, size: 3, shape: Some(shape) }] = &following.chords[..] else { panic!("{following:?}") };
    let first = read(&following.tasks[0], 0).unwrap();
    let last = first.following(Status::Success(&json!(0)), NOW, Chords::Counted).parts.remove(0);
    assert_eq!(&last.group, group);
    let returned = |id: &str, n: u64| Returned { id: id.into(), state: "SUCCESS".into(), result: json!(n) };
    let parts = [returned("z", 0), returned("x", 1), returned("y", 2)];
    let args = |shape: Option<&Value>| {
        read(&first.after_chord(&last, &parts, shape, NOW).tasks[0], 0).unwrap().task.args.remove(0)
    };
    assert_eq!(args(Some(shape)), json!([0, [1, 2]]));
    assert_eq!(args(None), json!([0, 1, 2]), "the shape is unknown");
    assert_eq!(args(Some(&json!([["g", null], [[["other", null], null]]]))), json!([0, 1, 2]), "it is another's");

    // Before the group was reached its members are counted one by one.
    let begin = read(&following.tasks[1], 0).unwrap();
    let early = begin.following(Status::Revoked("revoked"), NOW, Chords::Counted).parts;
    assert_eq!(early.iter().map(|part| part.returned.id.as_str()).collect::<Vec<_>>(), ["x", "y"]);
    assert!(early.iter().all(|part| part.group == *group && part.returned.state == "REVOKED"), "{early:?}");
}
