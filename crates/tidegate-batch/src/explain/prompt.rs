//! The instruction: a text with variables.

use std::fmt;

/// What is asked when nobody says otherwise.
pub const DEFAULT_PROMPT: &str = "Explain page {page} of {pages} of the document \"{file}\" to an interested reader who has \
    not studied the subject. Say what the page is about, explain its ideas, terms, formulas and figures in plain words, and \
    how it continues what came before. Use short paragraphs or lists in Markdown, do not repeat the page word for word, and \
    do not explain the other pages: they are there for context only. Answer in {language}.";

/// What the variables stand for.
#[derive(Clone, Copy, Debug)]
pub struct Variables<'a> {
    /// `{file}`
    pub file: &'a str,
    /// `{title}`: the document's own, or else the file's name.
    pub title: &'a str,
    /// `{page}`
    pub page: u32,
    /// `{pages}`
    pub pages: u32,
    /// `{language}`; "the language of the page" if it is empty.
    pub language: &'a str,
}

/// An instruction, its variables checked.
///
/// `{file}`, `{title}`, `{page}`, `{pages}`, `{language}` are variables; `{{` and `}}` are braces.
///
/// ```
/// use tidegate_batch::{Prompt, Variables};
///
/// let prompt = Prompt::parse("Page {page}/{pages}, as {{\"summary\": …}} in {language}").unwrap();
/// let variables = Variables { file: "a.pdf", title: "A", page: 3, pages: 9, language: "French" };
/// assert_eq!(prompt.fill(&variables), "Page 3/9, as {\"summary\": …} in French");
/// assert!(Prompt::parse("Page {pgae}").unwrap_err().to_string().contains("{pgae}"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(Variable),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    File,
    Title,
    Page,
    Pages,
    Language,
}

const VARIABLES: [(&str, Variable); 5] = [
    ("file", Variable::File),
    ("title", Variable::Title),
    ("page", Variable::Page),
    ("pages", Variable::Pages),
    ("language", Variable::Language),
];

/// What is wrong with an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptError {
    /// There is no such variable.
    Unknown(String),
    /// A brace that nothing closes or opens.
    Brace,
    /// There is nothing in it.
    Empty,
}

impl fmt::Display for PromptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PromptError::Unknown(name) => write!(
                f,
                "the prompt's {{{name}}} is no variable: there are {{file}}, {{title}}, {{page}}, {{pages}} and {{language}}; \
                 for braces as such write {{{{{name}}}}}"
            ),
            PromptError::Brace => f.write_str("the prompt has a single brace: for a brace as such write {{ or }}"),
            PromptError::Empty => f.write_str("the prompt is empty; leave --prompt away for the usual one"),
        }
    }
}

impl std::error::Error for PromptError {}

impl Prompt {
    /// Reads an instruction.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn parse(text: &str) -> Result<Prompt, PromptError> {
        if text.trim().is_empty() {
            return Err(PromptError::Empty);
        }
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(tail) = rest.strip_prefix("{{").or_else(|| rest.strip_prefix("}}")) {
                plain.push_str(&rest[..1]);
                rest = tail;
                continue;
            }
            let end = rest.find('}').filter(|_| rest.starts_with('{')).ok_or(PromptError::Brace)?;
            let name = &rest[1..end];
            let known = VARIABLES.iter().find(|(known, _)| *known == name.trim());
            let (_, variable) = known.ok_or_else(|| PromptError::Unknown(name.into()))?;
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Variable(*variable));
            rest = &rest[end + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Prompt { parts })
    }

    /// The instruction for one page.
    #[must_use]
    pub fn fill(&self, variables: &Variables<'_>) -> String {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Variable(Variable::File) => out.push_str(variables.file),
                Part::Variable(Variable::Title) => out.push_str(variables.title),
                Part::Variable(Variable::Page) => out.push_str(&variables.page.to_string()),
                Part::Variable(Variable::Pages) => out.push_str(&variables.pages.to_string()),
                Part::Variable(Variable::Language) if variables.language.is_empty() => {
                    out.push_str("the language of the page");
                }
                Part::Variable(Variable::Language) => out.push_str(variables.language),
            }
        }
        out
    }
}

impl Default for Prompt {
    fn default() -> Prompt {
        Prompt::parse(DEFAULT_PROMPT).expect("checked by a test")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: Variables<'_> = Variables { file: "a{page}.pdf", title: "T", page: 1, pages: 2, language: "" };

    #[test]
    fn the_usual_prompt_is_a_prompt() {
        let said = Prompt::default().fill(&VALUES);
        assert!(said.contains("page 1 of 2") && said.contains("the language of the page"), "{said}");
    }

    #[test]
    fn a_value_with_braces_is_not_filled_in_again() {
        assert_eq!(Prompt::parse("{file}").unwrap().fill(&VALUES), "a{page}.pdf");
    }

    #[test]
    fn braces_that_mean_nothing_are_refused_with_the_way_out() {
        for text in ["{", "}", "a } b", "{page", "x {", "}{"] {
            assert_eq!(Prompt::parse(text), Err(PromptError::Brace), "{text}");
        }
        assert!(Prompt::parse("{a}").unwrap_err().to_string().contains("{{a}}"));
        assert_eq!(Prompt::parse("{{a}}").unwrap().fill(&VALUES), "{a}");
        assert_eq!(Prompt::parse(" \n"), Err(PromptError::Empty));
    }
}
