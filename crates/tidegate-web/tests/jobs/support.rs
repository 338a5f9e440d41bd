//! A server with jobs, and a client that acts as a browser does.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_batch::plan::Prices;
use tidegate_batch::{Caller, Dialect, Local, Parameters, Provider, Quotas, Remote, Retries};
use tidegate_http::Client;
use tidegate_limit::{Admission, Backoff};
use tidegate_loop::{JoinHandle, sleep, spawn};
use tidegate_pdf::Reader;
use tidegate_rehearsal::Handle;
use tidegate_web::jobs::{JobId, JobOptions, Jobs, Settings, Upstream};
use tidegate_web::{Options, Site, Stopper};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn sample(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name);
    std::fs::read(path).unwrap()
}

/// Runs `test` on a loop of its own.
pub(crate) fn on_loop<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + 'static) {
    tidegate_loop::run(async move { test().await }).unwrap();
}

pub(crate) fn settings() -> Settings {
    let reader = Reader::new().program(std::env::current_exe().unwrap(), ["--exact", "pdf_child"]);
    Settings { reader, ..Settings::default() }
}

/// The upstream that is always there.
pub(crate) fn local() -> Upstream {
    let quotas = Quotas::default();
    let gate = Admission::from(quotas.gate().unwrap());
    let shared = gate.clone();
    Upstream::new("local", "local", gate, quotas, move |_, _| Ok(Rc::new(Local::new(&shared)) as Rc<dyn Provider>))
}

/// A mock server as an upstream.
pub(crate) fn mock(server: &Handle, quotas: Quotas) -> Upstream {
    mock_at(&server.base_url(), quotas)
}

/// A server that speaks as OpenAI's does as an upstream.
pub(crate) fn mock_at(base: &str, quotas: Quotas) -> Upstream {
    let gate = Admission::from(quotas.gate().unwrap());
    let (shared, base) = (gate.clone(), format!("{base}/v1"));
    let caller = move || {
        let backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(20)).with_retries(1);
        let caller = Caller::new(&shared, Dialect::OpenAi, &base).map_err(|error| error.to_string())?;
        Ok::<Caller, String>(caller.with_retries(Retries { backoff, ..Retries::default() }))
    };
    let of_requests = caller.clone();
    let connect = move |model: &str, options: &JobOptions| {
        let caller = caller()?;
        let parameters =
            Parameters { model: model.into(), max_tokens: options.max_tokens, temperature: options.temperature };
        Ok(Rc::new(Remote::new(caller, parameters)) as Rc<dyn Provider>)
    };
    let prices = Prices { input: 1.0, output: 2.0 };
    Upstream::new("mock", "openai", gate, quotas, connect)
        .model("any")
        .prices(Some(prices))
        .requests(Dialect::OpenAi, of_requests)
}

/// A server that is up.
pub(crate) struct Up {
    pub(crate) jobs: Jobs,
    address: SocketAddr,
    base: String,
    client: Client,
    stopper: Stopper,
    running: JoinHandle<std::io::Result<tidegate_http::Stopped>>,
}

pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) disposition: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Answered {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The message of an error of the API.
    pub(crate) fn error(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

impl Up {
    pub(crate) async fn start(directory: &Path, upstreams: Vec<Upstream>, settings: Settings) -> Up {
        Up::start_with(directory, upstreams, settings, Up::options()).await
    }

    pub(crate) fn options() -> Options {
        Options::new("127.0.0.1:0".parse().unwrap())
    }

    pub(crate) async fn start_with(
        directory: &Path,
        upstreams: Vec<Upstream>,
        settings: Settings,
        options: Options,
    ) -> Up {
        let jobs = Jobs::open(directory, upstreams, settings).await.unwrap();
        let mut site = Site::new();
        jobs.mount(&mut site);
        let server = site.bind(options).await.unwrap();
        let (address, stopper) = (server.address(), server.stopper());
        let base = format!("http://{address}");
        Up { jobs, address, base, client: Client::new(), stopper, running: spawn(server.run()) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn send(&self, method: &str, path: &str, kind: &str, body: Vec<u8>) -> Answered {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", kind)
            .header("origin", &self.base)
            .body(tidegate_http::Body::from(body))
            .unwrap();
        let response = self.client.request(request).await.unwrap();
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (status, location, disposition) =
            (response.status().as_u16(), header("location"), header("content-disposition"));
        let body = response.into_body().bytes().await.unwrap().to_vec();
        Answered { status, location, disposition, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.send("GET", path, "text/plain", Vec::new()).await
    }

    /// A form, as a browser sends it.
    pub(crate) async fn form(&self, path: &str, fields: &str) -> Answered {
        self.send("POST", path, "application/x-www-form-urlencoded", fields.into()).await
    }

    pub(crate) async fn api(&self, method: &str, path: &str, body: Value) -> Answered {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.send(method, &format!("/api/v1{path}"), "application/json", body).await
    }

    /// Uploads files through the API and returns what it answered.
    pub(crate) async fn upload(&self, path: &str, files: &[(&str, &[u8])]) -> Answered {
        let (kind, body) = multipart(files);
        self.send("POST", path, kind, body).await
    }

    /// A draft of these files, once all of them have been read.
    pub(crate) async fn draft(&self, files: &[(&str, &[u8])]) -> JobId {
        let answered = self.upload("/api/v1/jobs", files).await;
        assert_eq!(answered.status, 200, "{}", answered.text());
        let id: JobId = serde_json::from_value(answered.json()["id"].clone()).unwrap();
        self.until(id, |job| job["files"].as_array().unwrap().iter().all(|file| file["status"] != "unread")).await;
        id
    }

    /// Starts a draft with an upstream.
    pub(crate) async fn begin(&self, id: JobId, upstream: &str) {
        let change = json!({"upstream": upstream, "model": if upstream == "mock" { "any" } else { "" }});
        let changed = self.api("PATCH", &format!("/jobs/{id}"), change).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        let started = self.api("POST", &format!("/jobs/{id}/start"), Value::Null).await;
        assert_eq!(started.status, 200, "{}", started.text());
    }

    /// Starts a draft of requests as they are.
    pub(crate) async fn begin_requests(&self, id: JobId) {
        let started = self.api("POST", &format!("/jobs/{id}/start"), Value::Null).await;
        assert_eq!(started.status, 200, "{}", started.text());
    }

    /// The job, as the API shows it.
    pub(crate) async fn job(&self, id: JobId) -> Value {
        self.api("GET", &format!("/jobs/{id}"), Value::Null).await.json()
    }

    /// Waits until the job is as it should be.
    pub(crate) async fn until(&self, id: JobId, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let revision = self.jobs.revision();
            let job = self.job(id).await;
            if is_so(&job) {
                return job;
            }
            assert!(began.elapsed() < PATIENCE, "still {job:#}");
            let timer = spawn(sleep(Duration::from_secs(5)));
            let changed = spawn({
                let jobs = self.jobs.clone();
                async move { jobs.changed(revision).await }
            });
            let _ = tidegate_loop::wait(&[timer, changed], tidegate_loop::When::FirstCompleted, None).await;
        }
    }

    /// Waits until the page has `count` versions.
    pub(crate) async fn until_versions(&self, id: JobId, file: u32, page: u32, count: usize) {
        let path = format!("/jobs/{id}/files/{file}/pages/{page}");
        let began = Instant::now();
        loop {
            let revision = self.jobs.revision();
            let shown = self.api("GET", &path, Value::Null).await.json();
            if shown["versions"].as_array().is_some_and(|versions| versions.len() == count) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "still {shown:#}");
            self.jobs.changed(revision).await;
        }
    }

    pub(crate) async fn until_state(&self, id: JobId, state: &str) -> Value {
        self.until(id, |job| job["state"] == state).await
    }

    /// Ends the server as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.jobs.stop(Duration::from_secs(10)).await;
        self.stopper.stop();
        self.running.await.unwrap().unwrap();
    }
}

/// A file of requests, each with an id and what is asked.
pub(crate) fn requests<'a>(asked: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let line = |(id, text): (&str, &str)| {
        let body = json!({"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": text}]});
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
    };
    asked.into_iter().map(line).collect::<String>().into_bytes()
}

pub(crate) fn multipart(files: &[(&str, &[u8])]) -> (&'static str, Vec<u8>) {
    let mut body = Vec::new();
    for (name, data) in files {
        body.extend(
            format!("--b0undary\r\nContent-Disposition: form-data; name=\"files\"; filename=\"{name}\"\r\n\r\n")
                .bytes(),
        );
        body.extend(*data);
        body.extend(b"\r\n");
    }
    body.extend(b"--b0undary--\r\n");
    ("multipart/form-data; boundary=b0undary", body)
}

/// The entries of a zip archive, read by another program.
pub(crate) fn unzip(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.zip");
    std::fs::write(&path, archive).unwrap();
    let script = "import sys,zipfile\nz=zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\nz.extractall(sys.argv[2])\nprint('\\n'.join(z.namelist()))";
    let out: PathBuf = directory.path().join("out");
    let ran =
        std::process::Command::new("python3").args(["-X", "utf8", "-c", script]).arg(&path).arg(&out).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let names = String::from_utf8(ran.stdout).unwrap();
    names.lines().map(|name| (name.to_owned(), std::fs::read(out.join(name)).unwrap())).collect()
}
