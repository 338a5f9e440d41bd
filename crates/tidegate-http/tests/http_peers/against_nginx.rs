//! The client against nginx.

use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use http::Request;
use tidegate_http::{Body, Client, Proxies, Roots};

use crate::support::{HUNDRED_MB, Made, Peak, Process, Scratch, free_port, matches, on_loop, pattern};

/// An nginx with a private configuration on free ports.
struct Nginx {
    process: Process,
    scratch: Scratch,
    http: u16,
    https: u16,
}

impl Nginx {
    fn start() -> Nginx {
        let scratch = Scratch::new();
        scratch.write_certificates();
        fs::create_dir(scratch.file("files")).unwrap();
        fs::write(scratch.file("files/hello"), "hello\n").unwrap();
        // Another program may take a port before nginx binds it.
        for _ in 0..10 {
            let (http, https) = (free_port(), free_port());
            fs::write(scratch.file("nginx.conf"), configuration(&scratch, http, https)).unwrap();
            if let Some(process) = launch(&scratch, http) {
                return Nginx { process, scratch, http, https };
            }
        }
        panic!("nginx does not start:\n{}", fs::read_to_string(scratch.file("error.log")).unwrap_or_default());
    }

    /// Ends it without a word to its connections, and starts another on the same ports.
    fn restart(&mut self) {
        self.process.end();
        self.process = launch(&self.scratch, self.http).expect("nginx starts again");
    }

    fn client(&self) -> Client {
        let builder = Client::builder().proxies(Proxies::none()).roots(Roots::None);
        builder.ca_file(self.scratch.file("ca.pem")).build().unwrap()
    }

    /// Over HTTP and over HTTPS.
    fn bases(&self) -> [String; 2] {
        [format!("http://127.0.0.1:{}", self.http), format!("https://localhost:{}", self.https)]
    }
}

fn configuration(scratch: &Scratch, http: u16, https: u16) -> String {
    let dir = scratch.path().display();
    format!(
        "daemon off; master_process off; pid {dir}/nginx.pid; error_log {dir}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; default_type text/plain; gzip on; gzip_types text/plain; gzip_min_length 100;
    client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;
    scgi_temp_path {dir}/s; client_max_body_size 0; keepalive_requests 100000;
    ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem;
    server {{
        listen 127.0.0.1:{http} backlog=1024; listen 127.0.0.1:{https} ssl; root {dir}/files;
        location /up/ {{ dav_methods PUT DELETE; create_full_put_path on; }}
        location /moved {{ return 302 /hello; }}
    }}
}}"
    )
}

/// `None`: it ended at once, for a port was taken.
fn launch(scratch: &Scratch, http: u16) -> Option<Process> {
    let mut command = Command::new("nginx");
    command.arg("-c").arg(scratch.file("nginx.conf")).arg("-p").arg(scratch.path());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Process::spawn(command, "nginx");
    while !process.exited() {
        if TcpStream::connect(("127.0.0.1", http)).is_ok() {
            return Some(process);
        }
        std::thread::yield_now();
    }
    None
}

async fn text(client: &Client, url: &str) -> String {
    client.get(url).await.unwrap().into_body().text().await.unwrap()
}

#[test]
fn one_connection_is_kept_over_many_requests() {
    on_loop(async {
        let nginx = Nginx::start();
        for base in nginx.bases() {
            let client = nginx.client();
            for _ in 0..200 {
                assert_eq!(text(&client, &format!("{base}/hello")).await, "hello\n");
            }
            let stats = client.stats();
            assert_eq!((stats.total, stats.reused, stats.idle), (1, 199, 1), "{base}");
        }
    });
}

#[test]
fn hundred_megabytes_come_down_in_bounded_memory() {
    let nginx = Nginx::start();
    fs::write(nginx.scratch.file("files/large"), pattern(0, HUNDRED_MB)).unwrap();
    on_loop(async move {
        for base in nginx.bases() {
            let client = nginx.client();
            // Once before, so that what is made once is not counted.
            text(&client, &format!("{base}/hello")).await;
            let peak = Peak::start();
            // Its own encoding: nginx would pack it otherwise.
            let request = Request::get(format!("{base}/large")).header("accept-encoding", "identity").body(()).unwrap();
            let mut body = client.request(request).await.unwrap().into_body();
            let mut at = 0;
            while let Some(piece) = body.chunk().await.unwrap() {
                assert!(matches(at, &piece), "{base}: wrong byte after {at}");
                at += piece.len();
            }
            assert_eq!(at, HUNDRED_MB);
            peak.assert_bounded(&format!("down from nginx, {base}"));
            assert_eq!(client.stats().idle, 1);
        }
    });
}

#[test]
fn hundred_megabytes_go_up_in_bounded_memory_with_a_length_and_in_chunks() {
    on_loop(async {
        let nginx = Nginx::start();
        for (number, base) in nginx.bases().into_iter().enumerate() {
            for chunked in [false, true] {
                let client = nginx.client();
                text(&client, &format!("{base}/hello")).await;
                let peak = Peak::start();
                let made = Made { at: 0, end: HUNDRED_MB };
                let body = if chunked { Body::stream(made) } else { Body::sized_stream(HUNDRED_MB as u64, made) };
                let name = format!("up/{number}-{chunked}");
                let response =
                    client.request(Request::put(format!("{base}/{name}")).body(body).unwrap()).await.unwrap();
                assert_eq!(response.status(), 201);
                response.into_body().bytes().await.unwrap();
                peak.assert_bounded(&format!("up to nginx, {base}, chunked={chunked}"));
                assert_eq!(client.stats().idle, 1);
                let file = nginx.scratch.file("files").join(name);
                let stored = fs::read(&file).unwrap();
                assert!(stored.len() == HUNDRED_MB && matches(0, &stored));
                fs::remove_file(file).unwrap();
            }
        }
    });
}

#[test]
fn what_nginx_packs_and_sends_in_chunks_is_unpacked() {
    on_loop(async {
        let nginx = Nginx::start();
        let words = "packed by nginx, ".repeat(100_000);
        fs::write(nginx.scratch.file("files/words"), &words).unwrap();
        for base in nginx.bases() {
            let client = nginx.client();
            let response = client.get(&format!("{base}/words")).await.unwrap();
            assert_eq!(response.headers()["transfer-encoding"], "chunked");
            assert!(response.into_body().text().await.unwrap() == words);
            assert_eq!(client.stats().idle, 1);
        }
    });
}

#[test]
fn connections_killed_with_a_restart_are_replaced_without_an_error() {
    on_loop(async {
        let mut nginx = Nginx::start();
        let client = nginx.client();
        let url = format!("{}/hello", nginx.bases()[0]);
        for round in 1..=3 {
            assert_eq!(text(&client, &url).await, "hello\n");
            assert_eq!(client.stats().total, round);
            nginx.restart();
        }
    });
}

#[test]
fn redirection_of_nginx_is_followed_when_asked_for() {
    on_loop(async {
        let nginx = Nginx::start();
        let url = format!("{}/moved", nginx.bases()[0]);
        assert_eq!(nginx.client().get(&url).await.unwrap().status(), 302);
        let following = Client::builder().proxies(Proxies::none()).redirects(3).build().unwrap();
        assert_eq!(text(&following, &url).await, "hello\n");
    });
}

#[test]
fn five_hundred_requests_at_once_share_fifty_connections() {
    on_loop(async {
        let nginx = Nginx::start();
        let url = format!("{}/hello", nginx.bases()[0]);
        let client = Client::builder().proxies(Proxies::none()).connections_per_host(50).build().unwrap();
        let tasks: Vec<_> = (0..500)
            .map(|_| {
                let (client, url) = (client.clone(), url.clone());
                tidegate_loop::spawn(async move { text(&client, &url).await })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), "hello\n");
        }
        let stats = client.stats();
        assert!(stats.total <= 50, "{stats:?}");
        assert_eq!((stats.total + stats.reused, stats.waiting, stats.in_use), (500, 0, 0));
    });
}
