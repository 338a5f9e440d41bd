//! What a topic shows: named parts of a page, and the difference between two versions of them.

use std::collections::BTreeMap;

use maud::Markup;
use serde::Serialize;

/// The current content of a topic's parts. A source makes a new one at each update; the hub sends what has changed.
///
/// A page marks its parts with attributes of the same keys: `data-v` for text, `data-h` for HTML, `data-a` for attributes,
/// `data-grid` for cells.
///
/// ```
/// use tidegate_web::live::Values;
/// let mut values = Values::new();
/// values.text("job.done", "37");
/// values.html("job.note", maud::html! { "blocked by " b { "tpm" } });
/// values.attr("job.bar", "width", "48.4%");
/// values.cells("job.pages", b"ddddixww".to_vec());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    text: BTreeMap<String, String>,
    html: BTreeMap<String, String>,
    attrs: BTreeMap<String, BTreeMap<&'static str, String>>,
    cells: BTreeMap<String, Vec<u8>>,
}

/// What is sent: all parts, or those that have changed.
#[derive(Debug, Default, Serialize)]
struct Patch<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    text: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    html: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attrs: BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>,
    /// Cells that changed: index and state.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    cells: BTreeMap<&'a str, Vec<(usize, char)>>,
    /// All cells of a grid, one letter each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    grids: BTreeMap<&'a str, &'a str>,
}

impl Patch<'_> {
    fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.html.is_empty()
            && self.attrs.is_empty()
            && self.cells.is_empty()
            && self.grids.is_empty()
    }
}

impl Values {
    /// No parts yet.
    #[must_use]
    pub fn new() -> Values {
        Values::default()
    }

    /// The text of every element with `data-v="key"`.
    pub fn text(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.text.insert(key.into(), text.into());
    }

    /// The content of every element with `data-h="key"`. It is replaced as a whole: nothing in it should take the focus.
    pub fn html(&mut self, key: impl Into<String>, content: Markup) {
        self.html.insert(key.into(), content.into_string());
    }

    /// An attribute of every element with `data-a="key"`; an empty text removes it.
    pub fn attr(&mut self, key: impl Into<String>, name: &'static str, value: impl Into<String>) {
        self.attrs.entry(key.into()).or_default().insert(name, value.into());
    }

    /// The state letters of the cells of `data-grid="key"`, in ASCII.
    pub fn cells(&mut self, key: impl Into<String>, mut letters: Vec<u8>) {
        letters.iter_mut().filter(|letter| !letter.is_ascii_alphabetic()).for_each(|letter| *letter = b'w');
        self.cells.insert(key.into(), letters);
    }

    /// The text of `key`.
    #[must_use]
    pub fn get_text(&self, key: &str) -> Option<&str> {
        self.text.get(key).map(String::as_str)
    }

    /// Everything, as JSON.
    pub(super) fn to_json(&self) -> String {
        self.json_since(&Values::default()).unwrap_or_else(|| "{}".to_owned())
    }

    /// What differs from `before`, as JSON; `None` if nothing does.
    pub(super) fn json_since(&self, before: &Values) -> Option<String> {
        let mut patch = Patch::default();
        patch.text.extend(changed(&self.text, &before.text).map(|(key, text)| (key, text.as_str())));
        patch.html.extend(changed(&self.html, &before.html).map(|(key, html)| (key, html.as_str())));
        for (key, attrs) in changed(&self.attrs, &before.attrs) {
            let none = BTreeMap::new();
            let before = before.attrs.get(key).unwrap_or(&none);
            let attrs = attrs.iter().filter(|(name, value)| before.get(*name) != Some(value));
            patch.attrs.insert(key, attrs.map(|(name, value)| (*name, value.as_str())).collect());
        }
        for (key, cells) in changed(&self.cells, &before.cells) {
            match before.cells.get(key).filter(|before| before.len() == cells.len()) {
                Some(before) => {
                    let differ = cells.iter().zip(before).enumerate().filter(|(_, (new, old))| new != old);
                    patch.cells.insert(key, differ.map(|(at, (new, _))| (at, char::from(*new))).collect());
                }
                None => {
                    patch.grids.insert(key, std::str::from_utf8(cells).unwrap_or_default());
                }
            }
        }
        if patch.is_empty() {
            return None;
        }
        serde_json::to_string(&patch).ok()
    }
}

fn changed<'a, T: PartialEq>(
    now: &'a BTreeMap<String, T>,
    before: &'a BTreeMap<String, T>,
) -> impl Iterator<Item = (&'a str, &'a T)> {
    now.iter().filter(|(key, value)| before.get(*key) != Some(value)).map(|(key, value)| (key.as_str(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_sent() {
        let mut before = Values::new();
        before.text("a", "1");
        before.text("b", "1");
        before.attr("bar", "x", "0%");
        before.attr("bar", "width", "1%");
        before.cells("grid", b"wwww".to_vec());
        assert_eq!(before.json_since(&before), None);
        let mut now = before.clone();
        now.text("b", "2 <");
        now.attr("bar", "width", "2%");
        now.cells("grid", b"wdwx".to_vec());
        let json = now.json_since(&before).unwrap();
        assert_eq!(json, r#"{"text":{"b":"2 <"},"attrs":{"bar":{"width":"2%"}},"cells":{"grid":[[1,"d"],[3,"x"]]}}"#);
    }

    #[test]
    fn a_grid_of_another_length_is_sent_whole() {
        let (mut before, mut now) = (Values::new(), Values::new());
        before.cells("grid", b"ww".to_vec());
        now.cells("grid", b"wwd\xff".to_vec());
        assert_eq!(now.json_since(&before).unwrap(), r#"{"grids":{"grid":"wwdw"}}"#);
        assert_eq!(now.to_json(), r#"{"grids":{"grid":"wwdw"}}"#);
    }
}
