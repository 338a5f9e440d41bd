//! A small curl on the loop: the body goes to standard output, everything else to standard error.
//!   cargo run -p tidegate-http --example fetch -- [-i] [-L] [-X METHOD] [-H 'name: value']… [-d DATA] [--cacert FILE] [--max-time SECONDS] URL…

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request};
use tidegate_http::{Body, Client, Timeouts};
use tidegate_loop::run;

#[derive(Default)]
struct Options {
    include: bool,
    follow: bool,
    method: Option<Method>,
    headers: Vec<(HeaderName, HeaderValue)>,
    data: Option<String>,
    authority: Option<String>,
    max_time: Option<Duration>,
    urls: Vec<String>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn std::error::Error>> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "-i" => options.include = true,
            "-L" => options.follow = true,
            "-X" => options.method = Some(value()?.parse()?),
            "-H" => {
                let header = value()?;
                let (name, value) = header.split_once(':').ok_or("a header is 'name: value'")?;
                options.headers.push((name.parse()?, value.trim().parse()?));
            }
            "-d" => options.data = Some(value()?),
            "--cacert" => options.authority = Some(value()?),
            "--max-time" => options.max_time = Some(Duration::try_from_secs_f64(value()?.parse()?)?),
            _ if argument.starts_with('-') => return Err(format!("unknown option {argument}").into()),
            _ => options.urls.push(argument),
        }
    }
    if options.urls.is_empty() {
        return Err("which URL?".into());
    }
    Ok(options)
}

async fn fetch(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = Client::builder().redirects(if options.follow { 10 } else { 0 });
    if let Some(file) = options.authority {
        builder = builder.ca_file(file);
    }
    let client = builder.timeouts(Timeouts { total: options.max_time, ..Timeouts::default() }).build()?;
    let default = if options.data.is_some() { Method::POST } else { Method::GET };
    let mut output = std::io::stdout().lock();
    for url in options.urls {
        let body = options.data.clone().map_or_else(Body::empty, Body::from);
        let mut request = Request::new(body);
        *request.method_mut() = options.method.clone().unwrap_or_else(|| default.clone());
        *request.uri_mut() = url.parse().map_err(|error| format!("{url}: {error}"))?;
        for (name, value) in &options.headers {
            request.headers_mut().append(name, value.clone());
        }
        let response = client.request(request).await?;
        if options.include {
            eprintln!("{:?} {}", response.version(), response.status());
            for (name, value) in response.headers() {
                eprintln!("{name}: {value:?}");
            }
        }
        let mut body = response.into_body();
        while let Some(piece) = body.chunk().await? {
            output.write_all(&piece)?;
        }
        output.flush()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let done = parse(std::env::args().skip(1)).and_then(|options| run(fetch(options))?);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fetch: {error}");
            ExitCode::FAILURE
        }
    }
}
