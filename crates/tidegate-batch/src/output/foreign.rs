//! Explanations in whatever shape they come: our own, or pairs of a page and a text as other programs write them.

use std::fmt;

use serde_json::{Map, Value};

use super::document::{Entry, Explanations, SCHEMA, Status};

/// The names under which others keep a list of pages, a page's number (counted from 1), its index (from 0), its text.
const LISTS: [&str; 6] = ["explanations", "pages", "results", "items", "data", "entries"];
const NUMBERS: [&str; 6] = ["page", "page_number", "pageNumber", "page_num", "number", "page_no"];
const INDEXES: [&str; 4] = ["page_index", "pageIndex", "index", "idx"];
const TEXTS: [&str; 8] = ["explanation", "text", "content", "answer", "markdown", "summary", "result", "output"];

/// A file that has no explanations in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotExplanations {
    /// It is not JSON.
    NotJson(String),
    /// It is JSON, but no list of pages and explanations.
    NoPairs,
    /// A later version of tidegate has written it.
    TooNew(String),
}

impl fmt::Display for NotExplanations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotExplanations::NotJson(why) => write!(f, "it is not JSON: {why}"),
            NotExplanations::NoPairs => f.write_str(
                "it has no pairs of a page and an explanation; it should look like \
                 [{\"page\": 1, \"explanation\": \"…\"}, …] or {\"1\": \"…\", …}",
            ),
            NotExplanations::TooNew(schema) => {
                write!(f, "it is in the format {schema}, and this tidegate knows {SCHEMA}; use a later tidegate")
            }
        }
    }
}

impl std::error::Error for NotExplanations {}

impl Explanations {
    /// Reads our own format, or any other in which pages and texts can be told: a list of objects (`page` or
    /// `page_number` from 1, or `index` from 0, with `explanation`, `text`, `content` …), a list of texts, an object from
    /// page numbers to texts, or any of these under a key such as `pages` or `explanations`.
    ///
    /// # Errors
    /// [`NotExplanations`].
    ///
    /// ```
    /// use tidegate_batch::Explanations;
    ///
    /// let read = |json: &str| Explanations::read(json.as_bytes()).unwrap().explanations;
    /// let pairs = read(r#"[{"page": 1, "explanation": "One."}, {"page": 2, "explanation": "Two."}]"#);
    /// assert_eq!(pairs, read(r#"{"2": "Two.", "1": "One."}"#));
    /// assert_eq!(pairs, read(r#"{"pages": ["One.", "Two."]}"#));
    /// ```
    pub fn read(json: &[u8]) -> Result<Explanations, NotExplanations> {
        // A byte order mark is not JSON, and some editors write one.
        let json = json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json);
        let value: Value = serde_json::from_slice(json).map_err(|error| NotExplanations::NotJson(error.to_string()))?;
        match value.get("schema").and_then(Value::as_str) {
            Some(SCHEMA) => {
                serde_json::from_value(value).map_err(|error| NotExplanations::NotJson(format!("{SCHEMA}: {error}")))
            }
            Some(other) if other.starts_with("tidegate.explanations/") => Err(NotExplanations::TooNew(other.into())),
            _ => foreign(&value).ok_or(NotExplanations::NoPairs),
        }
    }
}

fn foreign(value: &Value) -> Option<Explanations> {
    let mut entries = match value {
        Value::Array(list) => of_list(list),
        Value::Object(object) => LISTS
            .iter()
            .filter_map(|name| match object.get(*name) {
                Some(Value::Array(list)) => Some(of_list(list)),
                Some(Value::Object(inner)) => Some(of_map(inner)),
                _ => None,
            })
            .find(|entries| !entries.is_empty())
            .unwrap_or_else(|| of_map(object)),
        _ => Vec::new(),
    };
    if entries.is_empty() {
        return None;
    }
    entries.sort_by_key(|entry| entry.page);
    entries.dedup_by_key(|entry| entry.page);
    let text = |names: &[&str]| names.iter().find_map(|name| value.get(*name)?.as_str()).unwrap_or_default().to_owned();
    Some(Explanations {
        schema: SCHEMA.into(),
        file: text(&["file", "filename", "file_name", "pdf", "pdf_name", "name"]),
        source: text(&["source", "path", "pdf_path"]),
        title: value.get("title").and_then(Value::as_str).map(Into::into),
        provider: text(&["provider"]),
        model: text(&["model"]),
        language: text(&["language", "lang"]),
        explanations: entries,
        ..Explanations::default()
    })
}

fn of_list(list: &[Value]) -> Vec<Entry> {
    let numbered = |at: usize| u32::try_from(at + 1).ok();
    // A page numbered 0 among numbers tells that all of them are counted from 0.
    let from_zero = list.iter().any(|item| number(item, &NUMBERS) == Some(0));
    list.iter()
        .enumerate()
        .filter_map(|(at, item)| match item {
            Value::String(text) => Some(entry(numbered(at)?, Some(text))),
            // Pairs as bare lists: [3, "…"].
            Value::Array(pair) => match pair.as_slice() {
                [page, Value::String(text), ..] => Some(entry(as_number(page)?, Some(text))),
                _ => None,
            },
            Value::Object(object) => {
                let page = match number(item, &NUMBERS) {
                    Some(page) => page.checked_add(u32::from(from_zero))?,
                    None => number(item, &INDEXES).map_or_else(|| numbered(at), |index| index.checked_add(1))?,
                };
                let text = TEXTS.iter().find_map(|name| object.get(*name)?.as_str());
                let failed = object.get("error").is_some_and(|error| !error.is_null());
                (text.is_some() || failed).then(|| entry(page, text))
            }
            _ => None,
        })
        .filter(|entry| entry.page > 0)
        .collect()
}

fn of_map(object: &Map<String, Value>) -> Vec<Entry> {
    object
        .iter()
        .filter_map(|(name, value)| {
            // "3", "page 3", "page_3"
            let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
            let page = digits.parse().ok().filter(|&page| page > 0)?;
            let text = value.as_str().or_else(|| TEXTS.iter().find_map(|name| value.get(*name)?.as_str()))?;
            Some(entry(page, Some(text)))
        })
        .collect()
}

fn entry(page: u32, text: Option<&str>) -> Entry {
    let status = if text.is_some() { Status::Done } else { Status::Failed };
    Entry { page, status, explanation: text.map(Into::into), ..Entry::default() }
}

fn number(item: &Value, names: &[&str]) -> Option<u32> {
    names.iter().find_map(|name| as_number(item.get(*name)?))
}

/// A number, or a text that is one.
fn as_number(value: &Value) -> Option<u32> {
    match value {
        Value::Number(number) => number.as_u64()?.try_into().ok(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(json: &str) -> Vec<(u32, String)> {
        let read = Explanations::read(json.as_bytes()).unwrap();
        read.explanations.into_iter().map(|entry| (entry.page, entry.explanation.unwrap_or_default())).collect()
    }

    #[test]
    fn our_own_format_comes_back_as_it_went() {
        let ours = Explanations {
            schema: SCHEMA.into(),
            file: "a.pdf".into(),
            explanations: vec![entry(1, Some("One.")), entry(2, None)],
            ..Explanations::default()
        };
        assert_eq!(Explanations::read(ours.to_json().as_bytes()).unwrap(), ours);
    }

    #[test]
    fn pairs_are_found_in_many_shapes() {
        for json in [
            r#"[{"page":1,"explanation":"a"},{"page":2,"explanation":"b"}]"#,
            r#"[{"page_number":"2","content":"b"},{"page_number":"1","content":"a"}]"#,
            r#"{"results":[{"index":0,"text":"a"},{"index":1,"text":"b"}]}"#,
            r#"{"file":"x.pdf","explanations":{"1":"a","2":"b"}}"#,
            r#"{"page 1":{"answer":"a"},"page 2":{"answer":"b"}}"#,
            r#"[[1,"a"],[2,"b"]]"#,
            r#"["a","b"]"#,
            r#"[{"page":0,"text":"a"},{"page":1,"text":"b"}]"#,
            "\u{feff}[\"a\",\"b\"]",
        ] {
            assert_eq!(pages(json), [(1, "a".into()), (2, "b".into())], "{json}");
        }
    }

    #[test]
    fn what_has_no_pairs_is_told_with_an_example() {
        for json in ["{}", "[]", "3", r#"{"a":"b"}"#, r#"[{"page":1}]"#, "null", "[[],{}]"] {
            assert_eq!(Explanations::read(json.as_bytes()), Err(NotExplanations::NoPairs), "{json}");
        }
        assert!(matches!(Explanations::read(b"{"), Err(NotExplanations::NotJson(_))));
        let newer = br#"{"schema":"tidegate.explanations/2"}"#;
        assert!(matches!(Explanations::read(newer), Err(NotExplanations::TooNew(_))));
    }
}
