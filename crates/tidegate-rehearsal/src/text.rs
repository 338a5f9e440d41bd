//! Texts in and out: durations as people write them, tokens as this server counts them, answers made from prompts.

use std::time::Duration;

/// `250ms`, `2s`, `1m 30s`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let parsed: jiff::SignedDuration = text.parse().ok()?;
    Duration::try_from(parsed).ok()
}

/// A duration as Go prints it, as the rate headers have it: `12ms`, `1.5s`, `6m0s`.
pub(crate) fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 60, duration.subsec_millis()) {
        (0, millis) if seconds == 0 => format!("{millis}ms"),
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{:.3}s", duration.as_secs_f64()),
        (minutes, 0) => format!("{minutes}m{}s", seconds % 60),
        (minutes, millis) => format!("{minutes}m{}.{millis:03}s", seconds % 60),
    }
}

/// Four characters are a token, and nothing is free.
pub(crate) fn tokens_of(text: &str) -> u64 {
    (text.chars().count() as u64).div_ceil(4).max(1)
}

/// What a picture costs, whatever its size.
pub(crate) const TOKENS_PER_PICTURE: u64 = 258;

/// How many words of a prompt its answer repeats, unless told otherwise.
pub(crate) const ANSWER_WORDS: usize = 40;

/// The same prompt, the same answer: its first `words` words behind a fingerprint of all of it.
pub(crate) fn answer_to(prompt: &str, words: usize) -> String {
    let mut answer = format!("Rehearsed {:016x}:", fingerprint(prompt.as_bytes()));
    for word in prompt.split_whitespace().take(words) {
        answer.push(' ');
        answer.push_str(word);
    }
    answer
}

/// Returns at most `tokens_max` tokens of a text, and whether that is all of it.
pub(crate) fn cut(text: &str, tokens_max: u64) -> (&str, bool) {
    let chars = usize::try_from(tokens_max.saturating_mul(4)).unwrap_or(usize::MAX);
    match text.char_indices().nth(chars) {
        Some((end, _)) => (&text[..end], false),
        None => (text, true),
    }
}

/// FNV-1a: the same on every machine and in every version. Collisions on purpose do not matter in a rehearsal.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_go_does() {
        let printed = [12, 1_000, 1_500, 360_000, 61_001].map(|ms| go_duration(Duration::from_millis(ms)));
        assert_eq!(printed, ["12ms", "1s", "1.500s", "6m0s", "1m1.001s"]);
        assert_eq!(go_duration(Duration::ZERO), "0ms");
    }

    #[test]
    fn the_same_prompt_gets_the_same_answer_and_another_one_another() {
        let answer = answer_to("What is a tide gate?", 3);
        assert_eq!(answer, answer_to("What is a tide gate?", 3));
        assert!(answer.ends_with(": What is a"), "{answer}");
        assert_ne!(answer, answer_to("What is a tide gate!", 3));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("äöüß€uro", 1), ("äöüß", false));
        assert_eq!(cut("äöüß", 1), ("äöüß", true));
        assert_eq!((tokens_of(""), tokens_of("abcd"), tokens_of("abcde")), (1, 1, 2));
    }
}
