//! One line of a request file, and one of a result file. Pure.

use std::ops::Range;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::path::{self, Paths};
use crate::call_error::CallError;
use crate::provider::Dialect;
use crate::question::Usage;

/// How much of a path is shown that is refused.
const URL_SHOWN_MAX: usize = 80;

/// Whose lines they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `{"custom_id":…,"method":"POST","url":…,"body":{…}}`
    OpenAi,
    /// `{"key":…,"request":{…}}`
    Gemini,
}

/// A request as its line has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) format: Format,
    pub(super) id: String,
    /// Empty for Gemini's, whose address is made from the model.
    pub(super) url: String,
    /// The body's bytes, as they stand in the line.
    pub(super) body: Vec<u8>,
}

impl RequestLine {
    /// Reads a line; what is wrong with it otherwise.
    pub(super) fn read(line: &[u8]) -> Result<RequestLine, String> {
        let fields = Fields::scan(line)?;
        let text = |name: &str| match fields.get(name).map(|span| serde_json::from_slice(&line[span])) {
            Some(Ok(Value::String(text))) => Ok(Some(text)),
            Some(_) => Err(format!("its {name:?} is not a text")),
            None => Ok(None),
        };
        let object = |name: &str| match fields.get(name).map(|span| &line[span]) {
            Some(bytes) if bytes.first() == Some(&b'{') => Ok(bytes.to_vec()),
            Some(_) => Err(format!("its {name:?} is not an object")),
            None => Err(format!("it has no {name:?}")),
        };
        if let Some(id) = text("custom_id")? {
            if text("method")?.is_some_and(|method| !method.eq_ignore_ascii_case("POST")) {
                return Err("its \"method\" must be \"POST\"".to_owned());
            }
            let url = text("url")?.ok_or("it has no \"url\", such as \"/v1/chat/completions\"")?;
            path::check(&url).map_err(|reason| {
                let start: String = url.chars().take(URL_SHOWN_MAX).collect();
                format!("its \"url\" is {start:?}{}: {reason}", if start.len() < url.len() { "…" } else { "" })
            })?;
            return Ok(RequestLine { format: Format::OpenAi, id, url, body: object("body")? });
        }
        if let Some(id) = text("key")? {
            return Ok(RequestLine { format: Format::Gemini, id, url: String::new(), body: object("request")? });
        }
        Err("it has neither a \"custom_id\" (OpenAI's batches) nor a \"key\" (Gemini's)".to_owned())
    }
}

impl RequestLine {
    /// Checks that the provider understands such a line; the reason if not. A request in another provider's form would be paid
    /// for, and its answer could not be read.
    pub(super) fn fits(&self, dialect: Dialect, paths: Paths) -> Result<(), String> {
        let url = self.url.split('?').next().unwrap_or_default().trim_end_matches('/');
        let is_openai =
            ["/completions", "/responses", "/embeddings", "/moderations"].iter().any(|end| url.ends_with(end));
        let of = match (self.format, dialect) {
            (Format::Gemini, Dialect::Gemini) => return Ok(()),
            (Format::Gemini, _) => "Gemini's form (\"key\" and \"request\")".to_owned(),
            (Format::OpenAi, Dialect::Anthropic) if !url.ends_with("/messages") => {
                format!("not for Anthropic's \"/v1/messages\" but for {:?}", self.url)
            }
            (Format::OpenAi, Dialect::Gemini) if is_openai || url.ends_with("/messages") => {
                format!("for {:?}, which is not a path of Gemini's", self.url)
            }
            (Format::OpenAi, _) => return self.has_known_path(dialect, paths),
        };
        Err(format!("it is {of}, and the provider is {}", dialect.name()))
    }

    fn has_known_path(&self, dialect: Dialect, paths: Paths) -> Result<(), String> {
        let known = path::known(dialect);
        if paths == Paths::Any || known.contains(&self.url.as_str()) {
            return Ok(());
        }
        match known {
            [] => Err(format!("requests to {} have a \"key\" and a \"request\", and name no path", dialect.name())),
            known => Err(format!("its \"url\" is {:?}; requests may go to {} alone", self.url, known.join(", "))),
        }
    }
}

/// What a result says about its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResultLine {
    pub(super) id: String,
    pub(super) succeeded: bool,
}

impl ResultLine {
    /// Reads a line that this or another program wrote: an error may stand in `error`, or in a response whose status is
    /// one.
    pub(super) fn read(line: &[u8]) -> Result<ResultLine, String> {
        let fields = Fields::scan(line)?;
        let value = |name: &str| -> Value {
            let parsed = fields.get(name).and_then(|span| serde_json::from_slice(&line[span]).ok());
            parsed.unwrap_or_default()
        };
        let (Value::String(id), error) = (
            match value("custom_id") {
                Value::Null => value("key"),
                id => id,
            },
            value("error"),
        ) else {
            return Err("it has neither a \"custom_id\" nor a \"key\"".to_owned());
        };
        // A file of requests must not be taken for results, of which all have failed.
        if fields.get("response").is_none() && fields.get("error").is_none() {
            return Err("it has neither a \"response\" nor an \"error\"".to_owned());
        }
        // The response may be large and need not be understood, but for its status.
        let response = fields.get("response").map(|span| &line[span]).filter(|bytes| *bytes != b"null");
        let status = response.and_then(|bytes| {
            let span = Fields::scan(bytes).ok()?.get("status_code")?;
            serde_json::from_slice::<u16>(&bytes[span]).ok()
        });
        let succeeded =
            error.is_null() && response.is_some() && status.is_none_or(|status| (200..300).contains(&status));
        Ok(ResultLine { id, succeeded })
    }
}

/// Where the values of an object's fields stand in its text, so that what is not ours to change is not rewritten.
pub(super) struct Fields {
    spans: Vec<(String, Range<usize>)>,
}

impl Fields {
    pub(super) fn scan(text: &[u8]) -> Result<Fields, String> {
        // Once as a whole, so that what follows can only meet valid JSON.
        serde_json::from_slice::<IgnoredAny>(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let skip = |mut at: usize| {
            while text.get(at).is_some_and(u8::is_ascii_whitespace) {
                at += 1;
            }
            at
        };
        let mut at = skip(0);
        if text.get(at) != Some(&b'{') {
            return Err("it is not an object".to_owned());
        }
        let mut spans = Vec::new();
        loop {
            at = skip(at + 1);
            if text.get(at) != Some(&b'"') {
                return Ok(Fields { spans });
            }
            let (name, end) = value_at::<String>(text, at).ok_or("it is not JSON")?;
            // A colon stands between, as the whole is valid.
            let from = skip(skip(end) + 1);
            let (_, to) = value_at::<IgnoredAny>(text, from).ok_or("it is not JSON")?;
            spans.push((name, from..to));
            at = skip(to);
        }
    }

    /// The last of that name, as everybody reads it.
    pub(super) fn get(&self, name: &str) -> Option<Range<usize>> {
        self.spans.iter().rev().find(|(known, _)| known == name).map(|(_, span)| span.clone())
    }
}

/// The value that begins at `at`, and where it ends.
fn value_at<'t, T: serde::Deserialize<'t>>(text: &'t [u8], at: usize) -> Option<(T, usize)> {
    let mut values = serde_json::Deserializer::from_slice(text.get(at..)?).into_iter::<T>();
    let value = values.next()?.ok()?;
    Some((value, at + values.byte_offset()))
}

/// An id by which a set can remember it: 128 bits of its SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct IdHash(pub(super) u128);

impl IdHash {
    pub(super) fn of(id: &str) -> IdHash {
        let digest = Sha256::digest(id.as_bytes());
        IdHash(u128::from_be_bytes(digest[..16].try_into().expect("a digest has 32 bytes")))
    }
}

/// An answer, as it came.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) request_id: Option<String>,
    /// JSON without a line's end in it.
    pub(super) body: Vec<u8>,
    pub(super) usage: Option<Usage>,
}

/// A line of the result file, its end included.
pub(super) fn result_line(format: Format, id: &str, outcome: &Result<Answered, CallError>) -> Vec<u8> {
    let quoted = Value::from(id).to_string();
    let error = |error: &CallError| json!({"code": error.code(), "message": error.to_string()}).to_string();
    let mut line = match format {
        Format::OpenAi => format!("{{\"id\":\"batch_req_{:032x}\",\"custom_id\":{quoted},", IdHash::of(id).0),
        Format::Gemini => format!("{{\"key\":{quoted},"),
    }
    .into_bytes();
    match (format, outcome) {
        (Format::OpenAi, Ok(answered)) => {
            let request_id = Value::from(answered.request_id.as_deref());
            let head =
                format!("\"response\":{{\"status_code\":{},\"request_id\":{request_id},\"body\":", answered.status);
            line.extend_from_slice(head.as_bytes());
            line.extend_from_slice(&answered.body);
            line.extend_from_slice(b"},\"error\":null}\n");
        }
        (Format::OpenAi, Err(why)) => {
            let rest = format!("\"response\":null,\"error\":{}}}\n", error(why));
            line.extend_from_slice(rest.as_bytes());
        }
        (Format::Gemini, Ok(answered)) => {
            line.extend_from_slice(b"\"response\":");
            line.extend_from_slice(&answered.body);
            line.extend_from_slice(b"}\n");
        }
        (Format::Gemini, Err(why)) => line.extend_from_slice(format!("\"error\":{}}}\n", error(why)).as_bytes()),
    }
    line
}

/// Valid JSON on one line: line ends can only stand between its values.
pub(super) fn on_one_line(body: &[u8]) -> Vec<u8> {
    body.iter().map(|&byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_passed_on_byte_for_byte() {
        let line = br#" {"method" : "POST", "custom_id":"r\u0031", "body" : {"z": 1.0, "a": 12345678901234567890123, "s":"}\"{"} , "url":"/v1/x"} "#;
        let request = RequestLine::read(line).unwrap();
        assert_eq!((&*request.id, &*request.url), ("r1", "/v1/x"));
        assert_eq!(request.body, br#"{"z": 1.0, "a": 12345678901234567890123, "s":"}\"{"}"#);
    }

    #[test]
    fn geminis_lines_are_read_too() {
        let request = RequestLine::read(br#"{"key":"k","request":{"contents":[]}}"#).unwrap();
        assert_eq!((request.format, &*request.id, &*request.body), (Format::Gemini, "k", &br#"{"contents":[]}"#[..]));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let cases: [(&[u8], &str); 11] = [
            (b"", "it is not JSON"),
            (b"{\"custom_id\":", "it is not JSON"),
            (b"[1]", "it is not an object"),
            (b"{}", "neither a \"custom_id\""),
            (br#"{"custom_id":7,"url":"/x","body":{}}"#, "its \"custom_id\" is not a text"),
            (br#"{"custom_id":"a","body":{}}"#, "it has no \"url\""),
            (br#"{"custom_id":"a","url":"http://x/","body":{}}"#, "must be a path"),
            (br#"{"custom_id":"a","url":"/v1/a b","body":{}}"#, "its \"url\" is \"/v1/a b\": a path has no spaces"),
            (
                br#"{"custom_id":"a","url":"/v1/\u001b[2J","body":{}}"#,
                "its \"url\" is \"/v1/\\u{1b}[2J\": a path has no control",
            ),
            (br#"{"custom_id":"a","url":"/x","method":"GET","body":{}}"#, "must be \"POST\""),
            (br#"{"custom_id":"a","url":"/x","body":[]}"#, "its \"body\" is not an object"),
        ];
        for (line, expected) in cases {
            let error = RequestLine::read(line).unwrap_err();
            assert!(error.contains(expected), "{}: {error}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn results_of_every_kind_are_read_back() {
        let answered = Answered { status: 200, request_id: Some("q".into()), body: b"{\"a\":1}".to_vec(), usage: None };
        let failed = CallError::Declined { reason: "no \"way\"".into() };
        for format in [Format::OpenAi, Format::Gemini] {
            for (outcome, succeeded) in [(Ok(answered.clone()), true), (Err(failed.clone()), false)] {
                let line = result_line(format, "id \"1\"", &outcome);
                assert!(line.ends_with(b"}\n"));
                assert_eq!(ResultLine::read(&line).unwrap(), ResultLine { id: "id \"1\"".to_owned(), succeeded });
            }
        }
        let foreign = br#"{"id":"b","custom_id":"c","response":{"status_code":400,"body":{"error":{}}},"error":null}"#;
        assert!(!ResultLine::read(foreign).unwrap().succeeded);
        assert!(ResultLine::read(b"{\"id\":1}").is_err());
        for request in [
            &br#"{"custom_id":"a","method":"POST","url":"/v1/x","body":{"response":1}}"#[..],
            br#"{"key":"k","request":{"contents":[]}}"#,
        ] {
            assert!(ResultLine::read(request).unwrap_err().contains("neither a \"response\""));
        }
    }

    #[test]
    fn a_body_on_several_lines_becomes_one() {
        assert_eq!(on_one_line(b"{\r\n \"a\": \"b\\n\"\n}"), b"{   \"a\": \"b\\n\" }");
    }
}
