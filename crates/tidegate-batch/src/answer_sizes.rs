//! How much space answers take on the disk, by those that came.

/// The size of an answer, until some have come.
const ANSWER_BYTES: u64 = 8 << 10;

/// That guess counts as much as this many answers.
const ANSWERS_GUESSED: u64 = 8;

/// The sizes of the answers that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerSizes {
    answers: u64,
    bytes: u64,
    largest: u64,
}

impl AnswerSizes {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.answers += 1;
        self.bytes += bytes;
        self.largest = self.largest.max(bytes);
    }

    /// Returns how much space that many answers may need: each twice the mean, and one as large as the largest.
    pub(crate) fn space_for(&self, answers: usize) -> u64 {
        if answers == 0 {
            return 0;
        }
        let mean = (self.bytes + ANSWERS_GUESSED * ANSWER_BYTES).div_ceil(self.answers + ANSWERS_GUESSED);
        (answers as u64).saturating_mul(2 * mean).saturating_add(self.largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_for_answers_follows_those_that_came() {
        let mut sizes = AnswerSizes::default();
        assert_eq!((sizes.space_for(0), sizes.space_for(200)), (0, 200 * 2 * ANSWER_BYTES));
        for _ in 0..10_000 {
            sizes.add(500);
        }
        let space = sizes.space_for(200);
        assert!((200 * 2 * 500..200 * 2 * 520).contains(&space), "{space}");
        sizes.add(40 << 20);
        let with_a_large_one = sizes.space_for(200);
        assert!(
            with_a_large_one < (40 << 20) + 200 * 2 * 5_000,
            "one large answer is expected once: {with_a_large_one}"
        );
    }
}
