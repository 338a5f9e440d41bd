//! The words of a sentence, as what is compared: lower case, without the small words that every sentence has. Scripts
//! without spaces are read in pairs of characters.

use super::sentences::is_cjk;

/// The small words of a few languages.
const SMALL: &str = " a about above after again all also although always among an and any are as at back be because been \
    before being below between both but by can could did do does done down during each either else etc even ever every \
    few first for from further get had has have having he her here hers him his how however i if in into is it its itself \
    just last least less let like made make many may me might more most much must my near need neither next no nor not \
    now of off often on once one only onto or other our out over own page per quite rather s same see shall she should \
    since so some such t than that the their them then there these they this those though through thus to too two under \
    until up upon us use used uses using very was way we well were what when where which while who whom whose why will \
    with within without would yet you your aber alle als am an auch auf aus bei bis da dann das dass dem den der des die \
    dies diese dieser dieses doch dort du durch ein eine einem einen einer eines er es etwa für hat haben ich ihr ihre im \
    ist ja je jede jeder jedes kann kein keine man mehr mit muss nach nicht noch nun nur ob oder ohne sehr sein seine sich \
    sie sind so über um und uns unter vom von vor war waren weil wenn werden wie wieder wird wir wurde wurden zu zum zur \
    au aux avec ce ces cette comme dans de des du elle elles en entre est et eux il ils je la le les leur leurs lui mais \
    ne nous on ou où par pas plus pour qu que qui sa sans se ses si son sont sur un une vous y al como con del el ella \
    ellos en entre era es esa ese esta este fue ha han hay la las lo los más muy ni no para pero por porque que se si sin \
    sobre son su sus también un una uno y ya che da dal dalla dei del della delle di e gli ha ho il io le lo ma nel nella \
    non o per più quando quanto questo se si sono tra un una ";

/// A word as it is compared, and as it stands in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub(super) stem: String,
    pub(super) text: &'a str,
    /// A small word: it separates terms, and counts for nothing.
    pub(super) small: bool,
}

pub(super) fn words(sentence: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = sentence;
    while let Some(begin) = rest.find(|c: char| c.is_alphanumeric()) {
        rest = &rest[begin..];
        let first = rest.chars().next().expect("found above");
        let end = if is_cjk(first) {
            rest.find(|c: char| !is_cjk(c) || !c.is_alphanumeric()).unwrap_or(rest.len())
        } else {
            end_of_word(rest)
        };
        let (run, tail) = rest.split_at(end);
        if is_cjk(first) {
            push_pairs(run, &mut words);
        } else {
            push_word(run, &mut words);
        }
        rest = tail;
    }
    words
}

fn end_of_word(text: &str) -> usize {
    let mut end = text.len();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let inside = c.is_alphanumeric() && !is_cjk(c);
        let linked = matches!(c, '-' | '\'' | '’') && chars.peek().is_some_and(|(_, next)| next.is_alphanumeric());
        if !inside && !linked {
            end = at;
            break;
        }
    }
    end
}

fn push_word<'a>(text: &'a str, words: &mut Vec<Word<'a>>) {
    let lower = text.to_lowercase();
    let letters = lower.chars().filter(|c| c.is_alphabetic()).count();
    let small = letters == 0 || lower.chars().nth(1).is_none() || SMALL.contains(&format!(" {lower} "));
    words.push(Word { stem: stem(&lower), text, small });
}

fn push_pairs<'a>(run: &'a str, words: &mut Vec<Word<'a>>) {
    let ends: Vec<usize> = run.char_indices().map(|(at, _)| at).chain([run.len()]).collect();
    for pair in ends.windows(3) {
        let text = &run[pair[0]..pair[2]];
        // Two signs of the Japanese syllabary alone are grammar as a rule.
        let small = text.chars().all(|c| matches!(c, '\u{3040}'..='\u{309f}')) || text.contains(['的', '了', '是']);
        words.push(Word { stem: text.to_owned(), text, small });
    }
}

/// Endings that only grammar put there: enough for "tide" and "tides" to be the same.
fn stem(lower: &str) -> String {
    let cut = |ending: &str, least: usize| {
        lower.strip_suffix(ending).filter(|stem| stem.chars().count() >= least && stem.is_ascii()).map(str::to_owned)
    };
    cut("'s", 2)
        .or_else(|| lower.strip_suffix("ies").filter(|stem| stem.len() >= 3).map(|stem| format!("{stem}y")))
        .or_else(|| if lower.ends_with("ss") || lower.ends_with("us") { None } else { cut("s", 3) })
        .unwrap_or_else(|| lower.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stems(text: &str) -> Vec<String> {
        words(text).into_iter().filter(|word| !word.small).map(|word| word.stem).collect()
    }

    #[test]
    fn small_words_are_told_and_plurals_are_the_same() {
        assert_eq!(stems("The tides of the moon's tide, and bodies; mass."), ["tide", "moon", "tide", "body", "mass"]);
    }

    #[test]
    fn chinese_is_read_in_pairs() {
        assert_eq!(stems("潮汐現象 and 海"), ["潮汐", "汐現", "現象"]);
    }

    #[test]
    fn mixed_scripts_and_odd_signs_are_survived() {
        assert_eq!(stems("GPU加速 x86-64 don't …"), ["gpu", "加速", "x86-64", "don't"]);
        assert!(words("… -- !").is_empty());
    }
}
