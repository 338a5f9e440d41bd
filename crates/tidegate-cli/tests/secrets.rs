//! Keys and passwords: where they may come from, and where they must not appear.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use tempfile::TempDir;

fn tidegate(place: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(words).current_dir(place).env("XDG_CONFIG_HOME", place.join("own")).env("XDG_DATA_HOME", place);
    for name in ["OPENAI_API_KEY", "GEMINI_API_KEY", "ANTHROPIC_API_KEY", "HTTP_PROXY", "http_proxy"] {
        command.env_remove(name);
    }
    command
}

fn run(place: &Path, words: &[&str], environment: &[(&str, &str)]) -> Output {
    tidegate(place, words).envs(environment.iter().copied()).output().unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_address_may_come_from_a_file_or_a_variable() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    write(&place.join("broker"), "sqlite:from-file.db\n", 0o600);
    let output = run(place, &["enqueue", "x", "--broker-file", "broker"], &[]);
    assert!(output.status.success() && place.join("from-file.db").exists(), "{}", err(&output));
    assert_eq!(err(&output), "");
    let queue = ("QUEUE", "sqlite:from-variable.db");
    let output = run(place, &["enqueue", "x", "--broker-env", "QUEUE"], &[queue]);
    assert!(output.status.success() && place.join("from-variable.db").exists(), "{}", err(&output));
    // The environment says where to look, as for every option; the command line counts first.
    let output = run(place, &["enqueue", "x"], &[("TIDEGATE_BROKER_FILE", "broker")]);
    assert!(output.status.success(), "{}", err(&output));
    let environment = [("TIDEGATE_BROKER", "sqlite:wrong.db"), queue];
    let output = run(place, &["enqueue", "x", "--broker-env", "QUEUE"], &environment);
    assert!(output.status.success() && !place.join("wrong.db").exists(), "{}", err(&output));
    let output = run(place, &["enqueue", "x", "--broker", "sqlite:right.db"], &[("TIDEGATE_BROKER_FILE", "none")]);
    assert!(output.status.success() && place.join("right.db").exists(), "{}", err(&output));
    // The user's own file may say so, too.
    fs::create_dir_all(place.join("own/tidegate")).unwrap();
    fs::write(place.join("own/tidegate/tidegate.toml"), "broker-env = \"FROM_OWN\"\n").unwrap();
    let output = run(place, &["enqueue", "x"], &[("FROM_OWN", "sqlite:own.db")]);
    assert!(output.status.success() && place.join("own.db").exists(), "{}", err(&output));
}

#[test]
fn two_ways_at_once_and_places_without_a_value_are_refused() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    write(&place.join("empty"), "\n", 0o600);
    for (words, told) in [
        (
            &["--broker", "sqlite:a", "--broker-file", "b"][..],
            "--broker and --broker-file are two ways to give one value",
        ),
        (&["--broker-env", "NOT_SET_ANYWHERE"], "the environment variable NOT_SET_ANYWHERE is not set"),
        (&["--broker-file", "none"], "cannot read none"),
        (&["--broker-file", "empty"], "empty is empty"),
    ] {
        let output = run(place, &[&["enqueue", "x"], words].concat(), &[]);
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains(told), "{}", err(&output));
    }
}

#[test]
fn a_password_in_an_address_that_is_wrong_is_not_shown() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    write(&place.join("broker"), "redis://:hush@host", 0o600);
    fs::write(place.join("in.jsonl"), "").unwrap();
    let key = ("OPENAI_API_KEY", "sk-x");
    for words in [
        &["batch", "in.jsonl", "--limits", "redis://:hush@cache:port"][..],
        &["batch", "in.jsonl", "--limits=shop:hush@cache"],
        &["batch", "in.jsonl", "--base-url", "ftp://joe:hush@host"],
        &["batch", "in.jsonl", "--base-url", "http://joe:hu/sh@host:x", "--insecure-http"],
        &["enqueue", "x", "--broker", "redis://:hush@host"],
        &["enqueue", "x", "--broker", "shop:hush@host"],
        &["enqueue", "x", "--broker-file", "broker"],
        &["worker", "--handler", "x=http://joe:hush@192.0.2.1/"],
    ] {
        let output = run(place, words, &[key]);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", err(&output));
        assert!(!err(&output).contains("hush") && !err(&output).contains("sh@"), "{}", err(&output));
    }
    let output = run(place, &["enqueue", "x"], &[("TIDEGATE_BROKER", "redis://:hush@host")]);
    assert!(!err(&output).contains("hush"), "{}", err(&output));
    let help = run(place, &["enqueue", "--help"], &[("TIDEGATE_BROKER", "amqp://shop:hush@host")]);
    assert!(!String::from_utf8_lossy(&help.stdout).contains("hush"));
}

#[test]
fn a_key_is_sent_unencrypted_to_another_machine_only_if_that_is_asked_for() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    // Without a request nothing is sent: what is tested happens before.
    fs::write(place.join("in.jsonl"), "\n").unwrap();
    let batch = |base: &str, more: &[&str], key: &[(&str, &str)]| {
        run(place, &[&["batch", "in.jsonl", "--base-url", base], more].concat(), key)
    };
    let key = [("OPENAI_API_KEY", "sk-x")];
    let output = batch("http://gpu.example/v1", &[], &key);
    assert_eq!(output.status.code(), Some(2));
    let told = err(&output);
    assert!(told.contains("the key from OPENAI_API_KEY would be sent to http://gpu.example/v1 unencrypted"), "{told}");
    assert!(told.contains("--insecure-http"), "{told}");
    let told = err(&batch("http://joe:hush@gpu.example/v1", &[], &[]));
    assert!(told.contains("the password in --base-url would be sent to http://gpu.example/v1"), "{told}");
    for (base, more, key) in [
        ("http://gpu.example/v1", &["--insecure-http"][..], &key[..]),
        ("http://gpu.example/v1", &[], &[]),
        ("http://127.0.0.1:9/v1", &[], &key),
        ("https://gpu.example/v1", &[], &key),
    ] {
        // The key may be sent, and there is nothing to send.
        let told = err(&batch(base, more, key));
        assert!(told.contains("in.jsonl has no requests"), "{base}: {told}");
    }
}

#[test]
fn a_file_with_a_secret_that_others_can_read_is_reported() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    fs::write(place.join("in.jsonl"), "").unwrap();
    let key = place.join("key");
    let batch = ["batch", "in.jsonl", "--api-key-file", "key"];
    write(&key, "sk-x", 0o640);
    let told = err(&run(place, &batch, &[]));
    assert!(told.contains("tidegate: warning: other users can read key, which has the key (mode 0640)"), "{told}");
    write(&key, "sk-x", 0o600);
    assert!(!err(&run(place, &batch, &[])).contains("warning"));
    // A configuration file counts only if it has a password.
    fs::create_dir_all(place.join("own/tidegate")).unwrap();
    let own = place.join("own/tidegate/tidegate.toml");
    let plan = ["plan", "--requests", "1", "--rpm", "5"];
    let enqueue = ["enqueue", "x"];
    write(&own, "broker = \"amqp://u:hush@127.0.0.1:1\"\n", 0o644);
    let told = err(&run(place, &enqueue, &[]));
    assert!(told.contains("warning: other users can read") && told.contains("tidegate.toml"), "{told}");
    assert!(!told.contains("hush"), "{told}");
    assert!(!err(&run(place, &plan, &[])).contains("warning"), "it is not used");
    write(&own, "broker = \"sqlite:a.db\"\n", 0o644);
    assert_eq!(err(&run(place, &enqueue, &[])), "");
}

#[test]
fn a_password_that_crosses_the_network_unencrypted_is_reported() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    fs::write(place.join("in.jsonl"), "").unwrap();
    // `.invalid` has no address: the command ends at once.
    let told = err(&run(place, &["queue", "ls", "--broker", "amqp://shop:hush@rabbit.invalid"], &[]));
    assert!(
        told.contains("warning: the password of --broker is sent to rabbit.invalid unencrypted; use amqps://"),
        "{told}"
    );
    assert!(!told.contains("hush"), "{told}");
    let told = err(&run(place, &["queue", "ls", "--broker", "amqp://shop:hush@127.0.0.1:1"], &[]));
    assert!(!told.contains("warning"), "{told}");
}

#[cfg(feature = "pdf")]
#[test]
fn pages_in_the_queue_have_no_password_of_the_server() {
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;

    let place = TempDir::new().unwrap();
    let place = place.path();
    #[cfg(feature = "pdf")]
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/tides.pdf");
    let words =
        ["--broker", "sqlite:q.db", "--provider", "openai", "--model", "any", "--progress", "json", "--pages", "1"];
    let mut command = tidegate(place, &["explain", sample.to_str().unwrap()]);
    command.args(words).args(["--base-url", "http://joe:hunter2@127.0.0.1:9/v1"]);
    let mut explain = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Nothing answers; a page that is said to be asked about is in the queue at the next look at its length.
    let mut lines = BufReader::new(explain.stderr.take().unwrap()).lines();
    let in_flight = |line: String| line.contains("\"in_flight\"") && line.contains("\"page\"");
    assert!(lines.by_ref().map(Result::unwrap).any(in_flight));
    let stored = || {
        let names = ["q.db", "q.db-wal"].map(|name| fs::read(place.join(name)).unwrap_or_default());
        String::from_utf8_lossy(&names.concat()).into_owned()
    };
    // One line every half second: it is read until the task is there.
    while !stored().contains("127.0.0.1:9/v1") {
        lines.next().expect("it goes on").unwrap();
    }
    assert!(!stored().contains("hunter2") && !stored().contains("am9lOmh1bnRlcjI"));
    explain.kill().unwrap();
    explain.wait().unwrap();
}

/// Answers one request with the key that it carries, written as `form` writes it.
fn repeat_key(stream: TcpStream, status: u16, form: fn(&str) -> String) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut key, mut len) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let lower = line.to_ascii_lowercase();
        match lower.trim_end().split_once(": ") {
            Some(("authorization", _)) => line.trim_end()["authorization: Bearer ".len()..].clone_into(&mut key),
            Some(("content-length", value)) => len = value.parse().unwrap(),
            None if lower == "\r\n" => break,
            _ => {}
        }
    }
    reader.read_exact(&mut vec![0; len]).ok()?;
    let said = form(&key);
    let body = match status {
        200 => format!(
            "{{\"choices\": [{{\"finish_reason\": \"stop\", \"message\": {{\"role\": \"assistant\", \"content\": \"your key is {said}\"}}}}], \
             \"usage\": {{\"prompt_tokens\": 1, \"completion_tokens\": 1, \"total_tokens\": 2}}, \"{said}\": 1}}"
        ),
        _ => format!("{{\"error\": {{\"message\": \"bad key {said}\", \"code\": \"{said}\"}}}}"),
    };
    let head = format!("HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", body.len());
    (&stream).write_all(format!("{head}x-request-id: {key}\r\nconnection: close\r\n\r\n{body}").as_bytes()).ok()
}

/// Every file below `folder`, with its bytes.
fn files_below(folder: &Path) -> Vec<(String, Vec<u8>)> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| match path.is_dir() {
            true => files_below(&path),
            false => vec![(path.display().to_string(), fs::read(&path).unwrap())],
        })
        .collect()
}

#[test]
fn a_key_that_the_server_repeats_in_escapes_is_kept_nowhere() {
    const KEY: &str = "sk-verysecretkey-0123456789abcdef";
    let forms: [fn(&str) -> String; 3] = [
        str::to_owned,
        |key| key.chars().map(|character| format!("\\u{:04X}", u32::from(character))).collect(),
        |key| format!("\\u0073{}", &key[1..]),
    ];
    #[cfg(feature = "pdf")]
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/tides.pdf");
    let mut answered = 0;
    for form in forms {
        for status in [200, 400, 401] {
            let place = TempDir::new().unwrap();
            let place = place.path();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let base = format!("http://{}/v1", listener.local_addr().unwrap());
            thread::spawn(move || {
                for stream in listener.incoming() {
                    thread::spawn(move || repeat_key(stream.unwrap(), status, form));
                }
            });
            let line = r#"{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "x"}]}}"#;
            fs::write(place.join("in.jsonl"), line).unwrap();
            let server = ["--base-url", &base, "--retries", "0"];
            let batch = &["batch", "in.jsonl", "--output", "out.jsonl"][..];
            #[cfg(feature = "pdf")]
            let explain = &[
                "explain",
                sample.to_str().unwrap(),
                "--out",
                "out",
                "--pages",
                "1",
                "--provider",
                "openai",
                "--model",
                "m",
            ][..];
            let commands = [
                batch,
                #[cfg(feature = "pdf")]
                explain,
            ];
            for command in commands {
                let output = run(place, &[command, &server].concat(), &[("OPENAI_API_KEY", KEY)]);
                let all = [output.stdout.clone(), output.stderr.clone()].concat();
                let mut seen = files_below(place);
                seen.push(("the terminal".to_owned(), all));
                for (name, bytes) in &seen {
                    let text = String::from_utf8_lossy(bytes);
                    assert!(!text.contains("verysecretkey"), "{status}: {command:?}: {name}: {}", err(&output));
                    assert!(!text.contains("u0073"), "{status}: {command:?}: {name}: {text}");
                    answered += usize::from(text.contains("your key is (secret)"));
                }
            }
        }
    }
    // The answers did arrive: what was looked for could have been there.
    assert!(answered >= forms.len(), "{answered}");
}

/// The password of a queue or of shared limits, and what a server repeats of it: as it is, percent-encoded, alone and with its
/// user in base64 (SASL PLAIN begins with a zero byte).
const PASSWORD_IN_URL: &str = "hun%2Fter2";
const REPEATED: [&str; 5] = ["hun/ter2", "hun%2Fter2", "aHVuL3RlcjI=", "am9lOmh1bi90ZXIy", "AGpvZQBodW4vdGVyMg=="];

/// Takes connections and answers each as `serve` does; returns where it listens.
fn hostile_server(serve: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that hangs up is content.
            let _ = serve(&mut stream.unwrap());
        }
    });
    place
}

/// Answers every command of Redis with this reply, after a proper greeting if there is to be one.
fn hostile_redis(greets: bool, reply: String) -> String {
    hostile_server(move |stream| {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut line = String::new();
            let mut command = Vec::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            for _ in 0..line.trim_start_matches('*').trim_end().parse::<usize>().unwrap() {
                line.clear();
                reader.read_line(&mut line)?;
                let mut argument = vec![0; line.trim_start_matches('$').trim_end().parse::<usize>().unwrap() + 2];
                reader.read_exact(&mut argument)?;
                command.push(argument);
            }
            match &command[0][..] {
                b"HELLO\r\n" if greets => stream.write_all(b"%0\r\n")?,
                b"PING\r\n" if greets => stream.write_all(b"+PONG\r\n")?,
                _ => stream.write_all(reply.as_bytes())?,
            }
        }
    })
}

/// Opens an AMQP connection up to the login, and closes it with this text.
fn hostile_amqp(code: u16, text: String) -> String {
    let method = |class: u16, method: u16, arguments: &[u8]| {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
        [&[1, 0, 0][..], &(payload.len() as u32).to_be_bytes(), &payload, &[0xCE]].concat()
    };
    let long = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let start = method(10, 10, &[&[0, 9, 0, 0, 0, 0][..], &long("PLAIN"), &long("en_US")].concat());
    let told = [&code.to_be_bytes()[..], &[text.len() as u8], text.as_bytes(), &[0; 4]].concat();
    let close = method(10, 50, &told);
    hostile_server(move |stream| {
        stream.read_exact(&mut [0; 8])?;
        stream.write_all(&start)?;
        let mut head = [0; 7];
        stream.read_exact(&mut head)?;
        let login = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        stream.read_exact(&mut vec![0; login + 1])?;
        stream.write_all(&close)?;
        // Until the client has read it.
        stream.read_to_end(&mut Vec::new()).map(drop)
    })
}

#[test]
fn a_password_that_a_broker_or_redis_repeats_is_not_shown() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    let request = r#"{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "x"}]}}"#;
    fs::write(place.join("in.jsonl"), request).unwrap();
    let run_all = |commands: &[&[&str]]| {
        for words in commands {
            let output = run(place, words, &[("OPENAI_API_KEY", "sk-x")]);
            let told = [&output.stdout[..], &output.stderr[..]].concat();
            let told = String::from_utf8_lossy(&told);
            assert!(!output.status.success() && told.contains("(secret)"), "{words:?}: {told}");
            assert!(!REPEATED.iter().any(|form| told.contains(form)), "{words:?}: {told}");
        }
    };
    for form in REPEATED {
        for code in [403, 530] {
            let text = match code {
                403 => format!("ACCESS_REFUSED - login with {form} refused"),
                _ => format!("NOT_ALLOWED - vhost / for {form}"),
            };
            let broker = format!("amqp://joe:{PASSWORD_IN_URL}@{}", hostile_amqp(code, text));
            run_all(&[
                &["enqueue", "x", "--broker", &broker],
                &["queue", "ls", "--broker", &broker],
                &["worker", "--handler", "x=exec:true", "--broker", &broker],
            ]);
        }
        for (greets, reply) in [
            (false, format!("-WRONGPASS invalid password '{form}'\r\n")),
            (false, format!("-ERR AUTH with '{form}'\r\n")),
            (true, format!("-ERR no script for '{form}'\r\n")),
            (true, format!("+{form}\r\n")),
        ] {
            let redis = format!("redis://joe:{PASSWORD_IN_URL}@{}", hostile_redis(greets, reply));
            run_all(&[&["batch", "in.jsonl", "--limits", &redis, "--rpm", "5", "--base-url", "http://127.0.0.1:9/v1"]]);
        }
        let redis = hostile_redis(false, format!("-WRONGPASS invalid password '{form}'\r\n"));
        let redis = format!("redis://joe:{PASSWORD_IN_URL}@{redis}");
        let broker = format!("amqp://joe:{PASSWORD_IN_URL}@{}", hostile_amqp(403, form.to_owned()));
        let worker = ["worker", "--handler", "x=exec:true", "--broker", &broker, "--result-backend", &redis];
        run_all(&[&[&worker[..], &["--codec", "celery", "--queue", "celery"]].concat()]);
    }
}

/// Answers every request as a proxy that repeats the login it was sent, and what that means.
fn hostile_proxy(status: u16) -> String {
    hostile_server(move |stream| {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut login, mut len) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("proxy-authorization", _)) => line.trim_end().clone_into(&mut login),
                Some(("content-length", value)) => len = value.parse().unwrap(),
                None if line == "\r\n" => break,
                _ => {}
            }
        }
        reader.read_exact(&mut vec![0; len])?;
        let body = format!("{{\"error\": {{\"message\": \"refused: {login} is hun/ter2\"}}}}");
        let head = "content-type: application/json\r\nconnection: close\r\n";
        let answer = format!("HTTP/1.1 {status} x\r\n{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes())
    })
}

#[test]
fn a_password_that_a_proxy_repeats_is_kept_nowhere() {
    for status in [200, 400, 403] {
        let place = TempDir::new().unwrap();
        let place = place.path();
        let request = r#"{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "x"}]}}"#;
        fs::write(place.join("in.jsonl"), request).unwrap();
        let proxy = format!("http://joe:{PASSWORD_IN_URL}@{}", hostile_proxy(status));
        let batch = ["batch", "in.jsonl", "-o", "out.jsonl", "--base-url", "http://gpu.example/v1", "--retries", "0"];
        let output = run(place, &batch, &[("http_proxy", &proxy)]);
        let mut seen = files_below(place);
        seen.push(("the terminal".to_owned(), [output.stdout.clone(), output.stderr.clone()].concat()));
        let texts = || seen.iter().map(|(name, bytes)| (name, String::from_utf8_lossy(bytes)));
        for (name, text) in texts() {
            assert!(!REPEATED.iter().any(|form| text.contains(form)), "{status}: {name}: {text}");
        }
        assert!(texts().any(|(_, text)| text.contains("Basic (secret) is (secret)")), "{status}: {}", err(&output));
    }
}
