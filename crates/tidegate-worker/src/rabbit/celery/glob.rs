//! Shell patterns as Python's `fnmatch` reads them: `*`, `?`, `[seq]` and `[!seq]`. They come from other machines, so
//! the time is bounded by the product of the two lengths.

/// A part of a pattern.
enum Part {
    /// `*`: any number of characters.
    Any,
    /// `?`: one character.
    One,
    /// `[seq]`: one of these, or with `!` one of all others.
    Class { negated: bool, letters: Vec<char> },
    /// The character itself.
    Letter(char),
}

/// Returns `true` if the pattern matches all of `name`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let pattern = parts(&pattern.chars().collect::<Vec<_>>());
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut read) = (0, 0);
    // The last `*`, and how much it and everything before it takes. Earlier ones need no retry: whatever
    // more they could match, the last one can match too.
    let mut last_any = None;
    while read < name.len() {
        match pattern.get(at) {
            Some(Part::Any) => {
                last_any = Some((at, read));
                at += 1;
            }
            Some(part) if part.takes(name[read]) => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((any, taken)) = last_any else { return false };
                last_any = Some((any, taken + 1));
                (at, read) = (any + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|part| matches!(part, Part::Any))
}

impl Part {
    fn takes(&self, letter: char) -> bool {
        match self {
            Part::Any => false,
            Part::One => true,
            Part::Class { negated, letters } => class_has(letters, letter) != *negated,
            Part::Letter(own) => *own == letter,
        }
    }
}

fn parts(pattern: &[char]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = pattern;
    while let [first, behind @ ..] = rest {
        rest = behind;
        parts.push(match first {
            '*' => Part::Any,
            '?' => Part::One,
            '[' => match class(behind) {
                Some((part, behind)) => {
                    rest = behind;
                    part
                }
                None => Part::Letter('['),
            },
            letter => Part::Letter(*letter),
        });
    }
    parts
}

/// Reads a class behind its `[`; `None` if it has no end, then the bracket is a letter.
fn class(pattern: &[char]) -> Option<(Part, &[char])> {
    let (negated, letters) = match pattern {
        ['!', letters @ ..] => (true, letters),
        letters => (false, letters),
    };
    // A `]` that comes first is one of the letters.
    let end = 1 + letters.get(1..)?.iter().position(|letter| *letter == ']')?;
    Some((Part::Class { negated, letters: letters[..end].to_vec() }, &letters[end + 1..]))
}

fn class_has(mut class: &[char], letter: char) -> bool {
    loop {
        let (found, rest) = match class {
            [low, '-', high, rest @ ..] => ((*low..=*high).contains(&letter), rest),
            [one, rest @ ..] => (*one == letter, rest),
            [] => return false,
        };
        if found {
            return true;
        }
        class = rest;
    }
}

/// Tries everything: what the matcher is compared with.
#[cfg(any(test, fuzzing))]
fn naive(pattern: &[Part], name: &[char]) -> bool {
    match pattern {
        [] => name.is_empty(),
        [Part::Any, rest @ ..] => (0..=name.len()).any(|skip| naive(rest, &name[skip..])),
        [part, rest @ ..] => name.first().is_some_and(|letter| part.takes(*letter)) && naive(rest, &name[1..]),
    }
}

/// For the fuzz target: a pattern and, behind a line end, a name.
#[cfg(fuzzing)]
pub fn fuzz(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (pattern, name) = text.split_once('\n').unwrap_or((text, "celery@host"));
    let found = matches(pattern, name);
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Trying everything takes for ever otherwise.
    if pattern.len() <= 12 && name.len() <= 12 {
        assert_eq!(found, naive(&parts(&pattern), &name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_to_python() {
        // As `fnmatch.fnmatchcase(name, pattern)` of CPython 3 answers.
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "a@b", true),
            ("**a", "ba", true),
            ("?", "", false),
            ("?", "ä", true),
            ("??", "ä", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXb", false),
            ("[ab]", "b", true),
            ("[!ab]", "b", false),
            ("[!ab]", "c", true),
            ("[a-c]x", "bx", true),
            ("[a-c-e]", "-", true),
            ("[a-c-e]", "d", false),
            ("[a-c-e]", "e", true),
            ("[--0]", ".", true),
            ("[a-]", "-", true),
            ("[-a]", "-", true),
            ("[z-a]", "m", false),
            ("[!z-a]", "m", true),
            ("[]]", "]", true),
            ("[]a]", "a", true),
            ("[!]]", "]", false),
            ("[!]]", "a", true),
            ("[]", "[]", true),
            ("[!]", "[!]", true),
            ("[a", "[a", true),
            ("*[!", "x[!", true),
            ("[[]", "[", true),
            ("[*]", "*", true),
            ("[*]", "a", false),
            ("[?]", "a", false),
            ("[^a]", "b", false),
            ("[^a]", "^", true),
            ("A", "a", false),
            ("a\\*", "a*", false),
            ("a\\*", "a\\b", true),
            ("celery@*", "celery@host", true),
            ("*@host-[0-9]", "tidegate@host-7", true),
            ("*.*.*", "a.b", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern:?} and {name:?}");
        }
    }

    #[test]
    fn many_stars_come_to_an_end() {
        assert!(!matches("**********************!", "tidegate@a-host-with-a-long-name.example.com"));
        let name = "a".repeat(255);
        assert!(!matches(&format!("{}b", "*a".repeat(120)), &name));
        assert!(matches(&"*a".repeat(120), &name));
        assert!(!matches(&format!("{}b", "*[!b]".repeat(50)), &name));
    }

    #[test]
    fn random_patterns_match_what_trying_everything_matches() {
        let draw = |random: &mut fastrand::Rng, letters: &str, most: usize| -> String {
            let letters: Vec<char> = letters.chars().collect();
            (0..random.usize(..=most)).map(|_| letters[random.usize(..letters.len())]).collect()
        };
        let mut matched = 0;
        let seeds = tidegate_seeds::seeds(50_000);
        let is_replay = seeds.is_replay();
        for seed in seeds {
            let random = &mut fastrand::Rng::with_seed(seed);
            let (pattern, name) = (draw(random, "**??ab[]!-", 8), draw(random, "ab-]", 8));
            let expected = naive(&parts(&pattern.chars().collect::<Vec<_>>()), &name.chars().collect::<Vec<_>>());
            assert_eq!(matches(&pattern, &name), expected, "seed {seed}: {pattern:?} and {name:?}");
            matched += usize::from(expected);
        }
        assert!(is_replay || matched > 1_000, "only {matched} matched");
    }
}
