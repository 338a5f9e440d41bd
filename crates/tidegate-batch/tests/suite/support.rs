//! A server that does as it is told, PDFs made on the spot, and runs set up in a line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_batch::{
    Caller, Dialect, Explain, Explanations, Options, Parameters, Prompt, Quotas, Remote, Report, Retries, Store,
    find_pdfs,
};
use tidegate_limit::{Backoff, Gate};
use tidegate_loop::net::TcpListener;
use tidegate_loop::{JoinHandle, spawn};
use tidegate_pdf::Reader;

/// What the server does with a request.
pub(crate) enum Act {
    /// Answers with this status and body.
    Say(u16, String),
    /// The same, perhaps not UTF-8.
    SayBytes(u16, Vec<u8>),
    /// The same with a header.
    SayWith(u16, (&'static str, &'static str), String),
    /// Answers so when that has happened.
    Hold(Arc<tidegate_sync::Event>, &'static str),
    /// Never answers.
    Hang,
}

/// A request, as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    /// What was asked, as text.
    pub(crate) text: String,
}

impl Seen {
    /// The page that is asked about: prompts of these tests say `PAGE<n>.`.
    pub(crate) fn page(&self) -> u32 {
        let tail = self.text.split("PAGE<").nth(1).unwrap_or("0>");
        tail.split('>').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

type Script = Arc<dyn Fn(usize, &Seen) -> Act + Send + Sync>;

pub(crate) struct Server {
    pub(crate) base: String,
    log: Arc<Mutex<Vec<Seen>>>,
    running: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    log: Arc<Mutex<Vec<Seen>>>,
    script: Script,
}

impl Server {
    /// A server whose `script` is asked what to do with the n-th request, from 0.
    pub(crate) async fn start(script: impl Fn(usize, &Seen) -> Act + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let shared = Shared { log: Arc::clone(&log), script: Arc::new(script) };
        let router = Router::new().fallback(handle).with_state(shared);
        let server = tidegate_http::serve(listener, router);
        let running = spawn(async move {
            let _ = server.run().await;
        });
        Server { base, log, running }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.log.lock().unwrap().clone()
    }

    /// How often each page was asked about.
    pub(crate) fn pages(&self) -> BTreeMap<u32, usize> {
        let mut pages = BTreeMap::new();
        for seen in self.seen() {
            *pages.entry(seen.page()).or_default() += 1;
        }
        pages
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.cancel();
    }
}

async fn handle(State(shared): State<Shared>, request: axum::extract::Request) -> Response {
    let (head, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = text_of(&body);
    let seen = Seen { path: head.uri.path().into(), headers: head.headers, body, text };
    let number = {
        let mut log = shared.log.lock().unwrap();
        log.push(seen.clone());
        log.len() - 1
    };
    let mut act = (shared.script)(number, &seen);
    if let Act::Hold(event, text) = act {
        event.wait().await;
        act = answer(text);
    }
    let (status, header, body) = match act {
        Act::Hold(..) => unreachable!("dealt with above"),
        Act::Say(status, body) => (status, None, body.into_bytes()),
        Act::SayBytes(status, body) => (status, None, body),
        Act::SayWith(status, header, body) => (status, Some(header), body.into_bytes()),
        Act::Hang => return std::future::pending().await,
    };
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    if let Some((name, value)) = header {
        response = response.header(name, value);
    }
    response.body(Body::from(body)).unwrap()
}

fn text_of(body: &Value) -> String {
    let content = &body["messages"][0]["content"];
    let parts = content.as_array().or_else(|| body["contents"][0]["parts"].as_array());
    match parts {
        Some(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        None => content.as_str().unwrap_or_default().into(),
    }
}

/// An answer in OpenAI's shape.
pub(crate) fn answer(text: &str) -> Act {
    let body = json!({
        "model": "test-1",
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    });
    Act::Say(200, body.to_string())
}

/// An error in OpenAI's shape.
pub(crate) fn error(status: u16, message: &str, code: &str) -> Act {
    Act::Say(status, json!({"error": {"message": message, "type": "error", "code": code}}).to_string())
}

/// A PDF with a page for each text, in Helvetica.
pub(crate) fn pdf(pages: &[String]) -> Vec<u8> {
    let mut objects: Vec<String> = Vec::new();
    let kids: Vec<String> = (0..pages.len()).map(|at| format!("{} 0 R", 4 + at * 2)).collect();
    objects.push("<< /Type /Catalog /Pages 2 0 R >>".into());
    objects.push(format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), pages.len()));
    objects.push("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".into());
    for (at, text) in pages.iter().enumerate() {
        let content = 5 + at * 2;
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 420 300] /Contents {content} 0 R \
             /Resources << /Font << /F1 3 0 R >> >> >>"
        ));
        let lines: String = text.split('\n').map(|line| format!("({line}) Tj T* ")).collect();
        let stream = format!("BT /F1 11 Tf 14 TL 30 260 Td {lines}ET");
        objects.push(format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()));
    }
    let mut out = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (at, object) in objects.iter().enumerate() {
        offsets.push(out.len());
        out.extend(format!("{} 0 obj\n{object}\nendobj\n", at + 1).bytes());
    }
    let start = out.len();
    out.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).bytes());
    offsets.iter().for_each(|offset| out.extend(format!("{offset:010} 00000 n \n").bytes()));
    out.extend(format!("trailer << /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1).bytes());
    out
}

/// A file of so many pages, each a few sentences.
pub(crate) fn write_pdf(folder: &Path, name: &str, pages: usize) -> PathBuf {
    let path = folder.join(name);
    let text = |page: usize| {
        format!(
            "The harbour keeps a book of ships, and this is entry number {page}.\nEvery ship needs a tug and a berth before \
             it may enter.\nThe clerk writes down each ship before it passes the gate."
        )
    };
    std::fs::write(&path, pdf(&(1..=pages).map(text).collect::<Vec<_>>())).unwrap();
    path
}

pub(crate) fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name)
}

/// A file of the PDF reader's tests.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tidegate-pdf/tests/data").join(name)
}

pub(crate) fn reader() -> Reader {
    Reader::new().program(std::env::current_exe().unwrap(), ["--exact", "pdf_child"])
}

/// Retries without a wait worth mentioning.
pub(crate) fn hasty(retries: u32) -> Retries {
    let backoff = Backoff::new(Duration::from_micros(10), Duration::from_micros(10)).with_retries(retries);
    Retries { backoff, ..Retries::default() }
}

pub(crate) fn gate(quotas: &Quotas) -> Gate {
    quotas.gate().unwrap()
}

pub(crate) fn parameters() -> Parameters {
    Parameters { model: "test".into(), max_tokens: None, temperature: None }
}

/// A folder with a run in it.
pub(crate) struct Bench {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) quotas: Quotas,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("out")).unwrap();
        Bench { folder, quotas: Quotas::default() }
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    pub(crate) fn options(&self, inputs: &[PathBuf]) -> Options {
        let mut options = Options::new(find_pdfs(inputs).unwrap(), self.out());
        options.prompt = Prompt::parse("PAGE<{page}>. Explain.").unwrap();
        options.html_px = Some(64);
        options
    }

    /// A run against `server`.
    pub(crate) fn explain(&self, options: Options, server: &Server) -> Explain {
        let gate = gate(&self.quotas);
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(2));
        let provider = Rc::new(Remote::new(caller, parameters()));
        let store = Store::open(self.out().join("results.db")).unwrap();
        Explain::new(options, provider, "openai", &gate, store).with_reader(reader())
    }

    pub(crate) async fn run(&self, options: Options, server: &Server) -> Report {
        self.explain(options, server).run().await.unwrap()
    }

    pub(crate) fn read(&self, stem: &str) -> Explanations {
        Explanations::read(&std::fs::read(self.out().join(format!("{stem}.json"))).unwrap()).unwrap()
    }
}
