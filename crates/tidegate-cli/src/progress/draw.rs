//! From a scene to lines of text. Pure: the same scene, size and style are the same lines, and none is too wide.

use std::time::Duration;

use super::figures::{count, cut, pad, time, width};
use super::scene::{Blocker, File, Gauge, Scene, State};
use crate::terminal::escape;

/// The room there is, in columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) color: bool,
    pub(crate) unicode: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paint {
    Plain,
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
}

/// Columns of a file's name at most, of a bar, and of a limit with its bar.
const NAME_MAX: usize = 32;
const BAR_MAX: usize = 40;
const BAR_MIN: usize = 8;
const GAUGE_BAR: usize = 8;
/// How full a limit is when it is worth a look.
const NEARLY_FULL: f64 = 0.9;

/// A line in the making: text and colours, and how wide it is without them.
struct Line {
    text: String,
    columns: usize,
    size: Size,
    style: Style,
}

impl Line {
    fn new(size: Size, style: Style) -> Line {
        Line { text: String::new(), columns: 0, size, style }
    }

    fn left(&self) -> usize {
        // The last column stays free: some terminals break the line when it is filled.
        self.size.columns.saturating_sub(1).saturating_sub(self.columns)
    }

    fn push(&mut self, text: &str, paint: Paint) -> &mut Line {
        let shown = cut(&escape::line(text), self.left());
        self.columns += width(&shown);
        match (paint, self.style.color) {
            (Paint::Plain, _) | (_, false) => self.text.push_str(&shown),
            (paint, true) => {
                let code = match paint {
                    Paint::Plain => 0,
                    Paint::Bold => 1,
                    Paint::Dim => 2,
                    Paint::Good => 32,
                    Paint::Warn => 33,
                    Paint::Bad => 31,
                };
                self.text.push_str(&format!("\x1b[{code}m{shown}\x1b[0m"));
            }
        }
        self
    }

    /// A bar of which each part, in its colour, has a share of `total`.
    fn bar(&mut self, columns: usize, parts: &[(u64, Paint)], total: u64) -> &mut Line {
        let (full, empty) = if self.style.unicode { ("━", "─") } else { ("#", "-") };
        let (mut drawn, mut sum) = (0, 0);
        for (part, paint) in parts {
            sum += part;
            // From the sum, so that rounding does not add up. Only what is complete looks complete.
            let until = ((sum as f64 / total.max(1) as f64).min(1.0) * columns as f64) as usize;
            self.push(&full.repeat(until - drawn), *paint);
            drawn = until;
        }
        self.push(&empty.repeat(columns - drawn), Paint::Dim)
    }

    fn done(self) -> String {
        self.text
    }
}

/// The whole display, at most as many lines as there are rows, less two for what is said above it.
pub(crate) fn draw(scene: &Scene, size: Size, style: Style) -> Vec<String> {
    let mut below = gauges(scene, size, style);
    below.extend(scene.found.as_deref().map(|text| notice(text, size, style)));
    below.extend(scene.load.as_deref().map(|text| notice(text, size, style)));
    below.push(queue(scene, size, style));
    let mut lines = vec![overall(scene, size, style)];
    let room = size.rows.saturating_sub(2).max(1);
    // Where there is not room for everything, files go first, then limits; what is open stays.
    let for_files = room.saturating_sub(lines.len() + below.len());
    lines.extend(files(scene, for_files, size, style));
    let for_below = room.saturating_sub(lines.len());
    below.drain(..below.len().saturating_sub(for_below));
    lines.extend(below);
    lines.truncate(room);
    lines
}

/// `━━━━━━━━────  57 of 120 pages  48 %  85/min  58 s left`
fn overall(scene: &Scene, size: Size, style: Style) -> String {
    let more = if scene.more { "+" } else { "" };
    let mut tail = format!("  {} of {}{more} {}", scene.settled(), scene.pages, scene.unit.name());
    if scene.pages > 0 && !scene.more {
        tail += &format!("  {} %", scene.settled() * 100 / scene.pages);
    }
    if scene.pages_per_minute >= 1.0 {
        tail += &format!("  {}/min", count(scene.pages_per_minute as u64));
    }
    tail += &match scene.remaining.filter(|_| scene.settled() < scene.pages) {
        Some(left) => format!("  {} left", time(left)),
        None => format!("  {} so far", time(scene.elapsed)),
    };
    let mut line = Line::new(size, style);
    let bar = line.left().saturating_sub(width(&tail)).min(BAR_MAX);
    if bar >= BAR_MIN {
        let parts = [(scene.done, Paint::Good), (scene.skipped, Paint::Warn), (scene.failed, Paint::Bad)];
        // Room for pages that are not counted yet.
        let total = if scene.more { scene.pages + scene.pages / 4 + 1 } else { scene.pages };
        line.bar(bar, &parts, total);
    }
    line.push(&tail, Paint::Bold);
    let extras = [
        (scene.failed, "failed", Paint::Bad),
        (scene.skipped, "skipped", Paint::Warn),
        (scene.cached, "cached", Paint::Dim),
        (scene.tokens, "tokens", Paint::Dim),
    ];
    for (number, what, paint) in extras {
        let text = format!("  {} {what}", count(number));
        if number > 0 && width(&text) <= line.left() {
            line.push(&text, paint);
        }
    }
    line.done()
}

/// Those that are open, and how many are not.
fn files(scene: &Scene, room: usize, size: Size, style: Style) -> Vec<String> {
    // One file is what the first line says.
    if scene.files.len() < 2 || room == 0 {
        return Vec::new();
    }
    let active: Vec<&File> =
        scene.files.iter().filter(|file| matches!(file.state, State::Running | State::Writing)).collect();
    let hidden = active.len() < scene.files.len() || active.len() > room;
    let shown = if hidden { active.len().min(room - 1) } else { active.len() };
    let name = active.iter().take(shown).map(|file| width(&escape::line(&file.name))).max().unwrap_or(0).min(NAME_MAX);
    let mut lines: Vec<String> = active.iter().take(shown).map(|it| file(it, name, size, style)).collect();
    if hidden {
        lines.push(others(scene, active.len() - shown, size, style));
    }
    lines
}

fn file(file: &File, name: usize, size: Size, style: Style) -> String {
    let mut tail = format!("  {}/{}", file.done + file.failed + file.skipped, file.pages);
    match file.state {
        State::Writing if file.written > 0 => tail += &format!("  writing page {}", file.written),
        State::Writing => tail += "  writing",
        _ if file.in_flight > 0 => tail += &format!("  {} in flight", file.in_flight),
        _ if file.blocked > 0 => tail += "  blocked",
        _ => tail += "  reading",
    }
    let mut line = Line::new(size, style);
    line.push("  ", Paint::Plain).push(&pad(&escape::line(&file.name), name), Paint::Plain).push("  ", Paint::Plain);
    let bar = line.left().saturating_sub(width(&tail) + 12).min(BAR_MAX / 2);
    if bar >= BAR_MIN {
        let parts = [(file.done, Paint::Good), (file.skipped, Paint::Warn), (file.failed, Paint::Bad)];
        line.bar(bar, &parts, file.pages);
    }
    line.push(&tail, Paint::Plain);
    if file.failed > 0 {
        line.push(&format!("  {} failed", file.failed), Paint::Bad);
    }
    line.done()
}

fn others(scene: &Scene, running: usize, size: Size, style: Style) -> String {
    let of = |state| scene.files.iter().filter(|file| file.state == state).count();
    let counts = [
        (running, "more open", Paint::Plain),
        (of(State::Waiting), "waiting", Paint::Dim),
        (of(State::Done), "done", Paint::Good),
        (of(State::Failed), "failed", Paint::Bad),
    ];
    let mut line = Line::new(size, style);
    line.push("  files: ", Paint::Dim);
    let mut first = true;
    for (number, what, paint) in counts.into_iter().filter(|(number, ..)| *number > 0) {
        let comma = if std::mem::take(&mut first) { "" } else { ", " };
        line.push(comma, Paint::Dim).push(&format!("{number} {what}"), paint);
    }
    line.done()
}

/// Limits, as many a line as fit.
fn gauges(scene: &Scene, size: Size, style: Style) -> Vec<String> {
    let name = scene.gauges.iter().map(|gauge| width(&escape::line(&gauge.name))).max().unwrap_or(0).min(16);
    let figures: Vec<String> = scene.gauges.iter().map(figure).collect();
    let figure = figures.iter().map(|text| width(text)).max().unwrap_or(0);
    let cell = 2 + name + 1 + GAUGE_BAR + 1 + figure;
    let across = (size.columns.saturating_sub(1) / cell.max(1)).max(1);
    let mut lines = Vec::new();
    for (gauges, figures) in scene.gauges.chunks(across).zip(figures.chunks(across)) {
        let mut line = Line::new(size, style);
        for (gauge, text) in gauges.iter().zip(figures) {
            let paint = fullness(gauge);
            line.push("  ", Paint::Plain)
                .push(&pad(&escape::line(&gauge.name), name), Paint::Dim)
                .push(" ", Paint::Plain);
            line.bar(GAUGE_BAR, &[(gauge.used.min(gauge.amount), paint)], gauge.amount);
            line.push(" ", Paint::Plain).push(&pad(text, figure), paint);
        }
        lines.push(line.done());
    }
    lines
}

fn figure(gauge: &Gauge) -> String {
    match (&gauge.shut, gauge.held_for) {
        (Some(_), _) => "shut".to_owned(),
        (None, Some(held)) => format!("paused {}", time(held)),
        (None, None) => format!("{}/{}", count(gauge.used), count(gauge.amount)),
    }
}

fn fullness(gauge: &Gauge) -> Paint {
    if gauge.shut.is_some() || gauge.held_for.is_some() {
        Paint::Bad
    } else if gauge.used as f64 >= NEARLY_FULL * gauge.amount as f64 {
        Paint::Warn
    } else {
        Paint::Good
    }
}

/// `  found: 600 requests per minute (state it with --rpm 600)`
fn notice(text: &str, size: Size, style: Style) -> String {
    let mut line = Line::new(size, style);
    line.push("  ", Paint::Plain).push(text, Paint::Warn);
    line.done()
}

/// `  12 in flight, 38 blocked by rpm: room in 4 s`
fn queue(scene: &Scene, size: Size, style: Style) -> String {
    let mut line = Line::new(size, style);
    line.push("  ", Paint::Plain);
    if scene.stopping {
        line.push("stopping: ", Paint::Warn);
    } else if scene.paused {
        line.push("paused: ", Paint::Warn);
    }
    if scene.queue.in_flight == 0
        && scene.queue.blocked == 0
        && let Some(writing) = scene.writing()
    {
        line.push(&writing, Paint::Plain);
        return line.done();
    }
    line.push(&format!("{} in flight", scene.queue.in_flight), Paint::Plain);
    if scene.queue.blocked > 0 {
        line.push(&format!(", {} blocked", scene.queue.blocked), Paint::Plain);
    }
    match &scene.queue.blocked_by {
        Some(Blocker::Found) => drop(line.push(" by the server", Paint::Warn)),
        Some(Blocker::Files) => drop(line.push(" by the page concurrency", Paint::Plain)),
        Some(Blocker::Limit(name)) => {
            line.push(&format!(" by {name}"), Paint::Warn);
            let gauge = scene.gauges.iter().find(|gauge| gauge.name == *name);
            if let Some(reason) = gauge.and_then(|gauge| gauge.shut.as_deref()) {
                line.push(&format!(": {reason}"), Paint::Bad);
            } else if let Some(left) = gauge.and_then(room_in) {
                line.push(&format!(": room in {}", time(left)), Paint::Plain);
            }
        }
        None => {}
    }
    line.done()
}

fn room_in(gauge: &Gauge) -> Option<Duration> {
    gauge.held_for.or(gauge.back_in)
}

#[cfg(test)]
mod tests {
    use super::super::scene::Queue;
    use super::*;

    const PLAIN: Style = Style { color: false, unicode: true };

    fn size(columns: usize, rows: usize) -> Size {
        Size { columns, rows }
    }

    fn scene() -> Scene {
        let file = |name: &str, state, pages, done, failed, in_flight| File {
            name: name.to_owned(),
            state,
            pages,
            done,
            failed,
            skipped: 0,
            blocked: 0,
            in_flight,
            written: 0,
        };
        let gauge = |name: &str, used, amount| Gauge { name: name.to_owned(), used, amount, ..Gauge::default() };
        Scene {
            elapsed: Duration::from_secs(42),
            pages: 120,
            done: 54,
            failed: 3,
            cached: 10,
            pages_per_minute: 85.4,
            remaining: Some(Duration::from_secs(48)),
            tokens: 81_234,
            files: vec![
                file("tides.pdf", State::Done, 4, 4, 0, 0),
                file("a long report about the tides.pdf", State::Running, 100, 48, 3, 20),
                file("潮汐.pdf", State::Writing, 2, 2, 0, 0),
                file("later.pdf", State::Waiting, 0, 0, 0, 0),
            ],
            gauges: vec![
                Gauge { back_in: Some(Duration::from_secs(4)), ..gauge("rpm", 60, 60) },
                gauge("tpm", 12_449, 30_000),
                gauge("concurrency", 12, 200),
            ],
            queue: Queue { in_flight: 12, blocked: 38, blocked_by: Some(Blocker::Limit("rpm".to_owned())) },
            ..Scene::default()
        }
    }

    #[test]
    fn a_run_is_shown_from_the_whole_to_what_is_waited_for() {
        let lines = draw(&scene(), size(100, 24), PLAIN);
        assert_eq!(
            lines,
            [
                "━━━━━━━━━━━━━━━━━━━─────────────────────  57 of 120 pages  47 %  85/min  48 s left  3 failed",
                "  a long report about the tides.p…  ━━━━━━━━━━──────────  51/100  20 in flight  3 failed",
                "  潮汐.pdf                          ━━━━━━━━━━━━━━━━━━━━  2/2  writing",
                "  files: 1 waiting, 1 done",
                "  rpm         ━━━━━━━━ 60/60        tpm         ━━━───── 12.4k/30.0k",
                "  concurrency ──────── 12/200     ",
                "  12 in flight, 38 blocked by rpm: room in 4 s",
            ]
        );
    }

    #[test]
    fn no_line_is_ever_too_wide_and_no_display_too_high() {
        for columns in 0..140 {
            for rows in [0, 1, 3, 4, 6, 10, 50] {
                let lines = draw(&scene(), size(columns, rows), PLAIN);
                assert!(lines.len() <= rows.saturating_sub(2).max(1), "{columns}x{rows}: {lines:#?}");
                for line in &lines {
                    assert!(width(line) <= columns.saturating_sub(1), "{columns}x{rows}: {line:?}");
                }
            }
        }
    }

    #[test]
    fn where_there_is_little_room_what_is_waited_for_stays() {
        let lines = draw(&scene(), size(60, 5), PLAIN);
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains("57 of 120 pages"));
        assert_eq!(lines[2], "  12 in flight, 38 blocked by rpm: room in 4 s");
    }

    #[test]
    fn without_colour_there_is_not_one_escape_and_without_unicode_only_ascii() {
        let lines = draw(&scene(), size(100, 24), PLAIN).concat();
        assert!(!lines.contains('\x1b'));
        let mut ascii = scene();
        ascii.files.clear();
        let lines = draw(&ascii, size(100, 24), Style { color: false, unicode: false }).concat();
        assert!(lines.is_ascii(), "{lines}");
    }

    #[test]
    fn colours_take_no_room() {
        let colored = draw(&scene(), size(100, 24), Style { color: true, unicode: true });
        let plain = draw(&scene(), size(100, 24), PLAIN);
        for (colored, plain) in colored.iter().zip(plain) {
            let mut bare = String::new();
            let mut rest = colored.as_str();
            while let Some((before, after)) = rest.split_once("\x1b[") {
                bare += before;
                rest = after.split_once('m').unwrap().1;
            }
            assert_eq!(bare + rest, plain);
        }
    }

    #[test]
    fn a_bar_is_full_only_when_everything_is_done() {
        let mut almost = Scene { pages: 1_000, done: 999, ..Scene::default() };
        assert!(draw(&almost, size(100, 24), PLAIN)[0].contains('─'));
        almost.done = 1_000;
        assert!(!draw(&almost, size(100, 24), PLAIN)[0].contains('─'));
    }

    #[test]
    fn a_limit_that_is_paused_or_shut_says_so() {
        let mut paused = scene();
        paused.gauges[0].held_for = Some(Duration::from_secs(30));
        let text = draw(&paused, size(100, 24), PLAIN).join("\n");
        assert!(text.contains("paused 30 s") && text.contains("blocked by rpm: room in 30 s"), "{text}");
        paused.gauges[0].shut = Some("the account is out of credit".to_owned());
        let text = draw(&paused, size(100, 24), PLAIN).join("\n");
        assert!(text.contains("━ shut") && text.contains("blocked by rpm: the account is out of credit"), "{text}");
    }

    #[test]
    fn a_limit_that_was_found_has_a_line() {
        let mut found = scene();
        found.found = Some("found: 10 requests per second".to_owned());
        found.queue.blocked_by = Some(Blocker::Found);
        let lines = draw(&found, size(100, 24), PLAIN);
        assert_eq!(
            lines[lines.len() - 2..],
            ["  found: 10 requests per second", "  12 in flight, 38 blocked by the server"]
        );
        found.load = Some("this machine is busy".to_owned());
        let lines = draw(&found, size(100, 24), PLAIN);
        assert_eq!(lines[lines.len() - 2], "  this machine is busy");
    }

    #[test]
    fn at_the_end_it_says_what_it_still_does() {
        let mut end = scene();
        end.stopping = true;
        end.queue = Queue::default();
        let lines = draw(&end, size(100, 24), PLAIN);
        assert_eq!(lines.last().unwrap(), "  stopping: writing outputs");
        end.stopping = false;
        (end.files[2].pages, end.files[2].written) = (2_415, 1_200);
        let lines = draw(&end, size(100, 24), PLAIN);
        assert_eq!(lines.last().unwrap(), "  writing outputs: page 1200 of 2415 of 潮汐.pdf");
        assert!(lines[2].ends_with("writing page 1200"), "{lines:?}");
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        let mut evil = scene();
        evil.files[1].name = "a\x1b[2Jb\nc.pdf".to_owned();
        let lines = draw(&evil, size(100, 24), PLAIN);
        assert!(lines.iter().all(|line| !line.contains('\x1b') && !line.contains('\n')));
    }
}
