//! Which pages of a file: `3-10,15`.

use std::fmt;
use std::str::FromStr;

/// Pages of a file, numbered from 1.
///
/// ```
/// use tidegate_batch::Selection;
///
/// let selection: Selection = "3-5,9,20-".parse().unwrap();
/// assert_eq!(selection.of(21), [3, 4, 5, 9, 20, 21]);
/// assert_eq!(Selection::all().of(2), [1, 2]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// First and last page; none of them is empty.
    ranges: Vec<(u32, u32)>,
}

/// What is wrong with a selection: the piece that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSelection(String);

impl fmt::Display for BadSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} names no pages; write something like 3-10,15 or 20- (pages count from 1)", self.0)
    }
}

impl std::error::Error for BadSelection {}

impl Selection {
    /// Every page.
    #[must_use]
    pub fn all() -> Selection {
        Selection { ranges: vec![(1, u32::MAX)] }
    }

    /// The pages of a file that has so many, in order, each once.
    #[must_use]
    pub fn of(&self, pages: u32) -> Vec<u32> {
        let mut chosen: Vec<u32> = self.ranges.iter().flat_map(|&(first, last)| first..=last.min(pages)).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }
}

impl FromStr for Selection {
    type Err = BadSelection;

    fn from_str(text: &str) -> Result<Selection, BadSelection> {
        let bad = |piece: &str| BadSelection(piece.trim().into());
        let number = |piece: &str, digits: &str| match digits.trim().parse::<u32>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(bad(piece)),
        };
        let range = |piece: &str| {
            let (first, last) = match piece.split_once(['-', '–']) {
                None => (number(piece, piece)?, number(piece, piece)?),
                Some((first, last)) if first.trim().is_empty() => (1, number(piece, last)?),
                Some((first, last)) if last.trim().is_empty() => (number(piece, first)?, u32::MAX),
                Some((first, last)) => (number(piece, first)?, number(piece, last)?),
            };
            if first <= last { Ok((first, last)) } else { Err(bad(piece)) }
        };
        Ok(Selection { ranges: text.split(',').map(range).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_may_overlap_and_exceed_the_file() {
        let of = |text: &str| text.parse::<Selection>().unwrap().of(6);
        assert_eq!(of("4-9, 2 ,3-5"), [2, 3, 4, 5, 6]);
        assert_eq!(of("-2"), [1, 2]);
        assert!(of("7-9").is_empty());
    }

    #[test]
    fn what_names_no_pages_is_refused() {
        for text in ["", "0", "5-3", "a", "1,,2", "-", "1-2-3", "99999999999"] {
            assert!(text.parse::<Selection>().is_err(), "{text}");
        }
    }
}
