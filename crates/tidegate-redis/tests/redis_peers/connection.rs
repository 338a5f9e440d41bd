//! The connection: pipelining, logging in, breaking, coming back.

use std::time::Duration;

use rustix::process::Signal;
use tidegate_loop::{gather_all, spawn};
use tidegate_redis::{CallError, Client, Command, ConnectError, RefusalKind, Value};

use crate::server::{Server, free_port, quick};
use crate::{Test, on_loop};

pub(crate) const TESTS: &[Test] = &[
    ("everybodys_commands_go_together_and_are_answered_in_order", together),
    ("a_wrong_password_names_the_address_and_the_way_out", wrong_password),
    ("a_name_a_password_and_a_database_are_used", login),
    ("nobody_there_says_so_and_is_tried_again", nobody_there),
    ("a_server_that_is_no_redis_says_so", no_redis),
    ("a_broken_connection_leaves_commands_unanswered_and_comes_back", broken),
    ("a_silent_redis_is_noticed", silent),
    ("a_full_redis_says_so", out_of_memory),
    ("tls_trusts_whom_it_is_told_to_and_nobody_else", tls),
    ("closing_waits_for_answers", closing),
    ("several_commands_of_one_are_written_together", several),
    ("who_would_rather_not_wait_is_told_after_the_first_attempt", attempted),
];

fn together() {
    on_loop(async {
        let server = Server::start(&[]);
        let redis = server.client();
        redis.ready().await.unwrap();
        let calls = (0..1000).map(|n| {
            let redis = redis.clone();
            spawn(async move { redis.call(Command::new("ECHO").arg(n.to_string())).await.unwrap().as_int() })
        });
        for (n, echoed) in gather_all(calls).await.into_iter().enumerate() {
            assert_eq!(echoed.unwrap(), Some(n as i64));
        }
        let stats = redis.stats();
        assert_eq!((stats.commands, stats.answered, stats.in_flight), (1000, 1000, 0));
        assert!(stats.batches <= 10, "{} writes for 1,000 commands", stats.batches);
        // A refusal concerns one command; the others are answered.
        let (bad, good) = (redis.call(Command::new("NONSENSE")), redis.call(Command::new("ECHO").arg("x")));
        let Err(CallError::Refused(refusal)) = bad.await else { panic!() };
        assert_eq!(refusal.kind, RefusalKind::Wrong);
        assert_eq!(good.await, Ok(Value::Bytes(b"x".to_vec())));
    });
}

fn wrong_password() {
    on_loop(async {
        let server = Server::start(&["--requirepass", "right"]);
        for who in ["", ":wrong@", "somebody:right@"] {
            let url = format!("unix://{who}{}", server.socket().display());
            let redis = Client::open(url.parse().unwrap(), quick());
            let error = redis.ready().await.unwrap_err();
            assert!(matches!(error, ConnectError::Login { .. }), "{error:?}");
            let told = error.to_string();
            assert!(told.contains("redis.sock") && told.contains("check the name and the password"), "{told}");
            assert!(!told.contains("wrong@") && !told.contains(":right"), "{told}");
            let call = redis.call(Command::new("PING")).await;
            assert!(matches!(call, Err(CallError::Unusable(_))), "{call:?}");
        }
    });
}

fn login() {
    on_loop(async {
        let server = Server::start(&["--user", "limits", "on", ">s@fe", "~*", "&*", "+@all"]);
        let url = format!("unix://limits:s%40fe@{}?db=3", server.socket().display());
        let redis = Client::open(url.parse().unwrap(), quick());
        redis.ready().await.unwrap();
        let info = redis.call(Command::new("CLIENT").arg("INFO")).await.unwrap();
        let info = String::from_utf8(info.as_bytes().unwrap().to_vec()).unwrap();
        for part in ["name=tidegate ", "db=3 ", "user=limits ", "resp=3"] {
            assert!(info.contains(part), "{part} is not in {info}");
        }
        let url = format!("unix://{}?db=99", server.socket().display());
        let error = Client::open(url.parse().unwrap(), quick()).ready().await.unwrap_err();
        assert!(matches!(error, ConnectError::Database { .. }), "{error:?}");
    });
}

fn nobody_there() {
    on_loop(async {
        let port = free_port([127, 0, 0, 1].into());
        let redis = Client::open(format!("redis://127.0.0.1:{port}").parse().unwrap(), quick());
        let call = spawn({
            let redis = redis.clone();
            async move { redis.call(Command::new("PING")).await }
        });
        let mut waited = tidegate_loop::timeout(Duration::from_millis(100), redis.ready()).await;
        assert!(waited.is_err(), "{waited:?}");
        let server = Server::start(&["--port", &port.to_string()]);
        waited = Ok(redis.ready().await);
        assert_eq!(waited, Ok(Ok(())));
        assert_eq!(call.await.unwrap(), Ok(Value::Bytes(b"PONG".to_vec())));
        drop(server);
    });
}

fn no_redis() {
    on_loop(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 512]);
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        let redis = Client::open(format!("redis://127.0.0.1:{port}").parse().unwrap(), quick());
        let error = redis.ready().await.unwrap_err();
        assert!(matches!(error, ConnectError::NoRedis { .. }), "{error:?}");
    });
}

fn broken() {
    on_loop(async {
        let mut server = Server::start(&[]);
        let redis = server.client();
        redis.ready().await.unwrap();
        for _ in 0..5 {
            let blocked = spawn({
                let redis = redis.clone();
                async move { redis.call(Command::new("BLPOP").arg("nothing").arg("0")).await }
            });
            while redis.stats().in_flight == 0 {
                tidegate_loop::yield_now().await;
            }
            server.kill();
            let told = blocked.await.unwrap();
            let Err(CallError::Unanswered { address, .. }) = told else { panic!("{told:?}") };
            assert!(address.contains("redis.sock"));
            let waiting = spawn({
                let redis = redis.clone();
                async move { redis.call(Command::new("ECHO").arg("back")).await }
            });
            server.start_again();
            assert_eq!(waiting.await.unwrap(), Ok(Value::Bytes(b"back".to_vec())));
        }
        assert_eq!((redis.stats().connects, redis.stats().unanswered), (6, 5));
    });
}

fn silent() {
    on_loop(async {
        let server = Server::start(&[]);
        let mut options = quick();
        options.response_timeout = Duration::from_millis(100);
        let redis = Client::open(server.address(), options);
        redis.ready().await.unwrap();
        server.signal(Signal::STOP);
        let told = redis.call(Command::new("PING")).await;
        assert!(matches!(&told, Err(CallError::Unanswered { reason, .. }) if reason.contains("100ms")), "{told:?}");
        server.signal(Signal::CONT);
        redis.ready().await.unwrap();
        assert_eq!(redis.call(Command::new("PING")).await, Ok(Value::Bytes(b"PONG".to_vec())));
    });
}

fn out_of_memory() {
    on_loop(async {
        let server = Server::start(&["--maxmemory", "1"]);
        let redis = server.client();
        let told = redis.call(Command::new("SET").arg("a").arg("b")).await;
        let Err(CallError::Refused(refusal)) = told else { panic!("{told:?}") };
        assert_eq!(refusal.kind, RefusalKind::OutOfMemory);
        assert!(refusal.to_string().contains("raise its maxmemory"));
    });
}

fn tls() {
    on_loop(async {
        let files = tempfile::tempdir().unwrap();
        let path = |name: &str| files.path().join(name).display().to_string();
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(path("cert.pem"), own.cert.pem()).unwrap();
        std::fs::write(path("key.pem"), own.signing_key.serialize_pem()).unwrap();
        let stranger = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(path("stranger.pem"), stranger.cert.pem()).unwrap();
        let port = free_port([127, 0, 0, 1].into()).to_string();
        let (cert, key) = (path("cert.pem"), path("key.pem"));
        let options =
            ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &cert];
        let server = Server::start(&[&options[..], &["--tls-auth-clients", "no"]].concat());
        let url = |ca: &str| format!("rediss://localhost:{port}?cacertfile={}", path(ca));
        let redis = Client::open(url("cert.pem").parse().unwrap(), quick());
        redis.ready().await.unwrap();
        let long = "x".repeat(1 << 20);
        let echoed = redis.call(Command::new("ECHO").arg(&long)).await.unwrap();
        assert_eq!(echoed.as_bytes(), Some(long.as_bytes()));
        let error = Client::open(url("stranger.pem").parse().unwrap(), quick()).ready().await.unwrap_err();
        assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
        let error = Client::open(url("nowhere.pem").parse().unwrap(), quick()).ready().await.unwrap_err();
        assert!(error.to_string().contains("nowhere.pem"), "{error}");
        drop(server);
    });
}

fn closing() {
    on_loop(async {
        let server = Server::start(&[]);
        let redis = server.client();
        redis.ready().await.unwrap();
        let owed = spawn({
            let redis = redis.clone();
            async move { redis.call(Command::new("ECHO").arg("owed")).await }
        });
        while redis.stats().commands == 0 {
            tidegate_loop::yield_now().await;
        }
        redis.close().await;
        assert_eq!(owed.await.unwrap(), Ok(Value::Bytes(b"owed".to_vec())));
        assert_eq!(redis.call(Command::new("PING")).await, Err(CallError::Closed));
    });
}

fn several() {
    on_loop(async {
        let server = Server::start(&[]);
        let redis = server.client();
        redis.attempted().await.unwrap();
        let echo = |n: usize| Command::new("ECHO").arg(n.to_string());
        let commands: Vec<Command> =
            (0..100).map(|n| if n == 50 { Command::new("NONSENSE") } else { echo(n) }).collect();
        let answers = redis.call_all(commands).await;
        assert_eq!(answers.len(), 100);
        for (n, answer) in answers.into_iter().enumerate() {
            match answer {
                Err(CallError::Refused(refusal)) => assert_eq!((n, refusal.kind), (50, RefusalKind::Wrong)),
                answer => assert_eq!(answer.unwrap().as_int(), Some(n as i64)),
            }
        }
        assert!(redis.stats().batches <= 2, "{} writes", redis.stats().batches);
        redis.close().await;
        assert_eq!(redis.call_all(vec![echo(1)]).await, [Err(CallError::Closed)]);
    });
}

fn attempted() {
    on_loop(async {
        let port = free_port([127, 0, 0, 1].into());
        let redis = Client::open(format!("redis://127.0.0.1:{port}").parse().unwrap(), quick());
        assert_eq!(redis.fault(), None, "nothing is known yet");
        let error = redis.attempted().await.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
        assert_eq!(redis.fault(), Some(error));
    });
}
