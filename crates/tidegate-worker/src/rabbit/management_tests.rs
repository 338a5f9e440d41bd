//! The API's answers, and what hostile or broken servers answer in its place.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{StatusCode, Uri};
use serde_json::json;
use tidegate_http::serve;
use tidegate_loop::spawn;

use super::*;

const TASKS: Role = Role::Tasks { dead_letters: true };

fn policies(definition: Value) -> Policies {
    let Value::Object(definition) = definition else { panic!("no object: {definition}") };
    Policies { names: vec!["short".to_owned()], definition: Some(definition), ..Policies::default() }
}

fn watched(queue: &str, role: Role) -> Watched {
    Watched { queue: queue.to_owned(), role }
}

#[test]
fn each_key_of_a_length_policy_has_its_effect_and_other_keys_have_none() {
    for (role, definition, parts) in [
        (TASKS, json!({"max-length": 10}), &["10 messages", "oldest tasks become dead letters"][..]),
        (Role::Tasks { dead_letters: false }, json!({"max-length-bytes": 10}), &["10 bytes", "are lost"]),
        (TASKS, json!({"max-length": 10, "overflow": "drop-head"}), &["oldest tasks become dead letters"]),
        (TASKS, json!({"max-length": 10, "overflow": "reject-publish"}), &["new tasks are refused"]),
        (TASKS, json!({"max-length": 10, "overflow": "reject-publish-dlx"}), &["leaves a dead letter"]),
        (Role::Dead, json!({"max-length": 10}), &["oldest dead letters are lost"]),
        (Role::Dead, json!({"max-length": 10, "overflow": "reject-publish"}), &["stay with their worker"]),
        (TASKS, json!({"message-ttl": 7}), &["message-ttl", "7 ms", "dead letters without having run"]),
        (TASKS, json!({"expires": 9}), &["expires", "9 ms", "deletes the queue"]),
        (Role::Delay, json!({"overflow": "drop-head"}), &["at most once"]),
    ] {
        let found = effects(role, &policies(definition.clone()));
        assert_eq!(found.len(), 1, "{role:?} {definition}: {found:?}");
        assert!(parts.iter().all(|part| found[0].contains(part)), "{role:?} {definition}: {found:?}");
    }
    let all = json!({"max-length": 1, "max-length-bytes": 1, "message-ttl": 1, "expires": 1});
    assert_eq!(effects(TASKS, &policies(all)).len(), 4);
    for harmless in [json!({}), json!({"ha-mode": "all"}), json!({"overflow": "reject-publish"})] {
        for role in [TASKS, Role::Dead, Role::Delay] {
            assert_eq!(effects(role, &policies(harmless.clone())), [""; 0], "{role:?} {harmless}");
        }
    }
    // A plain queue may have dead letters by its own arguments or by a policy.
    let plain = Role::Tasks { dead_letters: false };
    let by_policy = policies(json!({"max-length": 10, "dead-letter-exchange": "x"}));
    assert!(effects(plain, &by_policy)[0].contains("become dead letters"));
    let mut by_argument = policies(json!({"max-length": 10}));
    by_argument.arguments.insert("x-dead-letter-exchange".to_owned(), "x".into());
    assert!(effects(plain, &by_argument)[0].contains("become dead letters"));
    // The queue's own argument decides where the policy is silent.
    let mut own = policies(json!({"max-length": 10}));
    own.arguments.insert("x-overflow".to_owned(), "reject-publish".into());
    assert!(effects(TASKS, &own)[0].contains("refused"));
}

#[test]
fn a_description_without_a_policy_is_one_that_comes_later() {
    assert_eq!(read(br#"{"name":"mail"}"#), Ok(Described::NotYet));
    let none = Policies { definition: Some(Map::new()), ..Policies::default() };
    assert_eq!(read(br#"{"policy":null,"effective_policy_definition":[]}"#), Ok(Described::Policies(none)));
    let hidden = read(br#"{"policy":"short"}"#);
    let Ok(Described::Policies(hidden)) = hidden else { panic!("{hidden:?}") };
    assert!(effects(TASKS, &hidden)[0].contains("does not show its definition"));
    for bad in ["", "<html>", "[]", "7", "null", "{\"policy\":", "\u{1}"] {
        assert!(read(bad.as_bytes()).unwrap_err().contains("not a JSON object"), "{bad}");
    }
    // Values of other types than expected change nothing.
    for odd in [r#"{"policy":7}"#, r#"{"policy":[],"effective_policy_definition":7,"arguments":"x"}"#] {
        let Ok(Described::Policies(odd)) = read(odd.as_bytes()) else { panic!("{odd}") };
        assert_eq!(effects(TASKS, &odd), [""; 0]);
    }
}

#[test]
fn names_are_one_segment_of_the_path_and_shown_without_control_characters() {
    assert_eq!(encoded("/"), "%2F");
    assert_eq!(encoded("../a b.dead?x#ü"), "%2E%2E%2Fa%20b%2Edead%3Fx%23%C3%BC");
    assert_eq!(shown("a\u{1b}[31m\nb"), "a[31mb");
    assert_eq!(shown(&"x".repeat(1000)).len(), SHOWN_MAX);
}

/// Far above what a server of the tests needs.
const LONG: Duration = Duration::from_secs(60);

/// Asks a server, and returns the warnings. `answer`: for one answer.
async fn asked(url: &str, answer: Duration, all: Vec<Watched>) -> Vec<Warning> {
    let management = Management::with_patience(url, answer, LONG);
    let found = RefCell::new(Vec::new());
    management.warnings("/", all, |warning| found.borrow_mut().push(warning)).await;
    found.into_inner()
}

#[test]
fn a_policy_that_is_shown_late_is_waited_for_and_a_delay_queue_may_be_missing() {
    tidegate_loop::run(async {
        let listener = tidegate_loop::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://guest:hush@{}/", listener.local_addr().unwrap());
        let paths = Arc::new(Mutex::new(Vec::<String>::new()));
        let seen = paths.clone();
        let router = Router::new().fallback(move |uri: Uri| {
            let mut seen = seen.lock().unwrap();
            seen.push(uri.path().to_owned());
            let answer = match uri.path() {
                "/api/queues/%2F/mail" if seen.len() == 1 => (StatusCode::OK, json!({"name": "mail"})),
                "/api/queues/%2F/mail" => (
                    StatusCode::OK,
                    json!({"policy": "a", "operator_policy": "b", "effective_policy_definition": {"max-length": 3}}),
                ),
                _ => (StatusCode::NOT_FOUND, json!({"error": "Object Not Found"})),
            };
            async move { (answer.0, answer.1.to_string()) }
        });
        let server = spawn(serve(listener, router).run());
        let found = asked(&url, LONG, vec![watched("mail", TASKS), watched("rung", Role::Delay)]).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].queue.as_deref(), found[0].policy.as_deref()), (Some("mail"), Some("a, b")));
        let mail = "/api/queues/%2F/mail";
        assert_eq!(
            *paths.lock().unwrap(),
            [mail, "/api/queues/%2F/rung", mail],
            "known queues are not asked for again"
        );

        // A task queue exists: an API that does not know it is that of another broker.
        let found = asked(&url, LONG, vec![watched("other", TASKS), watched("mail", TASKS)]).await;
        assert!(found[0].text.contains("other, mail") && found[0].text.contains("no such queue"), "{found:?}");
        server.cancel();
    })
    .unwrap();
}

#[test]
fn a_password_that_the_api_repeats_is_in_no_warning() {
    // Alone, percent-encoded, and as the header has it.
    for form in ["hun/ter2", "hun%2Fter2", "Z3Vlc3Q6aHVuL3RlcjI="] {
        let policy = json!({"policy": form, "effective_policy_definition": {"max-length": form, "message-ttl": form}});
        for body in [policy.to_string(), json!(format!("no object: {form}")).to_string()] {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let (url, thread) = serve_one(Server::Bytes((head + &body).into_bytes()));
            let url = url.replace(":hush@", ":hun%2Fter2@");
            let found =
                tidegate_loop::run(async move { asked(&url, LONG, vec![watched("mail", TASKS)]).await }).unwrap();
            thread.join().unwrap();
            let text = format!("{found:?}");
            assert!(!text.contains(form) && text.contains("(secret)"), "{text}");
        }
    }
}

/// How a server of the tests answers.
enum Server {
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// Nothing, until the client gives up.
    Silent,
    /// One byte after the other, without an end, until the client gives up.
    Trickling,
}

/// Serves one connection.
fn serve_one(server: Server) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://guest:hush@{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        match server {
            Server::Bytes(bytes) => drop(stream.write_all(&bytes)),
            Server::Silent => drop(stream.read_to_end(&mut Vec::new())),
            Server::Trickling => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n");
                stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
                // A read that times out is the pause between two bytes; one that ends is the client's end.
                while stream.read(&mut request).is_err() && stream.write_all(b" ").is_ok() {}
            }
        }
    });
    (url, thread)
}

#[test]
fn whatever_a_server_answers_is_one_warning_with_its_cause_and_without_the_password() {
    let bytes = |text: &str| Server::Bytes(text.as_bytes().to_vec());
    let ok = |body: &str| bytes(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    let endless = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned()
        + &format!("10000\r\n{}\r\n", " ".repeat(0x10000)).repeat(32);
    let short = Duration::from_millis(300);
    for (what, server, answer, cause) in [
        ("silent", Server::Silent, short, "300"),
        ("trickling", Server::Trickling, short, "300"),
        ("401", bytes("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"), LONG, "answers 401"),
        (
            "moved",
            bytes("HTTP/1.1 301 Moved\r\nlocation: http://x.invalid/\r\ncontent-length: 0\r\n\r\n"),
            LONG,
            "answers 301",
        ),
        ("500", bytes("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"), LONG, "answers 500"),
        ("HTML", ok("<html>hello"), LONG, "not a JSON object"),
        ("nested", ok(&"[".repeat(100_000)), LONG, "not a JSON object"),
        ("nested in an object", ok(&"{\"a\":".repeat(100_000)), LONG, "not a JSON object"),
        ("cut", bytes("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"), LONG, "127.0.0.1"),
        ("huge", bytes("HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n{"), LONG, "1048576"),
        ("endless", bytes(&endless), LONG, "1048576"),
        ("not HTTP", bytes("220 mail.example ESMTP\r\n"), LONG, "127.0.0.1"),
    ] {
        let (url, thread) = serve_one(server);
        let found = tidegate_loop::run(async move { asked(&url, answer, vec![watched("mail", TASKS)]).await }).unwrap();
        thread.join().unwrap();
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        let text = &found[0].text;
        assert!(text.contains("policies of mail are not known") && text.contains(cause), "{what}: {text}");
        assert!(!text.contains("hush") && text.len() < 1000, "{what}: {text}");
    }
    // Nothing listens.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://guest:hush@{free}");
    let found = tidegate_loop::run(async move { asked(&url, LONG, vec![watched("mail", TASKS)]).await }).unwrap();
    assert!(found.len() == 1 && found[0].text.contains(&free.to_string()), "{found:?}");
}
