//! Numbers, times and texts as they are shown: short, and of a known width.

use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// `950`, `12.4k`, `3.1M`.
pub(crate) fn count(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..100_000 => format!("{:.1}k", number as f64 / 1e3),
        100_000..1_000_000 => format!("{}k", number / 1_000),
        1_000_000..100_000_000 => format!("{:.1}M", number as f64 / 1e6),
        _ => format!("{}M", number / 1_000_000),
    }
}

/// `48 s`, `12 min`, `3 h 20 min`.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs_f64().ceil() as u64 {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds @ 100..3600 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// How many columns it takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// At most `columns` wide; what is cut shows that it was.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let mut short: String = text
        .chars()
        .take_while(|c| {
            let wide = c.width().unwrap_or(0);
            let fits = wide <= left;
            left = left.saturating_sub(wide);
            fits
        })
        .collect();
    if columns > 0 {
        short.push('…');
    }
    short
}

/// Exactly `columns` wide.
pub(crate) fn pad(text: &str, columns: usize) -> String {
    let mut padded = cut(text, columns);
    padded.extend(std::iter::repeat_n(' ', columns - width(&padded)));
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        let shown: Vec<String> = [0, 9_999, 12_449, 250_000, 1_000_000, 123_456_789].into_iter().map(count).collect();
        assert_eq!(shown, ["0", "9999", "12.4k", "250k", "1.0M", "123M"]);
        assert!(shown.iter().all(|it| it.len() <= 5));
    }

    #[test]
    fn times_are_rounded_up_so_that_nobody_waits_zero() {
        assert_eq!(time(Duration::from_millis(200)), "1 s");
        assert_eq!(time(Duration::from_secs(61)), "61 s");
        assert_eq!(time(Duration::from_secs(601)), "11 min");
        assert_eq!(time(Duration::from_secs(7_260)), "2 h 1 min");
    }

    #[test]
    fn texts_are_cut_by_columns_not_by_characters() {
        assert_eq!(cut("schleuse.pdf", 8), "schleus…");
        assert_eq!(cut("潮汐与闸门.pdf", 8), "潮汐与…");
        assert_eq!(width(&cut("潮汐与闸门.pdf", 7)), 7);
        assert_eq!(pad("潮汐", 6), "潮汐  ");
        assert_eq!(cut("abc", 0), "");
    }
}
