//! What the fuzz targets call; see `fuzz/` at the root of the repository.

use std::io::Cursor;

use super::body;
use super::input::Lines;
use super::line::{ResultLine, on_one_line};
use crate::provider::Dialect;

/// A file of requests, and the same bytes as a file of results: each line is read or refused, and none is lost.
pub fn lines(data: &[u8]) {
    let mut requests = Lines::new(Box::new(Cursor::new(data.to_vec())));
    let mut last = 0;
    while let Some(request) = requests.next_request().expect("memory can be read") {
        let number = match request {
            Ok((number, request)) => {
                let value: serde_json::Value = serde_json::from_slice(&request.body).unwrap_or_default();
                // Whatever is accepted as a path stays on its host.
                let url: http::Uri = format!("http://localhost{}", request.url).parse().expect("it is a URL");
                assert_eq!(url.host(), Some("localhost"), "{:?}", request.url);
                for dialect in [Dialect::OpenAi, Dialect::Gemini, Dialect::Anthropic] {
                    let path = body::path_below("http://localhost/v1", &request.url);
                    let _ = body::estimate(dialect, path, &value);
                    let _ = body::check(dialect, path, &request.body);
                }
                let line = on_one_line(&request.body);
                assert!(!line.contains(&b'\n'), "{line:?}");
                number
            }
            Err(bad) => bad.line,
        };
        assert!(number > last, "line {number} after line {last}");
        last = number;
    }
    for line in data.split(|&byte| byte == b'\n') {
        let _ = ResultLine::read(line);
    }
}
