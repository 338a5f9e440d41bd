//! The terms that a page is about: runs of words without a small one between them, by how often and how seldom elsewhere.

use std::collections::HashMap;

use super::sentences::{Sentence, is_cjk};
use super::words::{Word, words};

/// The longest run that is taken for one term.
const WORDS_MAX: usize = 3;

struct Term {
    count: usize,
    length: usize,
    /// As it first stands in the text.
    text: String,
    first: usize,
}

/// At most `count` terms of the page, the most telling first.
pub(super) fn terms(page: &[Sentence], count: usize) -> Vec<String> {
    let mut found: HashMap<Vec<String>, Term> = HashMap::new();
    let mut order = 0;
    for sentence in page {
        let words = words(&sentence.text);
        for run in words.split(|word| word.small) {
            for length in 1..=WORDS_MAX.min(run.len()) {
                for window in run.windows(length) {
                    if !is_term(&sentence.text, window) {
                        continue;
                    }
                    order += 1;
                    let key = window.iter().map(|word| word.stem.clone()).collect();
                    let text = || span(&sentence.text, window).to_owned();
                    let term =
                        found.entry(key).or_insert_with(|| Term { count: 0, length, text: text(), first: order });
                    term.count += 1;
                }
            }
        }
    }
    let mut terms: Vec<&Term> = found.values().filter(|term| term.length == 1 || term.count > 1).collect();
    terms.sort_by_key(|term| (std::cmp::Reverse(term.count * (term.length + 1)), term.first));
    let mut chosen: Vec<&Term> = Vec::new();
    for term in terms {
        if chosen.len() == count {
            break;
        }
        let lower = term.text.to_lowercase();
        let known = |other: &&Term| {
            let other = other.text.to_lowercase();
            // Pairs of characters overlap where they are parts of one word.
            let overlap = lower.chars().any(|c| is_cjk(c) && other.contains(c));
            overlap || other.contains(&lower) || lower.contains(&other)
        };
        if term.count > 1 && !chosen.iter().any(known) {
            chosen.push(term);
        }
    }
    chosen.into_iter().map(|term| term.text.clone()).collect()
}

/// Neighbours in the text, made of letters, and long enough to mean something.
fn is_term(sentence: &str, window: &[Word<'_>]) -> bool {
    let text = span(sentence, window);
    let letters = text.chars().filter(|c| c.is_alphabetic()).count();
    let single = window.len() == 1;
    let joined = single || (!text.contains(['.', ',', ';', ':', '(', ')', '/']) && !text.chars().any(is_cjk));
    joined && (letters >= 4 || text.chars().any(is_cjk) && letters >= 2)
}

/// The text from the first word to the last.
fn span<'a>(sentence: &'a str, window: &[Word<'a>]) -> &'a str {
    let offset = |text: &str| text.as_ptr() as usize - sentence.as_ptr() as usize;
    let (first, last) = (window[0].text, window[window.len() - 1].text);
    &sentence[offset(first)..offset(last) + last.len()]
}

#[cfg(test)]
mod tests {
    use super::super::sentences::split;
    use super::*;

    #[test]
    fn what_is_said_often_and_together_is_a_term() {
        let page = split(
            "Tidal energy is old. Mills used tidal energy on the coast. Today tidal energy drives turbines, and turbines turn.",
        );
        assert_eq!(terms(&page, 3), ["Tidal energy", "turbines"]);
    }

    #[test]
    fn terms_of_scripts_without_spaces_are_pairs() {
        let page = split("潮汐由月亮引起。潮汐每天两次。");
        assert_eq!(terms(&page, 2), ["潮汐"]);
    }

    #[test]
    fn what_is_said_once_is_no_term() {
        assert!(terms(&split("Every word here differs entirely."), 5).is_empty());
    }
}
