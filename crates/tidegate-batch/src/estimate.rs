//! How many tokens something will be counted as, before anybody has counted: a little too many rather than too few, for
//! what is booked too high is given back when the answer says so, and what is booked too low exceeds a limit.

use crate::question::{Picture, Question};

/// What a provider's own framing of a message costs.
const FRAME: u64 = 12;

/// What an answer costs when nobody limited it: a generous page of explanation.
pub const ANSWER_TOKENS: u64 = 1_024;

/// Tokens of a question and, at the most, of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Of the question.
    pub input_tokens: u64,
    /// Of the answer.
    pub output_tokens: u64,
}

impl Estimate {
    /// Both.
    #[must_use]
    pub fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// The tokens of a text: words of the Latin alphabet have some four letters a token, other alphabets two, Chinese and its
/// neighbours about one.
///
/// ```
/// use tidegate_batch::tokens_of_text;
///
/// assert_eq!(tokens_of_text(""), 0);
/// assert!((8..=16).contains(&tokens_of_text("The moon pulls the sea, and the sea follows.")));
/// assert!((7..=12).contains(&tokens_of_text("月亮吸引海水。")));
/// ```
#[must_use]
pub fn tokens_of_text(text: &str) -> u64 {
    // In hundredths of a token.
    let hundredths: u64 = text
        .chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | ' ' => 26,
            '0'..='9' => 40,
            '\0'..='\x7f' => 45,
            '\u{80}'..='\u{24f}' => 40,
            '\u{250}'..='\u{10ff}' => 55,
            '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' => {
                115
            }
            _ => 100,
        })
        .sum();
    hundredths.div_ceil(100)
}

/// The tokens of a picture as most providers count: by its area, in tiles.
pub(crate) fn tokens_of_picture(picture: &Picture) -> u64 {
    // Larger pictures are scaled down before they are counted.
    let longest = u64::from(picture.width.max(picture.height)).max(1);
    let scaled = |side: u32| u64::from(side) * longest.min(1_568) / longest;
    (scaled(picture.width) * scaled(picture.height) / 750).max(258)
}

/// The tokens of a question, the framing included.
pub(crate) fn tokens_of_question(question: &Question) -> u64 {
    FRAME + tokens_of_text(&question.to_text()) + question.picture.as_ref().map_or(0, tokens_of_picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_costs_by_its_area_up_to_a_ceiling() {
        let of = |width, height| tokens_of_picture(&Picture { png: bytes::Bytes::new(), width, height });
        assert_eq!(of(1, 1), 258);
        assert_eq!(of(0, 0), 258);
        assert!(of(1_200, 1_600) > of(600, 800));
        assert!(of(60_000, 80_000) < 3_000, "scaled down first");
    }

    #[test]
    fn a_text_is_estimated_at_more_than_a_token_a_word() {
        let english = "Tidal forces arise because the gravitational field exerted on one body by another is not constant \
                       across its parts: the nearest side is attracted more strongly than the farthest side.";
        let words = english.split_whitespace().count() as u64;
        let tokens = tokens_of_text(english);
        assert!(tokens > words && tokens < 2 * words + 10, "{tokens} for {words} words");
    }
}
