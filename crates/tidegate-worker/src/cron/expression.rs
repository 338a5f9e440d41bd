//! Cron expressions: five fields, and the next instant they name. Pure; time zones by jiff.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

use crate::moment;

/// Minute, hour, day of the month, month, day of the week; `*`, lists, ranges, steps, names of months and days; `@hourly`,
/// `@daily`, `@weekly`, `@monthly`, `@yearly`. As in cron, a time matches either day if both are restricted.
///
/// Where clocks are set ahead, a time that is left out is run as much later; where they are set back, an hour's `*` runs in
/// both hours and a fixed time in the first of them.
///
/// ```
/// use jiff::tz::TimeZone;
/// use tidegate_worker::Cron;
///
/// let cron: Cron = "30 8 * * mon-fri".parse().unwrap();
/// let friday = "2026-11-13T09:00:00Z".parse().unwrap();
/// assert_eq!(cron.next(friday, &TimeZone::UTC).unwrap().to_string(), "2026-11-16T08:30:00Z");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    /// Bit n stands for n, in all of these.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    /// Sunday is 0.
    weekdays: u64,
    any_hour: bool,
    any_day: bool,
    any_weekday: bool,
}

/// What is wrong with an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronError {
    /// In words.
    pub message: String,
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CronError {}

/// A leap day on a certain weekday may be 40 years away; beyond that there is none.
const DAYS_MAX: i32 = 41 * 366;

struct Field {
    name: &'static str,
    first: u32,
    last: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const FIELDS: [Field; 5] = [
    Field { name: "minute", first: 0, last: 59, names: &[] },
    Field { name: "hour", first: 0, last: 23, names: &[] },
    Field { name: "day of the month", first: 1, last: 31, names: &[] },
    Field { name: "month", first: 1, last: 12, names: &MONTHS },
    Field { name: "day of the week", first: 0, last: 7, names: &WEEKDAYS },
];

impl Field {
    fn parse(&self, text: &str) -> Result<u64, CronError> {
        let wrong = |why: &str| CronError { message: format!("the {} '{text}' {why}", self.name) };
        let mut bits = 0;
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                None => (part, None),
                Some((range, step)) => {
                    let step = step.parse().ok().filter(|step| (1..=self.last).contains(step));
                    (range, Some(step.ok_or_else(|| wrong("has a step that is no number above zero"))?))
                }
            };
            let (first, last) = if range == "*" {
                (self.first, self.last)
            } else if let Some((first, last)) = range.split_once('-') {
                (
                    self.number(first).ok_or_else(|| wrong(&self.bounds()))?,
                    self.number(last).ok_or_else(|| wrong(&self.bounds()))?,
                )
            } else {
                let first = self.number(range).ok_or_else(|| wrong(&self.bounds()))?;
                (first, if step.is_some() { self.last } else { first })
            };
            if first > last {
                return Err(wrong("has a range that goes backwards"));
            }
            (first..=last).step_by(step.unwrap_or(1) as usize).for_each(|value| bits |= 1 << value);
        }
        Ok(bits)
    }

    fn number(&self, text: &str) -> Option<u32> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let value = match named {
            Some(at) => at as u32 + self.first,
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok()?,
            None => return None,
        };
        (self.first..=self.last).contains(&value).then_some(value)
    }

    fn bounds(&self) -> String {
        format!("is not in {} to {}", self.first, self.last)
    }
}

impl FromStr for Cron {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Cron, CronError> {
        let text = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other => other,
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = words[..] else {
            return Err(CronError {
                message: format!("'{text}' has {} fields; minute, hour, day, month, weekday are five", words.len()),
            });
        };
        let mut weekdays = FIELDS[4].parse(weekday)?;
        // Seven is Sunday too.
        weekdays = (weekdays | (weekdays >> 7)) & 0x7f;
        Ok(Cron {
            minutes: FIELDS[0].parse(minute)?,
            hours: FIELDS[1].parse(hour)?,
            days: FIELDS[2].parse(day)?,
            months: FIELDS[3].parse(month)?,
            weekdays,
            any_hour: hour.starts_with('*'),
            any_day: day.starts_with('*'),
            any_weekday: weekday.starts_with('*'),
        })
    }
}

impl Cron {
    /// The first instant behind `after` that matches by the clocks of this zone; `None` if there is none, as on 30 February.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut date = zone.to_datetime(after).date();
        for _ in 0..DAYS_MAX {
            if self.matches_date(date)
                && let Some(found) = self.next_on(date, after, zone)
            {
                return Some(found);
            }
            date = date.checked_add(1.day()).ok()?;
        }
        None
    }

    fn matches_date(&self, date: Date) -> bool {
        let day = self.days >> date.day() & 1 == 1;
        let weekday = self.weekdays >> date.weekday().to_sunday_zero_offset() & 1 == 1;
        let both = if self.any_day || self.any_weekday { day && weekday } else { day || weekday };
        both && self.months >> date.month() & 1 == 1
    }

    fn next_on(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        if self.any_hour { self.walk(date, after, zone) } else { self.fixed(date, after, zone) }
    }

    /// Fixed times: each is one instant, whatever the clocks do.
    fn fixed(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let times = bits(self.hours).flat_map(|hour| bits(self.minutes).map(move |minute| (hour, minute)));
        let instants = times.filter_map(|(hour, minute)| {
            let time = Time::new(hour, minute, 0, 0).ok()?;
            zone.to_ambiguous_timestamp(date.to_datetime(time)).compatible().ok()
        });
        // A time that is left out comes later than those behind it.
        instants.filter(|instant| *instant > after).min()
    }

    /// Every hour: minute by minute through the day as it really passes, 23, 24 or 25 hours of it.
    fn walk(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let begin = zone.to_ambiguous_timestamp(date.to_datetime(Time::midnight())).compatible().ok()?;
        let mut at = begin;
        if after >= begin {
            let passed = moment::since(after, begin).as_secs() / 60 + 1;
            at = later(begin, passed)?;
        }
        loop {
            let civil = zone.to_datetime(at);
            if civil.date() != date {
                return None;
            }
            if self.hours >> civil.hour() & 1 == 1 && self.minutes >> civil.minute() & 1 == 1 {
                return Some(at);
            }
            at = later(at, 1)?;
        }
    }
}

/// `None` behind the end of time, in the year 9999.
fn later(from: Timestamp, minutes: u64) -> Option<Timestamp> {
    from.checked_add(Duration::from_secs(minutes * 60)).ok()
}

fn bits(set: u64) -> impl Iterator<Item = i8> {
    (0..60).filter(move |bit| set >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn following(text: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let cron: Cron = text.parse().unwrap();
        let zone = TimeZone::get(zone).unwrap();
        let mut at: Timestamp = from.parse().unwrap();
        (0..count)
            .map(|_| {
                at = cron.next(at, &zone).unwrap();
                at.to_zoned(zone.clone()).strftime("%a %F %H:%M %z").to_string()
            })
            .collect()
    }

    #[test]
    fn behind_the_end_of_time_there_is_nothing() {
        for text in ["* * * * *", "7 * * * *", "0 3 * * *"] {
            let cron: Cron = text.parse().unwrap();
            assert_eq!(cron.next(Timestamp::MAX, &TimeZone::UTC), None, "{text}");
        }
    }

    #[test]
    fn lists_ranges_steps_and_names_are_understood() {
        assert_eq!(
            following("*/20 9-10 * * *", "UTC", "2026-01-01T09:30:00Z", 4),
            [
                "Thu 2026-01-01 09:40 +0000",
                "Thu 2026-01-01 10:00 +0000",
                "Thu 2026-01-01 10:20 +0000",
                "Thu 2026-01-01 10:40 +0000"
            ]
        );
        assert_eq!(
            following("0 0 * feb SUN,3", "UTC", "2026-01-01T00:00:00Z", 3),
            ["Sun 2026-02-01 00:00 +0000", "Wed 2026-02-04 00:00 +0000", "Sun 2026-02-08 00:00 +0000"]
        );
        assert_eq!(following("5/30 * * * 7", "UTC", "2026-01-03T23:59:59Z", 2)[1], "Sun 2026-01-04 00:35 +0000");
        assert_eq!(following("@yearly", "UTC", "2026-01-01T00:00:00Z", 1), ["Fri 2027-01-01 00:00 +0000"]);
    }

    #[test]
    fn an_instant_that_matches_is_not_its_own_next() {
        assert_eq!(following("* * * * *", "UTC", "2026-01-01T00:00:00Z", 1), ["Thu 2026-01-01 00:01 +0000"]);
        assert_eq!(following("* * * * *", "UTC", "2026-01-01T00:00:59.9Z", 1), ["Thu 2026-01-01 00:01 +0000"]);
    }

    #[test]
    fn either_day_matches_if_both_are_restricted() {
        assert_eq!(
            following("0 12 13 * fri", "UTC", "2026-02-01T00:00:00Z", 3),
            ["Fri 2026-02-06 12:00 +0000", "Fri 2026-02-13 12:00 +0000", "Fri 2026-02-20 12:00 +0000"]
        );
    }

    #[test]
    fn a_leap_day_is_waited_for_and_an_impossible_one_is_none() {
        assert_eq!(following("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", 1), ["Tue 2028-02-29 00:00 +0000"]);
        let never: Cron = "0 0 30 2 *".parse().unwrap();
        assert_eq!(never.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC), None);
    }

    #[test]
    fn a_time_that_clocks_leave_out_is_run_as_much_later() {
        assert_eq!(
            following("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2),
            ["Sun 2026-03-29 03:30 +0200", "Mon 2026-03-30 02:30 +0200"]
        );
    }

    #[test]
    fn a_time_that_clocks_repeat_runs_once_and_every_hour_runs_in_both() {
        assert_eq!(
            following("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
            ["Sun 2026-10-25 02:30 +0200", "Mon 2026-10-26 02:30 +0100"]
        );
        assert_eq!(
            following("30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 3),
            ["Sun 2026-10-25 02:30 +0200", "Sun 2026-10-25 02:30 +0100", "Sun 2026-10-25 03:30 +0100"]
        );
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let complaint = |text: &str| text.parse::<Cron>().unwrap_err().message;
        assert_eq!(complaint("60 * * * *"), "the minute '60' is not in 0 to 59");
        assert_eq!(complaint("* * 0 * *"), "the day of the month '0' is not in 1 to 31");
        assert_eq!(complaint("* 5-3 * * *"), "the hour '5-3' has a range that goes backwards");
        assert_eq!(complaint("*/0 * * * *"), "the minute '*/0' has a step that is no number above zero");
        assert_eq!(complaint("* * * foo *"), "the month 'foo' is not in 1 to 12");
        assert!(complaint("* * * *").contains("has 4 fields"));
        assert!(complaint("+1 * * * *").contains("is not in 0 to 59"));
    }
}
