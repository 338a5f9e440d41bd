//! Which language explanations are in, as HTML names it (BCP 47). Pure.

/// The language is not known: a screen reader keeps its user's own, and a browser does not offer a wrong translation.
pub(super) const UNKNOWN: &str = "und";

/// Characters that are looked at.
const SAMPLE: usize = 40_000;

/// Small words that there must be of a language at least, and how many of all words.
const SMALL_MIN: usize = 8;
const SMALL_PART: usize = 8;

/// Names of languages as people write them behind `--language`, and their codes.
const NAMES: &[(&str, &[&str])] = &[
    ("ar", &["arabic", "العربية"]),
    ("ca", &["catalan", "català"]),
    ("cs", &["czech", "čeština"]),
    ("da", &["danish", "dansk"]),
    ("de", &["german", "deutsch"]),
    ("el", &["greek", "ελληνικά"]),
    ("en", &["english"]),
    ("en-GB", &["british english"]),
    ("en-US", &["american english"]),
    ("es", &["spanish", "español", "castellano"]),
    ("fa", &["persian", "farsi", "فارسی"]),
    ("fi", &["finnish", "suomi"]),
    ("fr", &["french", "français"]),
    ("he", &["hebrew", "עברית"]),
    ("hi", &["hindi", "हिन्दी"]),
    ("hu", &["hungarian", "magyar"]),
    ("id", &["indonesian", "bahasa indonesia"]),
    ("it", &["italian", "italiano"]),
    ("ja", &["japanese", "日本語"]),
    ("ko", &["korean", "한국어"]),
    ("nb", &["norwegian", "norsk"]),
    ("nl", &["dutch", "nederlands"]),
    ("pl", &["polish", "polski"]),
    ("pt", &["portuguese", "português"]),
    ("pt-BR", &["brazilian portuguese", "português brasileiro"]),
    ("ro", &["romanian", "română"]),
    ("ru", &["russian", "русский"]),
    ("sv", &["swedish", "svenska"]),
    ("th", &["thai", "ไทย"]),
    ("tr", &["turkish", "türkçe"]),
    ("uk", &["ukrainian", "українська"]),
    ("vi", &["vietnamese", "tiếng việt"]),
    ("zh", &["chinese", "中文"]),
    ("zh-Hans", &["simplified chinese", "简体中文"]),
    ("zh-Hant", &["traditional chinese", "繁體中文"]),
];

/// Small words that are frequent in one of these languages and rare in the others.
const SMALL: &[(&str, &[&str])] = &[
    (
        "de",
        &["der", "die", "das", "und", "ist", "nicht", "ein", "eine", "mit", "auf", "für", "den", "von", "wird", "sich"],
    ),
    ("en", &["the", "of", "and", "is", "to", "that", "with", "for", "this", "are", "as", "which", "by", "be", "it"]),
    ("es", &["el", "los", "las", "una", "que", "es", "por", "con", "para", "del", "como", "más", "y", "su", "se"]),
    ("fr", &["le", "les", "des", "est", "une", "dans", "pour", "qui", "sur", "pas", "et", "du", "au", "avec", "sont"]),
    (
        "it",
        &["il", "gli", "che", "della", "di", "non", "sono", "per", "è", "con", "nel", "delle", "anche", "dei", "come"],
    ),
    (
        "nl",
        &[
            "het", "een", "van", "niet", "zijn", "voor", "dat", "aan", "worden", "ook", "naar", "wordt", "deze", "bij",
            "en",
        ],
    ),
    ("pt", &["os", "uma", "não", "para", "com", "são", "dos", "mais", "é", "pela", "ao", "como", "que", "do", "da"]),
];

/// The language that was asked for, or else the one that the texts seem to be in, or [`UNKNOWN`].
pub(super) fn of<'t>(declared: &str, texts: impl Iterator<Item = &'t str>) -> String {
    let declared = declared.trim();
    if declared.is_empty() {
        let mut sample = String::new();
        for text in texts {
            sample.push_str(text);
            sample.push('\n');
            if sample.len() >= SAMPLE {
                break;
            }
        }
        return detect(&sample).unwrap_or(UNKNOWN).to_owned();
    }
    named(&declared.to_lowercase()).map(str::to_owned).or_else(|| code(declared)).unwrap_or_else(|| UNKNOWN.to_owned())
}

fn named(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|(_, names)| names.contains(&name)).map(|(code, _)| *code)
}

/// `pt-BR` and `pt_br` are codes: two or three letters, then parts of two to eight letters or digits.
fn code(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(['-', '_']).collect();
    let is_first = (2..=3).contains(&parts[0].len()) && parts[0].bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_more = |part: &&str| (2..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_first && parts.len() <= 4 && parts[1..].iter().all(is_more)).then(|| parts.join("-"))
}

fn detect(text: &str) -> Option<&'static str> {
    by_script(text).or_else(|| by_small_words(text))
}

/// Languages that are the only one, or by far the most frequent one, in their script.
fn by_script(text: &str) -> Option<&'static str> {
    let (mut letters, mut han, mut kana, mut hangul, mut thai) = (0, 0, 0, 0, 0);
    for c in text.chars().filter(|c| c.is_alphabetic()) {
        letters += 1;
        match c {
            '\u{3040}'..='\u{30ff}' => kana += 1,
            '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2ffff}' => han += 1,
            '\u{ac00}'..='\u{d7af}' => hangul += 1,
            '\u{e00}'..='\u{e7f}' => thai += 1,
            _ => {}
        }
    }
    let most = |count: usize| count * 2 > letters;
    match () {
        () if most(han + kana) && kana * 10 > han => Some("ja"),
        () if most(han + kana) => Some("zh"),
        () if most(hangul) => Some("ko"),
        () if most(thai) => Some("th"),
        () => None,
    }
}

fn by_small_words(text: &str) -> Option<&'static str> {
    let words: Vec<String> =
        text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    let count = |small: &[&str]| words.iter().filter(|word| small.contains(&word.as_str())).count();
    let mut counts: Vec<(usize, &'static str)> = SMALL.iter().map(|(code, small)| (count(small), *code)).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let [(first, code), (second, _), ..] = counts[..] else { return None };
    (first >= SMALL_MIN && first * SMALL_PART >= words.len() && first * 2 >= second * 3).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_that_was_asked_for_is_named_by_its_code() {
        let of = |declared| of(declared, std::iter::empty());
        assert_eq!(
            ["German", "deutsch", "de", "pt_BR", "zh-Hant-TW", "Brazilian Portuguese"].map(of),
            ["de", "de", "de", "pt-BR", "zh-Hant-TW", "pt-BR"]
        );
        assert_eq!(["Klingon", "plain words for children", "\" onload=\"x", "d", "de-"].map(of), ["und"; 5]);
    }

    #[test]
    fn otherwise_the_texts_say_which_it_is_or_that_it_is_not_known() {
        let of = |text: &'static str| of("", std::iter::repeat_n(text, 3));
        let german =
            "Die Flut ist der Teil der Gezeiten, in dem das Wasser steigt, und sie ist nicht überall gleich hoch.";
        let english =
            "The tide is the rise and fall of the sea that is caused by the moon, and it is not the same everywhere.";
        let french = "La marée est le mouvement de la mer qui est dû à la lune et les coefficients sont publiés dans les annuaires.";
        assert_eq!([german, english, french].map(of), ["de", "en", "fr"]);
        assert_eq!(
            ["潮の満ち引きは月の引力による", "潮汐是月亮引起的", "밀물과 썰물은 달 때문이다"].map(of),
            ["ja", "zh", "ko"]
        );
        assert_eq!(of("tab = sumnuminit(); time = 2,709 ms. callCC 69"), "und");
        assert_eq!(of(""), "und");
    }
}
