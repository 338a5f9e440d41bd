//! A server that means harm: the client ends the connection with an error that says why, and keeps neither the bytes nor the
//! command.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_redis::{CallError, Client, ClientOptions, Command, ConnectError, Value};

/// More than the buffers of both sockets and the largest reply together.
const SENT_MAX: usize = 64 << 20;

/// Never reached.
const LONG: Duration = Duration::from_secs(60);

/// Always reached.
const SHORT: Duration = Duration::from_millis(200);

/// What the server sends: `first` once, then `rest` until the client closes the connection or `sent_max` is reached.
#[derive(Clone)]
struct Attack {
    first: Vec<u8>,
    rest: Vec<u8>,
    sent_max: usize,
}

impl Attack {
    fn new(first: impl Into<Vec<u8>>, rest: impl Into<Vec<u8>>) -> Attack {
        Attack { first: first.into(), rest: rest.into(), sent_max: SENT_MAX }
    }

    /// Returns the number of bytes sent.
    fn send(&self, mut stream: TcpStream) -> usize {
        let mut sent = 0;
        let mut next = &self.first;
        while sent < self.sent_max && stream.write_all(next).is_ok() {
            sent += next.len();
            next = &self.rest;
            if next.is_empty() {
                // Until the client closes it.
                let _ = stream.read_to_end(&mut Vec::new());
                break;
            }
        }
        sent
    }
}

fn read_until(stream: &mut TcpStream, end: &[u8]) {
    let mut seen = Vec::new();
    let mut buffer = [0; 1024];
    while !seen.ends_with(end) {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the client closed the connection");
        seen.extend_from_slice(&buffer[..count]);
    }
}

/// Serves one connection: the attack is the answer to the first command, before or after a proper greeting.
fn serve(attack: Attack, greets: bool, response_timeout: Duration) -> (Client, JoinHandle<usize>) {
    serve_login("", attack, greets, response_timeout)
}

/// The same for an address with this login.
fn serve_login(login: &str, attack: Attack, greets: bool, response_timeout: Duration) -> (Client, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("redis://{login}{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        stream.set_nodelay(true).unwrap();
        read_until(&mut stream, b"PING\r\n");
        if greets {
            stream.write_all(b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n+PONG\r\n").unwrap();
            read_until(&mut stream, b"ASK\r\n");
        }
        attack.send(stream)
    });
    let mut options = ClientOptions::default();
    options.response_timeout = response_timeout;
    options.connect_timeout = LONG;
    (Client::open(address.parse().unwrap(), options), server)
}

/// The reason why a command has no answer, and the number of bytes sent.
fn asked(attack: Attack, response_timeout: Duration) -> (String, usize) {
    tidegate_loop::run(async move {
        let (redis, server) = serve(attack, true, response_timeout);
        redis.ready().await.unwrap();
        let outcome = redis.call(Command::new("ASK")).await;
        drop(redis);
        let Err(CallError::Unanswered { reason, .. }) = outcome else { panic!("{outcome:?}") };
        // The loop must turn for the connection to be closed.
        let sent = tidegate_loop::to_thread(move || server.join().unwrap()).await.unwrap();
        (reason, sent)
    })
    .unwrap()
}

/// The same for the greeting.
fn greeted(attack: Attack) -> (String, usize) {
    tidegate_loop::run(async move {
        let (redis, server) = serve(attack, false, LONG);
        let outcome = redis.ready().await;
        drop(redis);
        let Err(ConnectError::NoRedis { reason, .. }) = outcome else { panic!("{outcome:?}") };
        let sent = tidegate_loop::to_thread(move || server.join().unwrap()).await.unwrap();
        (reason, sent)
    })
    .unwrap()
}

#[test]
fn a_reply_out_of_bounds_ends_the_connection() {
    for (attack, told) in [
        (Attack::new("*1\r\n".repeat(6_000), ""), "nested deeper than 16 levels"),
        (Attack::new("*1\r\n", "*1\r\n".repeat(1_000)), "nested deeper than 16 levels"),
        (Attack::new("$4000000000\r\n", vec![b'x'; 65_536]), "larger than 4194304 bytes"),
        (Attack::new("+", vec![b'x'; 65_536]), "larger than 4194304 bytes"),
        (Attack::new("*4000000000\r\n", "_\r\n".repeat(10_000)), "announces 4000000001 elements"),
    ] {
        for (reason, sent) in [asked(attack.clone(), LONG), greeted(attack.clone())] {
            assert!(reason.contains("a reply is refused") && reason.contains(told), "{reason}");
            assert!(sent < SENT_MAX, "{sent} bytes were taken before {told:?}");
        }
    }
}

#[test]
fn an_answer_that_trickles_in_does_not_hold_its_command() {
    let (reason, sent) = asked(Attack::new("$4000000\r\n", "x"), SHORT);
    assert_eq!(reason, "no answer within 200ms");
    assert!(sent < 4_000_000, "all of it came");
}

#[test]
fn messages_without_end_do_not_hold_a_command() {
    let message = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n";
    // More than can be read within the time-out.
    let sent_max = 1 << 30;
    let (reason, _) = asked(Attack { sent_max, ..Attack::new(message, message.repeat(2_000)) }, SHORT);
    assert_eq!(reason, "no answer within 200ms");
}

/// A password and the forms in which a server may repeat it: as it is, percent-encoded, alone and with its user in base64.
const LOGIN: &str = ":hun%2Fter2@";
const REPEATED: [&str; 4] = ["hun/ter2", "hun%2Fter2", "aHVuL3RlcjI=", "ZGVmYXVsdDpodW4vdGVyMg=="];

#[track_caller]
fn shows_no_password(told: &(impl std::fmt::Display + std::fmt::Debug)) {
    for text in [told.to_string(), format!("{told:?}")] {
        assert!(!REPEATED.iter().any(|form| text.contains(form)), "{text}");
        assert!(text.contains("(secret)"), "the text of the server is not there: {text}");
    }
}

#[test]
fn a_password_that_the_server_repeats_is_not_shown() {
    for form in REPEATED {
        for refusal in ["WRONGPASS invalid password", "ERR no AUTH with", "LOADING for", "ERR unknown user"] {
            tidegate_loop::run(async move {
                let attack = Attack::new(format!("-{refusal} '{form}'\r\n"), "");
                let (redis, server) = serve_login(LOGIN, attack, false, LONG);
                shows_no_password(&redis.attempted().await.unwrap_err());
                drop(redis);
                tidegate_loop::to_thread(move || server.join().unwrap()).await.unwrap();
            })
            .unwrap();
        }
        for refusal in [format!("-ERR call with '{form}'\r\n"), format!("!{}\r\nERR {form}\r\n", form.len() + 4)] {
            tidegate_loop::run(async move {
                let (redis, server) = serve_login(LOGIN, Attack::new(refusal, ""), true, LONG);
                shows_no_password(&redis.call(Command::new("ASK")).await.unwrap_err());
                drop(redis);
                tidegate_loop::to_thread(move || server.join().unwrap()).await.unwrap();
            })
            .unwrap();
        }
        // An error within an answer; data beside it stays as it is.
        tidegate_loop::run(async move {
            let attack = Attack::new(format!("*2\r\n-ERR '{form}'\r\n+{form}\r\n"), "");
            let (redis, server) = serve_login(LOGIN, attack, true, LONG);
            let Value::Array(parts) = redis.call(Command::new("ASK")).await.unwrap() else { panic!("no list") };
            assert_eq!(parts[..], [Value::Error("ERR '(secret)'".to_owned()), Value::Bytes(form.into())]);
            drop(redis);
            tidegate_loop::to_thread(move || server.join().unwrap()).await.unwrap();
        })
        .unwrap();
    }
}
