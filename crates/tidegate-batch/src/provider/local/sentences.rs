//! Sentences of a page's text, whatever its script: lines that belong together are joined, words cut at a line's end made
//! whole, and what ends a sentence is told from what only looks like it.

/// A sentence as it stands in the text, space and line breaks evened out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    pub(super) text: String,
    /// A line of its own that ends like no sentence: a title, an entry of a table.
    pub(super) heading: bool,
}

/// Words behind which a full stop ends nothing. Lower case, without the stop.
const ABBREVIATIONS: &[&str] = &[
    "al", "approx", "bzw", "ca", "cf", "chap", "co", "corp", "dept", "dr", "e.g", "ed", "eds", "eq", "et", "etc",
    "fig", "figs", "i.e", "inc", "jr", "ltd", "mme", "mr", "mrs", "ms", "nr", "no", "op", "p", "pp", "prof", "resp",
    "s", "sec", "sect", "sr", "st", "tab", "u.a", "u.s", "usw", "vgl", "vol", "vs", "z.b", "d.h",
];

pub(super) fn split(text: &str) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    for block in blocks(text) {
        split_block(&block, &mut sentences);
    }
    sentences
}

/// Paragraphs, each on one line, and headings.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut open = false;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let usual = usual_length(&lines);
    for (at, line) in lines.iter().enumerate() {
        if line.is_empty() {
            open = false;
            continue;
        }
        match blocks.last_mut().filter(|_| open) {
            Some(block) => join(block, line),
            None => blocks.push((*line).to_owned()),
        }
        let next = lines.get(at + 1).copied().unwrap_or("");
        open = !ends_block(line, next, usual);
    }
    blocks
}

/// How long a full line is on this page, in characters.
fn usual_length(lines: &[&str]) -> usize {
    let mut lengths: Vec<usize> = lines.iter().map(|line| line.chars().count()).filter(|&length| length > 0).collect();
    lengths.sort_unstable();
    lengths.get(lengths.len() * 4 / 5).copied().unwrap_or(0)
}

/// Whether a line is the last of its paragraph though no empty line follows: it is clearly shorter than the others, and
/// what comes next begins something.
fn ends_block(line: &str, next: &str, usual: usize) -> bool {
    let short = line.chars().count() * 10 < usual * 7;
    let begins =
        next.chars().next().is_some_and(|c| c.is_uppercase() || c.is_ascii_digit() || is_cjk(c) || is_bullet(c));
    let bullet = next.chars().next().is_some_and(is_bullet);
    bullet || (short && begins && !line.ends_with([',', ';', '，', '、']))
}

fn is_bullet(c: char) -> bool {
    matches!(c, '•' | '‣' | '▪' | '●' | '○' | '·' | '–' | '*')
}

fn join(block: &mut String, line: &str) {
    let first = line.chars().next().unwrap_or(' ');
    let mut tail = block.chars().rev();
    let (last, before) = (tail.next().unwrap_or(' '), tail.next().unwrap_or(' '));
    if matches!(last, '-' | '\u{ad}' | '\u{2010}') && before.is_alphabetic() && first.is_lowercase() {
        block.truncate(block.len() - last.len_utf8());
    } else if !(is_cjk(last) && is_cjk(first)) {
        block.push(' ');
    }
    block.push_str(line);
}

fn split_block(block: &str, sentences: &mut Vec<Sentence>) {
    let chars: Vec<(usize, char)> = block.char_indices().collect();
    let mut begin = 0;
    let mut at = 0;
    while at < chars.len() {
        if ends_sentence(block, &chars, at) {
            // Closing quotes and brackets belong to what they close.
            while let Some(&(_, c)) = chars.get(at + 1).filter(|(_, c)| is_closing(*c) || is_terminator(*c)) {
                at += 1;
                let _ = c;
            }
            let end = chars.get(at + 1).map_or(block.len(), |&(end, _)| end);
            push(&block[begin..end], false, sentences);
            begin = end;
        }
        at += 1;
    }
    push(&block[begin..], true, sentences);
}

fn push(text: &str, unfinished: bool, sentences: &mut Vec<Sentence>) {
    let text = text.trim().trim_start_matches(is_bullet).split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().any(char::is_alphabetic) {
        let heading = unfinished && text.chars().filter(|c| c.is_alphabetic()).count() < 80;
        sentences.push(Sentence { text, heading });
    }
}

fn ends_sentence(block: &str, chars: &[(usize, char)], at: usize) -> bool {
    let (offset, c) = chars[at];
    match c {
        '。' | '！' | '？' | '｡' | '।' | '؟' | '…' => true,
        '!' | '?' => follows_space(chars, at),
        '.' => follows_space(chars, at) && !is_abbreviation(&block[..offset]) && !continues(chars, at),
        _ => false,
    }
}

fn is_terminator(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '。' | '！' | '？' | '…')
}

fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | ')' | ']' | '”' | '’' | '»' | '」' | '』' | '）' | '】' | '》')
}

/// Behind the sign, closing signs left out, there is space or nothing.
fn follows_space(chars: &[(usize, char)], at: usize) -> bool {
    let rest = chars[at + 1..].iter().map(|&(_, c)| c).find(|&c| !is_closing(c) && !is_terminator(c));
    rest.is_none_or(|c| c.is_whitespace() || is_cjk(c))
}

/// A small letter behind the space: the stop was an abbreviation's that is not in the list.
fn continues(chars: &[(usize, char)], at: usize) -> bool {
    chars[at + 1..]
        .iter()
        .map(|&(_, c)| c)
        .find(|c| !c.is_whitespace() && !is_closing(*c))
        .is_some_and(char::is_lowercase)
}

fn is_abbreviation(before: &str) -> bool {
    let word = before.rsplit(|c: char| c.is_whitespace() || c == '(').next().unwrap_or("");
    let mut letters = word.chars();
    // An initial, or a number in a list: "J. Smith", "3. Tides".
    let lone = letters.next().is_some_and(char::is_uppercase) && letters.next().is_none();
    let number = !word.is_empty() && word.len() <= 2 && word.bytes().all(|byte| byte.is_ascii_digit());
    lone || number || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

/// Scripts that are written without spaces.
pub(super) fn is_cjk(c: char) -> bool {
    matches!(c, '\u{3000}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3134f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        split(text).into_iter().map(|sentence| sentence.text).collect()
    }

    #[test]
    fn lines_are_joined_and_cut_words_made_whole() {
        assert_eq!(
            texts("The moon pulls the wa-\nter of the sea.\nIt comes\nback."),
            ["The moon pulls the water of the sea.", "It comes back."]
        );
    }

    #[test]
    fn abbreviations_initials_and_numbers_end_nothing() {
        assert_eq!(
            texts("Dr. A. Smith (cf. Fig. 3) measured 3.14 m, e.g. at noon. Then he left."),
            ["Dr. A. Smith (cf. Fig. 3) measured 3.14 m, e.g. at noon.", "Then he left."]
        );
    }

    #[test]
    fn chinese_and_japanese_need_no_spaces() {
        assert_eq!(
            texts("月亮每天都会不停地吸引\n海水。「潮汐」是这样来的！\n真的吗？"),
            ["月亮每天都会不停地吸引海水。", "「潮汐」是这样来的！", "真的吗？"]
        );
        assert_eq!(texts("月が海を引く。潮は満ちる。"), ["月が海を引く。", "潮は満ちる。"]);
    }

    #[test]
    fn quotes_stay_with_what_they_close() {
        assert_eq!(texts("He said: \"It rises.\" Then it fell!"), ["He said: \"It rises.\"", "Then it fell!"]);
    }

    #[test]
    fn a_title_is_a_heading_and_no_sentence() {
        let sentences = split("Tides and their causes\n\nThe moon pulls the sea.");
        assert_eq!(sentences.iter().map(|sentence| sentence.heading).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn entries_of_a_list_are_told_apart() {
        assert_eq!(
            texts("• The sea rises twice a day.\n• The moon is the cause."),
            ["The sea rises twice a day.", "The moon is the cause."]
        );
    }

    #[test]
    fn what_has_no_letters_is_nothing() {
        assert!(split("").is_empty());
        assert!(split("12 … 34. -- 5!\n\n***").is_empty());
    }
}
