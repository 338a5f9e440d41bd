//! Values as Python would show them: Celery's tools display arguments and results as text.

use serde_json::{Map, Value};

use crate::json;

/// Celery cuts them as well.
const BYTES_MAX: usize = 1024;

/// As `repr()` writes it, cut where it is long.
pub(crate) fn repr(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    cut(text)
}

/// As a tuple.
pub(crate) fn arguments(args: &[Value]) -> String {
    let mut text = String::from("(");
    list(args, &mut text);
    text.push_str(if args.len() == 1 { ",)" } else { ")" });
    cut(text)
}

/// As a dictionary.
pub(crate) fn keywords(kwargs: &Map<String, Value>) -> String {
    let mut text = String::new();
    dictionary(kwargs, &mut text);
    cut(text)
}

fn cut(mut text: String) -> String {
    if text.len() > BYTES_MAX {
        text.truncate(text.floor_char_boundary(BYTES_MAX - 3));
        text.push_str("...");
    }
    text
}

fn write(value: &Value, text: &mut String) {
    // What is beyond will be cut.
    if text.len() > BYTES_MAX {
        return;
    }
    if let Some(digits) = json::integer(value) {
        return text.push_str(digits);
    }
    match value {
        Value::Null => text.push_str("None"),
        Value::Bool(true) => text.push_str("True"),
        Value::Bool(false) => text.push_str("False"),
        Value::Number(number) => text.push_str(&number.to_string()),
        Value::String(string) => quoted(string, text),
        Value::Array(values) => {
            text.push('[');
            list(values, text);
            text.push(']');
        }
        Value::Object(values) => dictionary(values, text),
    }
}

fn list(values: &[Value], text: &mut String) {
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            text.push_str(", ");
        }
        write(value, text);
    }
}

fn dictionary(values: &Map<String, Value>, text: &mut String) {
    text.push('{');
    for (at, (name, value)) in values.iter().enumerate() {
        if at > 0 {
            text.push_str(", ");
        }
        quoted(name, text);
        text.push_str(": ");
        write(value, text);
    }
    text.push('}');
}

fn quoted(string: &str, text: &mut String) {
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for letter in string.chars().take(BYTES_MAX) {
        match letter {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            _ if letter == quote => text.extend(['\\', letter]),
            _ => text.push(letter),
        }
    }
    text.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_shown_as_python_shows_them() {
        let value = json!({"a": [1, 2.5, null, true], "it's": "say \"no\"\n"});
        assert_eq!(repr(&value), r#"{'a': [1, 2.5, None, True], "it's": 'say "no"\n'}"#);
        assert_eq!(arguments(&[json!(1)]), "(1,)");
        assert_eq!(arguments(&[json!(1), json!("x")]), "(1, 'x')");
        assert_eq!(arguments(&[]), "()");
        assert_eq!(keywords(&Map::new()), "{}");
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let long = repr(&json!("ä".repeat(5000)));
        assert!(long.len() <= BYTES_MAX && long.ends_with("..."));
        assert!(repr(&json!(vec![7; 5000])).len() <= BYTES_MAX);
    }
}
