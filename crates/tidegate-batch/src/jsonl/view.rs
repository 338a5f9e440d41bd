//! Requests and results as people read them: one request of a file with its texts, one result with its answer. Pure, but for
//! finding lines in files.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::input::{Input, Lines};
use super::line::{Fields, IdHash, RequestLine, ResultLine};
use crate::provider::Dialect;
use crate::question::{Finish, Usage};

/// Bytes of an answer that is shown as JSON because it has no text.
const JSON_BYTES_MAX: usize = 4_000;

/// A request, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestView {
    /// Its line, from 1.
    pub line: u64,
    /// Its id.
    pub id: String,
    /// Its path; empty in Gemini's form, whose path is made from the model.
    pub url: String,
    /// The model that it names.
    pub model: Option<String>,
    /// What is said in it, in order; empty if it is not a conversation.
    pub turns: Vec<Turn>,
    /// Its last text, if it has exactly one that can be asked differently.
    pub prompt: Option<String>,
    /// Its body, as it stands in the line.
    pub body: String,
}

/// A message of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// `system`, `user`, `assistant`, …
    pub role: String,
    /// Its text; what is not text is named in brackets.
    pub text: String,
}

/// A file of requests, for readers.
#[derive(Clone, Debug)]
pub struct RequestFile(PathBuf);

impl RequestFile {
    /// The file at `path`; it is opened when it is read.
    pub fn new(path: impl Into<PathBuf>) -> RequestFile {
        RequestFile(path.into())
    }

    pub(super) fn line(&self, line: u64) -> io::Result<Option<RequestLine>> {
        let mut lines = Input::File(self.0.clone()).open()?;
        Ok(lines.nth(line)?.and_then(|bytes| RequestLine::read(&bytes).ok()))
    }

    /// Returns the request in a line; `None` if there is none. Blocking.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn request(&self, line: u64) -> io::Result<Option<RequestView>> {
        Ok(self.line(line)?.map(|request| view(line, &request)))
    }

    /// Returns the ids of the requests in these lines. Blocking.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn ids(&self, lines: &BTreeSet<u64>) -> io::Result<HashMap<u64, String>> {
        let mut read = Input::File(self.0.clone()).open()?;
        let mut ids = HashMap::new();
        while ids.len() < lines.len()
            && let Some(next) = read.next_request()?
        {
            if let Ok((line, request)) = next
                && lines.contains(&line)
            {
                ids.insert(line, request.id);
            }
        }
        Ok(ids)
    }

    /// Returns the lines whose request has `text` in its id or in what is said in it; case does not matter. Blocking.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn find(&self, text: &str) -> io::Result<Vec<u64>> {
        let text = text.to_lowercase();
        let mut lines = Input::File(self.0.clone()).open()?;
        let mut found = Vec::new();
        while let Some(next) = lines.next_request()? {
            let Ok((line, request)) = next else { continue };
            let view = view(line, &request);
            let said = std::iter::once(&view.id).chain(view.turns.iter().map(|turn| &turn.text));
            if said.into_iter().any(|said| said.to_lowercase().contains(&text)) {
                found.push(line);
            }
        }
        Ok(found)
    }
}

fn view(line: u64, request: &RequestLine) -> RequestView {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    RequestView {
        line,
        id: request.id.clone(),
        url: request.url.clone(),
        model: body.get("model").and_then(Value::as_str).map(str::to_owned),
        turns: turns(&body),
        prompt: prompt(&body).and_then(Value::as_str).map(str::to_owned),
        body: String::from_utf8_lossy(&request.body).into_owned(),
    }
}

fn turns(body: &Value) -> Vec<Turn> {
    let mut turns = Vec::new();
    let mut push = |role: &str, said: Option<&Value>| {
        let text = said.map(said_in).unwrap_or_default();
        if !text.is_empty() {
            turns.push(Turn { role: role.to_owned(), text });
        }
    };
    push("system", body.get("system").or_else(|| body.get("systemInstruction")).or_else(|| body.get("instructions")));
    for messages in ["messages", "contents", "input"].iter().filter_map(|name| body.get(name)?.as_array()) {
        for message in messages {
            let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
            push(role, message.get("content").or_else(|| message.get("parts")).or(Some(message)));
        }
    }
    for name in ["prompt", "input"] {
        push("user", body.get(name).filter(|value| value.is_string()));
    }
    turns
}

/// The texts in a message, a line each.
fn said_in(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(said_in).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n"),
        Value::Object(part) => match (part.get("text"), part.get("parts"), part.get("type").and_then(Value::as_str)) {
            (Some(text), ..) => said_in(text),
            (None, Some(parts), _) => said_in(parts),
            (None, None, Some(kind)) => format!("[{kind}]"),
            (None, None, None) => part.keys().next().map(|name| format!("[{name}]")).unwrap_or_default(),
        },
        _ => String::new(),
    }
}

/// The text of the last message, if that is the user's and nothing but one text.
fn prompt(body: &Value) -> Option<&Value> {
    let pointer = prompt_pointer(body)?;
    body.pointer(&pointer)
}

/// Where that text stands in the body.
pub(super) fn prompt_pointer(body: &Value) -> Option<String> {
    for name in ["messages", "contents", "input"] {
        let Some(messages) = body.get(name).and_then(Value::as_array) else { continue };
        let at = messages.len().checked_sub(1)?;
        let last = &messages[at];
        if last.get("role").and_then(Value::as_str).is_some_and(|role| role != "user") || !last.is_object() {
            return None;
        }
        let inner = if name == "contents" { "parts" } else { "content" };
        return match last.get(inner)? {
            Value::String(_) => Some(format!("/{name}/{at}/{inner}")),
            Value::Array(parts) if parts.len() == 1 && parts[0].get("text").is_some_and(Value::is_string) => {
                Some(format!("/{name}/{at}/{inner}/0/text"))
            }
            _ => None,
        };
    }
    let name = ["prompt", "input"].into_iter().find(|name| body.get(name).is_some_and(Value::is_string))?;
    Some(format!("/{name}"))
}

/// A result, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultView {
    /// The id of its request.
    pub id: String,
    /// The answer, or why there is none.
    pub outcome: Result<AnswerView, FailureView>,
}

/// An answer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerView {
    /// What was said, in Markdown; an answer without text is shown as JSON.
    pub text: String,
    /// What it cost, if it says so.
    pub usage: Option<Usage>,
    /// How it ended.
    pub finish: Finish,
    /// The model that answered, as it calls itself.
    pub model: Option<String>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureView {
    /// For programs.
    pub code: String,
    /// For people.
    pub reason: String,
}

impl ResultView {
    /// Reads a line of a result file; `None` if it is not one.
    #[must_use]
    pub fn read(line: &[u8], dialect: Dialect) -> Option<ResultView> {
        let ResultLine { id, succeeded } = ResultLine::read(line).ok()?;
        let fields = Fields::scan(line).ok()?;
        let response = fields.get("response").map(|span| &line[span]).unwrap_or(b"null");
        let outcome = match succeeded {
            true => {
                let body = Fields::scan(response).ok().and_then(|fields| {
                    fields.get("status_code")?;
                    fields.get("body").map(|span| &response[span])
                });
                Ok(answer(body.unwrap_or(response), dialect))
            }
            false => {
                let error: Value =
                    fields.get("error").and_then(|span| serde_json::from_slice(&line[span]).ok()).unwrap_or_default();
                let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
                Err(FailureView {
                    code: text("code").unwrap_or_else(|| "failed".into()),
                    reason: text("message").unwrap_or_else(|| excerpt(response)),
                })
            }
        };
        Some(ResultView { id, outcome })
    }
}

fn answer(body: &[u8], dialect: Dialect) -> AnswerView {
    let read = dialect.answer(body).ok();
    let (text, finish, model) = match read {
        Some(answer) => (answer.text, answer.finish, answer.model),
        None => {
            let value: Value = serde_json::from_slice(body).unwrap_or_default();
            let model = value.get("model").and_then(Value::as_str).map(str::to_owned);
            (other_text(&value).unwrap_or_else(|| as_json(&value)), Finish::Complete, model)
        }
    };
    let text = match serde_json::from_str::<Value>(&text) {
        // An answer in JSON reads better with its line ends.
        Ok(value) if value.is_object() || value.is_array() => as_json(&value),
        _ => text,
    };
    AnswerView { text, usage: dialect.usage_in(body), finish, model }
}

/// The text of an answer that is not a chat's: of the Responses API, or of a completion.
fn other_text(body: &Value) -> Option<String> {
    let of_output = |item: &Value| -> Option<String> {
        let parts = item.get("content")?.as_array()?;
        let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
        (!texts.is_empty()).then(|| texts.join("\n\n"))
    };
    if let Some(output) = body.get("output").and_then(Value::as_array) {
        let texts: Vec<String> = output.iter().filter_map(of_output).collect();
        return (!texts.is_empty()).then(|| texts.join("\n\n"));
    }
    body.pointer("/choices/0/text")?.as_str().map(str::to_owned)
}

/// Markdown that shows a value as it is, or its beginning.
fn as_json(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    let is_long = text.len() > JSON_BYTES_MAX;
    if is_long {
        let end = (0..=JSON_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        text.push_str("\n…");
    }
    // Longer than any run of backticks in it.
    let fence = "`".repeat(text.split(|c| c != '`').map(str::len).max().unwrap_or(0).max(2) + 1);
    let rest = if is_long { "\n\nThe whole answer is in the results." } else { "" };
    format!("{fence}json\n{text}\n{fence}{rest}")
}

fn excerpt(body: &[u8]) -> String {
    crate::provider::excerpt(body)
}

/// Which results of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Requests that were answered.
    Answered,
    /// Requests that failed.
    Failed,
}

/// A file of results, for readers. It may be written to meanwhile: a line that is not complete yet is left out.
#[derive(Clone, Debug)]
pub struct ResultFile(PathBuf);

impl ResultFile {
    /// The file at `path`; it is opened when it is read.
    pub fn new(path: impl Into<PathBuf>) -> ResultFile {
        ResultFile(path.into())
    }

    /// Returns the last result of each of `ids`, as far as there is one. Blocking.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn results(&self, ids: &HashSet<String>, dialect: Dialect) -> io::Result<HashMap<String, ResultView>> {
        let mut found = HashMap::new();
        each(&self.0, |line, result| {
            if ids.contains(&result.id)
                && let Some(view) = ResultView::read(line, dialect)
            {
                found.insert(view.id.clone(), view);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Writes the last result of each request to `out`, as its line stands; that of an id in `instead` is the line there, which is
    /// an answer. Blocking. Returns how many were written.
    ///
    /// # Errors
    /// When the file cannot be read, or `out` not written.
    pub fn copy(&self, which: Which, instead: &HashMap<String, Vec<u8>>, out: &mut impl Write) -> io::Result<u64> {
        let mut last: HashMap<IdHash, (u64, bool)> = HashMap::new();
        let mut left: HashSet<&str> = instead.keys().map(String::as_str).collect();
        let mut number = 0_u64;
        each(&self.0, |_, result| {
            left.remove(result.id.as_str());
            number += 1;
            let known = last.entry(IdHash::of(&result.id)).or_insert((number, result.succeeded));
            // A success stands, whatever came after it.
            if result.succeeded || !known.1 {
                *known = (number, result.succeeded);
            }
            Ok(())
        })?;
        let (mut number, mut written) = (0_u64, 0);
        each(&self.0, |line, result| {
            number += 1;
            if last.get(&IdHash::of(&result.id)).is_none_or(|(last, _)| *last != number) {
                return Ok(());
            }
            let other = instead.get(&result.id);
            let is_answered = other.is_some() || result.succeeded;
            if is_answered == (which == Which::Answered) {
                out.write_all(other.map_or(line, Vec::as_slice).trim_ascii_end())?;
                out.write_all(b"\n")?;
                written += 1;
            }
            Ok(())
        })?;
        // Those whose request has no result of its own.
        for line in left.iter().filter_map(|id| instead.get(*id)).filter(|_| which == Which::Answered) {
            out.write_all(line.trim_ascii_end())?;
            out.write_all(b"\n")?;
            written += 1;
        }
        Ok(written)
    }
}

/// Calls `take` with each complete result of a file; a file that is not there has none.
fn each(path: &Path, mut take: impl FnMut(&[u8], ResultLine) -> io::Result<()>) -> io::Result<()> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut lines = Lines::new(Box::new(file));
    while let Some(line) = lines.next_raw()? {
        let bytes = line.bytes.filter(|_| line.ended).unwrap_or_default();
        if let Ok(result) = ResultLine::read(&bytes) {
            take(&bytes, result)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(body: &Value) -> RequestView {
        let line = json!({"custom_id": "a", "url": "/v1/chat/completions", "body": body}).to_string();
        view(1, &RequestLine::read(line.as_bytes()).unwrap())
    }

    #[test]
    fn what_is_said_in_a_request_is_read_of_every_form() {
        let chat = request(&json!({"model": "m", "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Why?"}, {"type": "image_url", "image_url": {}}]},
        ]}));
        let said: Vec<(&str, &str)> = chat.turns.iter().map(|turn| (&*turn.role, &*turn.text)).collect();
        assert_eq!(said, [("system", "Be brief."), ("user", "Why?\n[image_url]")]);
        assert_eq!((chat.model.as_deref(), chat.prompt), (Some("m"), None), "two parts are not one prompt");
        let gemini = request(&json!({"contents": [{"parts": [{"text": "Why?"}]}]}));
        assert_eq!((gemini.turns.len(), gemini.prompt.as_deref()), (1, Some("Why?")));
        let embedding = request(&json!({"input": "tides"}));
        assert_eq!((embedding.turns[0].text.as_str(), embedding.prompt.as_deref()), ("tides", Some("tides")));
        assert!(request(&json!({"input": ["one", "two"]})).prompt.is_none());
    }

    #[test]
    fn an_answer_is_its_text_and_one_without_text_its_json() {
        let line = |body: Value| {
            json!({"custom_id": "a", "response": {"status_code": 200, "body": body}, "error": null}).to_string()
        };
        let text =
            |body: Value| ResultView::read(line(body).as_bytes(), Dialect::OpenAi).unwrap().outcome.unwrap().text;
        let chat = json!({"choices": [{"message": {"content": "Two tides."}, "finish_reason": "stop"}]});
        assert_eq!(text(chat), "Two tides.");
        assert_eq!(text(json!({"output": [{"content": [{"text": "Said."}]}]})), "Said.");
        assert_eq!(text(json!({"choices": [{"text": "Old."}]})), "Old.");
        assert!(text(json!({"data": [{"embedding": [0.5]}]})).starts_with("```json\n"));
        let long = text(json!({"data": "`````".repeat(2_000)}));
        assert!(long.len() < 10_000 + JSON_BYTES_MAX && long.ends_with("in the results."), "{}", long.len());
        let failed = br#"{"custom_id":"a","response":null,"error":{"code":"refused","message":"no"}}"#;
        let outcome = ResultView::read(failed, Dialect::OpenAi).unwrap().outcome;
        assert_eq!(outcome, Err(FailureView { code: "refused".into(), reason: "no".into() }));
        let gemini = br#"{"key":"k","response":{"candidates":[{"content":{"parts":[{"text":"Hi."}]}}]}}"#;
        assert_eq!(ResultView::read(gemini, Dialect::Gemini).unwrap().outcome.unwrap().text, "Hi.");
    }

    #[test]
    fn a_copy_has_the_last_result_of_each_request() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.jsonl");
        let ok = |id: &str, body: u32| {
            format!("{{\"custom_id\":\"{id}\",\"response\":{{\"status_code\":200,\"body\":{body}}},\"error\":null}}\n")
        };
        let failed = |id: &str| format!("{{\"custom_id\":\"{id}\",\"response\":null,\"error\":{{\"code\":\"x\"}}}}\n");
        std::fs::write(
            &path,
            [failed("a"), ok("b", 1), ok("a", 2), failed("c"), ok("d", 3), failed("e")].concat() + "{\"cust",
        )
        .unwrap();
        let copy = |which, instead: &HashMap<String, Vec<u8>>| {
            let mut out = Vec::new();
            let written = ResultFile::new(&path).copy(which, instead, &mut out).unwrap();
            (written, String::from_utf8(out).unwrap())
        };
        assert_eq!(copy(Which::Answered, &HashMap::new()), (3, [ok("b", 1), ok("a", 2), ok("d", 3)].concat()));
        assert_eq!(copy(Which::Failed, &HashMap::new()), (2, [failed("c"), failed("e")].concat()));
        let instead =
            HashMap::from([("c".to_owned(), ok("c", 9).into_bytes()), ("d".to_owned(), ok("d", 8).into_bytes())]);
        assert_eq!(copy(Which::Answered, &instead).1, [ok("b", 1), ok("a", 2), ok("c", 9), ok("d", 8)].concat());
        assert_eq!(copy(Which::Failed, &instead).1, failed("e"));
        assert_eq!(
            ResultFile::new(directory.path().join("none"))
                .copy(Which::Failed, &HashMap::new(), &mut Vec::new())
                .unwrap(),
            0
        );
    }
}
