//! The attacks of a web page on a server with jobs, over real connections: each is refused, or what it brings is shown as text.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_batch::{Answer, Asked, Asking, CallError, Estimate, Finish, Provider, Question, Quotas, Usage};
use tidegate_batch::{ItemScope, Local};
use tidegate_limit::Admission;
use tidegate_loop::to_thread;
use tidegate_web::jobs::Upstream;
use tidegate_web::{Options, Token};

use crate::support::{Up, local, multipart, on_loop, sample, settings};

const EVIL: &str = "<script>alert(1)</script>\"><img src=x onerror=alert(2)>'";

/// A server that answers and fails with HTML.
struct Evil(Local);

impl Provider for Evil {
    fn identity(&self) -> &str {
        EVIL
    }

    fn model(&self) -> &str {
        EVIL
    }

    fn takes_pictures(&self) -> bool {
        false
    }

    fn estimate(&self, question: &Question) -> Estimate {
        self.0.estimate(question)
    }

    fn ask<'a>(&'a self, _: &'a ItemScope, question: &'a Question) -> Asking<'a> {
        let fails = question.page == 1;
        Box::pin(async move {
            if fails {
                let reason = format!("Traceback (most recent call last):\n  File \"{EVIL}\", line 1\nKeyError: {EVIL}");
                return Err(CallError::Declined { reason });
            }
            let answer = Answer { text: EVIL.into(), usage: Usage::default(), finish: Finish::Complete, model: None };
            Ok(Asked::new(answer, 1))
        })
    }
}

fn evil() -> Upstream {
    let quotas = Quotas::default();
    let gate = Admission::from(quotas.gate().unwrap());
    let shared = gate.clone();
    let connect = move |_: &str, _: &_| Ok(Rc::new(Evil(Local::new(&shared))) as Rc<dyn Provider>);
    Upstream::new("evil", "openai", gate, quotas, connect).model(EVIL)
}

/// Sends these bytes and reads until the server closes the connection.
async fn raw(up: &Up, request: Vec<u8>) -> String {
    let address = up.address();
    let exchange = to_thread(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&request).unwrap();
        let mut answer = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    });
    exchange.await.unwrap()
}

/// An upload as raw bytes, with these headers.
fn upload(headers: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
    let (kind, body) = multipart(files);
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\n{headers}content-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

#[test]
fn html_in_names_prompts_answers_and_tracebacks_is_text_on_every_page() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let up = Up::start(directory.path(), vec![evil(), local()], settings()).await;
        let pdf = sample("tides.pdf");
        let id = up.draft(&[(&EVIL.replace('"', "%22"), &pdf)]).await;
        let change =
            json!({"name": EVIL, "upstream": "evil", "model": EVIL, "options": {"prompt": EVIL, "language": EVIL}});
        let changed = up.api("PATCH", &format!("/jobs/{id}"), change).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        let draft = up.get(&format!("/jobs/{id}")).await.text();
        assert_eq!(up.api("POST", &format!("/jobs/{id}/start"), Value::Null).await.status, 200);
        let job = up.until_state(id, "done").await;
        assert_eq!((&job["pages"]["failed"], &job["pages"]["done"]), (&json!(1), &json!(3)), "{job:#}");
        let ask = json!({"prompt": EVIL, "upstream": "evil", "model": EVIL});
        assert_eq!(up.api("POST", &format!("/jobs/{id}/files/1/pages/2/ask"), ask).await.status, 200);
        up.until_versions(id, 1, 2, 2).await;

        let sought = "%3Cscript%3Ealert%281%29%3C%2Fscript%3E%22%3E";
        let mut pages = vec![("draft".to_owned(), draft)];
        for path in [
            "/jobs".to_owned(),
            format!("/jobs?q={sought}&show={sought}"),
            format!("/jobs/{id}"),
            format!("/jobs/{id}?file=1"),
            format!("/jobs/{id}/cancel"),
            format!("/jobs/{id}/delete"),
            format!("/jobs/{id}/read/1/1"),
            format!("/jobs/{id}/read/1/2?q={sought}"),
            format!("/jobs/{id}/read/1/2?compare=1"),
            format!("/jobs/{id}/download/1.html"),
            format!("/jobs/{sought}"),
            format!("/{sought}?x={sought}"),
        ] {
            let page = up.get(&path).await.text();
            pages.push((path, page));
        }
        for (path, page) in &pages {
            let lower = page.to_lowercase();
            assert!(!lower.contains("<script>alert") && !lower.contains("<img src=x"), "{path}: {page}");
        }
        let shown = |path: &str| pages.iter().find(|(known, _)| known == path).unwrap().1.clone();
        let job = shown(&format!("/jobs/{id}"));
        assert!(job.contains("KeyError: &lt;script&gt;alert(1)"), "the traceback is shown, as text: {job}");
        let answer = shown(&format!("/jobs/{id}/read/1/2?compare=1"));
        assert!(answer.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "the answer is shown, as text: {answer}");
        up.stop().await;
    });
}

#[test]
fn an_upload_of_another_site_or_to_a_rebound_name_stores_nothing() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let up = Up::start(directory.path(), vec![local()], settings()).await;
        let (pdf, own) = (sample("tides.pdf"), up.address());
        for headers in [
            format!("host: {own}\r\norigin: http://evil.example\r\n"),
            format!("host: {own}\r\norigin: null\r\n"),
            format!("host: {own}\r\nsec-fetch-site: cross-site\r\n"),
            format!("host: evil.example:{}\r\norigin: http://evil.example:{}\r\n", own.port(), own.port()),
        ] {
            let answer = raw(&up, upload(&headers, &[("a.pdf", &pdf)])).await;
            assert!(answer.starts_with("HTTP/1.1 403"), "{headers}: {answer}");
        }
        assert_eq!(up.api("GET", "/jobs", Value::Null).await.json()["jobs"], json!([]));
        assert_eq!(fs::read_dir(directory.path().join("incoming")).unwrap().count(), 0);
        // The same from the page itself is taken.
        let answer = raw(&up, upload(&format!("host: {own}\r\norigin: http://{own}\r\n"), &[("a.pdf", &pdf)])).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        up.stop().await;
    });
}

#[test]
fn an_upload_that_comes_too_slowly_is_cut_and_removed() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { body_timeout: Duration::from_millis(200), ..Up::options() };
        let up = Up::start_with(directory.path(), vec![local()], settings(), options).await;
        let pdf = sample("tides.pdf");
        let mut request = upload(&format!("host: {}\r\n", up.address()), &[("a.pdf", &pdf)]);
        // The rest never comes.
        request.truncate(request.len() - 2_000);
        let answer = raw(&up, request).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert_eq!(up.api("GET", "/jobs", Value::Null).await.json()["jobs"], json!([]));
        assert_eq!(fs::read_dir(directory.path().join("incoming")).unwrap().count(), 0);
        up.stop().await;
    });
}

#[test]
fn guessed_tokens_lock_out_other_guesses_by_every_way_in_and_say_nothing() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { token: Token::new("the-token-of-this-server").ok(), ..Up::options() };
        let up = Up::start_with(directory.path(), vec![local()], settings(), options).await;
        let host = up.address();
        let get = |path: &str, header: &str| {
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{header}connection: close\r\n\r\n")
        };
        let guesses = [
            get("/api/v1/jobs", "authorization: Bearer the-token-of-this-serves\r\n"),
            get("/jobs?token=the-token-of-this-serve", ""),
            get("/api/v1/jobs", "authorization: Bearer \r\n"),
            get("/jobs?token=", ""),
            get("/live?on=sys&token=x", ""),
        ];
        for guess in guesses {
            let answer = raw(&up, guess.clone().into_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 401"), "{guess}: {answer}");
            assert!(!answer.contains("the-token-of-this-serve"), "what was guessed is not repeated: {answer}");
        }
        // Behind a proxy, another visitor has the same address and the right token: it passes, and forgives nothing.
        for (given, status) in [("the-token-of-this-server", ["200", "303"]), ("the-token-of-this-serves", ["429"; 2])]
        {
            let ways = [
                get("/api/v1/jobs", &format!("authorization: Bearer {given}\r\n")),
                get(&format!("/jobs?token={given}"), ""),
            ];
            for (way, status) in ways.into_iter().zip(status) {
                let answer = raw(&up, way.into_bytes()).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{given}: {answer}");
                assert_eq!(answer.contains("retry-after:"), status == "429", "{given}: {answer}");
            }
        }
        // A session's cookie cannot be guessed, and names no token.
        let forged = get("/jobs", &format!("cookie: tidegate-{}=the-token-of-this-server\r\n", host.port()));
        let answer = raw(&up, forged.into_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        up.stop().await;
    });
}
