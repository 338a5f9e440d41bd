//! The provider that needs nobody: it picks the sentences that say most of what a page says, and the terms that it is
//! about. The same page always gives the same answer.

mod rank;
mod sentences;
mod terms;
mod words;

use std::cell::Cell;
use std::fmt::Write as _;

use tidegate_limit::{Admission, Cost};
use tidegate_loop::to_thread;

use self::rank::Ranking;
use self::sentences::Sentence;
use super::{Asked, Asking, Dialect, Provider};
use crate::calibration::Typical;
use crate::call_error::CallError;
use crate::estimate::{Estimate, tokens_of_question};
use crate::question::{Answer, Finish, Question, Usage};
use crate::run::ItemScope;

/// Counts up when the same page would be answered differently.
const VERSION: u32 = 1;

/// A sentence of a neighbour that is less like the page than this has nothing to do with it.
const RELATED: f64 = 0.12;

/// The offline provider.
#[derive(Debug)]
pub struct Local {
    gate: Admission,
    identity: String,
    typical: Cell<Typical>,
}

impl Local {
    /// Works within `gate`, like any other provider.
    #[must_use]
    pub fn new(gate: impl Into<Admission>) -> Local {
        Local { gate: gate.into(), identity: format!("local extractive/{VERSION}"), typical: Cell::default() }
    }
}

impl Provider for Local {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn model(&self) -> &str {
        "extractive"
    }

    fn takes_pictures(&self) -> bool {
        false
    }

    fn estimate(&self, question: &Question) -> Estimate {
        Estimate { input_tokens: tokens_of_question(question), output_tokens: 0 }
    }

    fn typical_cost(&self) -> Cost {
        let usage = self.typical.get().usage();
        Dialect::OpenAi.cost(usage.input_tokens, usage.output_tokens)
    }

    fn ask<'a>(&'a self, scope: &'a ItemScope, question: &'a Question) -> Asking<'a> {
        Box::pin(async move {
            let tokens = self.estimate(question).input_tokens;
            self.typical.set(self.typical.get().settled(Usage { input_tokens: tokens, output_tokens: 0 }));
            let mut lease = scope.enter(&self.gate, Dialect::OpenAi.cost(tokens, 0)).await?;
            lease.sent();
            let question = question.clone();
            let text = to_thread(move || explain(&question))
                .await
                .map_err(|error| CallError::Unavailable { attempts: 1, reason: error.to_string() })?;
            drop(lease);
            let answer = Answer { text, usage: Usage::default(), finish: Finish::Complete, model: None };
            Ok(Asked::new(answer, 1))
        })
    }
}

/// An explanation made of the page's own sentences.
///
/// ```
/// use tidegate_batch::{Question, local};
///
/// let text = "Tides are the rise and fall of the sea. The moon causes tides by its gravity. Lunch was late.";
/// let said = local::explain(&Question { page: 1, pages: 1, text: text.into(), ..Question::default() });
/// assert!(said.contains("> Tides are the rise and fall of the sea."));
/// ```
#[must_use]
pub fn explain(question: &Question) -> String {
    let labels = Labels::of(&question.language, &question.text);
    let page = sentences::split(&question.text);
    let neighbours: Vec<(u32, Vec<Sentence>)> =
        question.context.iter().map(|context| (context.page, sentences::split(&context.text))).collect();
    let others: Vec<Sentence> = neighbours.iter().flat_map(|(_, sentences)| sentences.iter().cloned()).collect();
    let ranking = Ranking::new(&page, &others);
    let told = page.iter().filter(|sentence| !sentence.heading).count();
    let best = ranking.best(told.div_ceil(4).clamp(1, 4));
    let mut out = String::new();
    if let Some(title) = page.first().filter(|sentence| sentence.heading) {
        let _ = writeln!(out, "**{}**\n", escape(&title.text));
    }
    if best.is_empty() {
        // No sentence: a title page, a table of contents, an index.
        let lines: Vec<&str> = page.iter().map(|sentence| sentence.text.as_str()).take(8).collect();
        if lines.is_empty() {
            return labels.nothing.into();
        }
        let _ = writeln!(out, "{}\n", labels.no_sentences);
        lines.iter().for_each(|line| {
            let _ = writeln!(out, "- {}", escape(line));
        });
    } else {
        let _ = writeln!(out, "{}\n", labels.says);
        best.iter().for_each(|&at| {
            let _ = writeln!(out, "> {}\n", escape(&page[at].text));
        });
    }
    let terms = terms::terms(&page, 6);
    if !terms.is_empty() {
        let _ = writeln!(
            out,
            "\n{} {}",
            labels.terms,
            terms.iter().map(|term| escape(term)).collect::<Vec<_>>().join(" · ")
        );
    }
    write_neighbours(&mut out, question.page, &neighbours, &ranking, page.len(), &labels);
    out.trim().to_owned()
}

/// What the pages around have to do with it, if anything.
fn write_neighbours(
    out: &mut String,
    page: u32,
    neighbours: &[(u32, Vec<Sentence>)],
    ranking: &Ranking,
    own: usize,
    labels: &Labels,
) {
    let own = own.min(ranking.scores.len());
    let mut at = own;
    for (number, sentences) in neighbours {
        let range = at..(at + sentences.len()).min(ranking.len());
        at = range.end;
        let related = |sentence: usize| (0..own).map(|own| ranking.likeness(own, sentence)).fold(0.0, f64::max);
        let best = range
            .clone()
            .filter(|&sentence| !sentences[sentence - range.start].heading)
            .map(|sentence| (related(sentence), sentence))
            .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        if let Some((_, sentence)) = best.filter(|(likeness, _)| *likeness >= RELATED) {
            let label = if *number < page { labels.before } else { labels.after };
            let text = escape(&sentences[sentence - range.start].text);
            let _ = writeln!(out, "\n{} {text}", label.replace("{}", &number.to_string()));
        }
    }
}

/// A page's own text must not turn into Markdown.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '|' | '~') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The few words that are not the page's own.
struct Labels {
    says: &'static str,
    no_sentences: &'static str,
    nothing: &'static str,
    terms: &'static str,
    before: &'static str,
    after: &'static str,
}

impl Labels {
    /// In the language asked for, or in the one the page seems to be in.
    fn of(language: &str, text: &str) -> Labels {
        let language = language.to_lowercase();
        let is =
            |names: &[&str]| names.iter().any(|name| language == *name || language.starts_with(&format!("{name}-")));
        let kana = || text.chars().any(|c| matches!(c, '\u{3040}'..='\u{30ff}'));
        let han = || text.chars().filter(|c| sentences::is_cjk(*c)).count() * 4 > text.chars().count();
        let asked = !language.is_empty();
        if is(&["ja", "japanese", "日本語"]) || (!asked && han() && kana()) {
            return JAPANESE;
        }
        if is(&["zh", "chinese", "中文", "简体中文", "繁體中文"]) || (!asked && han()) {
            return CHINESE;
        }
        if is(&["de", "german", "deutsch"]) { GERMAN } else { ENGLISH }
    }
}

const ENGLISH: Labels = Labels {
    says: "What this page says, in its own words:",
    no_sentences: "This page has no full sentences. It lists:",
    nothing: "This page has no text.",
    terms: "**Key terms:**",
    before: "**Coming from page {}:**",
    after: "**Leading on to page {}:**",
};

const GERMAN: Labels = Labels {
    says: "Was diese Seite sagt, in ihren eigenen Worten:",
    no_sentences: "Diese Seite enthält keine ganzen Sätze. Sie führt auf:",
    nothing: "Diese Seite enthält keinen Text.",
    terms: "**Begriffe:**",
    before: "**Von Seite {} her:**",
    after: "**Weiter auf Seite {}:**",
};

const CHINESE: Labels = Labels {
    says: "本页要点（原文）：",
    no_sentences: "本页没有完整的句子，列出的内容有：",
    nothing: "本页没有文字。",
    terms: "**关键词：**",
    before: "**承接第 {} 页：**",
    after: "**下接第 {} 页：**",
};

const JAPANESE: Labels = Labels {
    says: "このページの要点（原文より）：",
    no_sentences: "このページに文章はありません。記載内容：",
    nothing: "このページに文字はありません。",
    terms: "**キーワード：**",
    before: "**{} ページから：**",
    after: "**{} ページへ：**",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::ContextPage;

    fn page(text: &str) -> Question {
        Question { page: 2, pages: 3, text: text.into(), ..Question::default() }
    }

    #[test]
    fn only_real_sentences_are_quoted() {
        let text = "Tides rise twice a day because of the moon. The sun adds to the tides of the moon. A boat needs the \
                    tides of the day to leave. Sailors know the moon and the day of the tides.";
        let said = explain(&page(text));
        let quoted: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("> ")).collect();
        assert!(!quoted.is_empty());
        assert!(quoted.iter().all(|sentence| text.contains(sentence)), "{said}");
        assert_eq!(said, explain(&page(text)), "the same again");
    }

    #[test]
    fn a_neighbour_that_has_to_do_with_it_is_named() {
        let mut question = page("The moon causes the tides of the sea. The tides of the sea come twice a day.");
        question.context = vec![
            ContextPage { page: 1, text: "Completely different matters were settled by accountants.".into() },
            ContextPage { page: 3, text: "Spring tides of the sea come when sun and moon stand in line.".into() },
        ];
        let said = explain(&question);
        assert!(said.contains("**Leading on to page 3:** Spring tides"), "{said}");
        assert!(!said.contains("accountants"), "{said}");
    }

    #[test]
    fn a_chinese_page_is_explained_in_chinese() {
        let said = explain(&page("潮汐是海水的周期性涨落。潮汐由月亮的引力引起。海水每天涨落两次。"));
        assert!(said.starts_with("本页要点"), "{said}");
        assert!(said.contains("潮汐"), "{said}");
    }

    #[test]
    fn the_text_does_not_turn_into_markdown() {
        let said = explain(&page("The value of *p_x* is <b>always</b> [two](http://x) in the tables of the book."));
        assert!(said.contains(r"\*p\_x\* is \<b\>"), "{said}");
    }

    #[test]
    fn pages_without_sentences_and_without_text_have_answers_too() {
        assert!(explain(&page("Contents\n\n1 Tides 3\n\n2 Waves 9")).contains("- 2 Waves 9"));
        assert_eq!(explain(&page(" \n ")), "This page has no text.");
        let mut question = page("");
        question.language = "German".into();
        assert_eq!(explain(&question), "Diese Seite enthält keinen Text.");
    }
}
