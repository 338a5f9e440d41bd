//! Charts as SVG, stretched to their place: bars, sparks, and the strip of a limit's last minutes.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};

use crate::format;
use crate::history::Sample;

/// The strip's slots: two seconds each, ten minutes together.
pub(crate) const SLOT_SECONDS: u64 = 2;
pub(crate) const SLOTS: u64 = 300;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 80.0;

/// A share as a percentage for an SVG attribute.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { (part as f64 / whole as f64).clamp(0.0, 1.0) };
    format!("{:.2}%", share * 100.0)
}

/// A bar of what is used, with a post at the highest use.
pub(crate) fn gauge(used: u64, amount: u64, peak: u64, is_full: bool) -> Markup {
    let label = format!("{} of {}, peak {}", format::count(used), format::count(amount), format::count(peak));
    let post = if amount == 0 { 0.0 } else { (peak as f64 / amount as f64).clamp(0.0, 0.995) };
    html! {
        svg.bar.tall.gauge role="img" aria-label=(label) {
            rect class=(if is_full { "f-block" } else { "f-flight" }) width=(percent(used, amount)) height="100%" {}
            @if peak > 0 { rect.f-ink x=(format!("{:.2}%", post * 100.0)) width="2" height="100%" {} }
        }
    }
}

/// `x y` with at most one decimal.
fn point(out: &mut String, command: char, x: f64, y: f64) {
    let short = |value: f64| {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
    };
    let _ = write!(out, "{command}{} {}", short(x), short(y));
}

/// A line through the values, as two paths: the line, and the area below it. Missing values leave gaps.
fn paths(values: &[Option<f64>], width: f64, height: f64) -> (String, String) {
    let (mut line, mut area) = (String::new(), String::new());
    let step = width / (values.len().max(2) - 1) as f64;
    let mut began: Option<f64> = None;
    let mut end = 0.0;
    for (at, value) in values.iter().enumerate() {
        let x = at as f64 * step;
        match (value, began) {
            (Some(value), None) => {
                let y = height - value * height;
                point(&mut line, 'M', x, y);
                point(&mut area, 'M', x, height);
                point(&mut area, 'L', x, y);
                began = Some(x);
                end = x;
            }
            (Some(value), Some(_)) => {
                let y = height - value * height;
                point(&mut line, 'L', x, y);
                point(&mut area, 'L', x, y);
                end = x;
            }
            (None, Some(_)) => {
                point(&mut area, 'L', end, height);
                area.push('Z');
                began = None;
            }
            (None, None) => {}
        }
    }
    if began.is_some() {
        point(&mut area, 'L', end, height);
        area.push('Z');
    }
    (line, area)
}

/// A small line for the system strip and for tables.
pub(crate) fn spark(values: &[Option<u64>], label: &str) -> Markup {
    let highest = values.iter().flatten().copied().max().unwrap_or(0).max(1) as f64;
    let shares: Vec<Option<f64>> = values.iter().map(|value| value.map(|value| value as f64 / highest * 0.9)).collect();
    let (line, area) = paths(&shares, 96.0, 24.0);
    html! {
        svg.spark viewBox="0 0 96 24" preserveAspectRatio="none" role="img" aria-label=(label) {
            path.area d=(area) {} path.line d=(line) {}
        }
    }
}

/// The strip of a limit: the amount as an area, what is allowed as a dashed line, what was admitted as bars, and below two
/// lanes: blocked; refused and paused. `finding` says in words what it shows.
pub(crate) fn strip(samples: &[Option<Sample>], id: &str, finding: &str, now: SystemTime) -> Markup {
    let known = || samples.iter().flatten();
    let allowed = known().next_back().map_or(0, |sample| sample.amount);
    let highest = known().map(|sample| sample.used.max(sample.amount)).max().unwrap_or(0).max(1) as f64 * 1.1;
    let shares: Vec<Option<f64>> =
        samples.iter().map(|sample| sample.map(|sample| sample.used as f64 / highest)).collect();
    let (line, area) = paths(&shares, WIDTH, HEIGHT);
    let y_allowed = format!("{:.1}", HEIGHT - allowed as f64 / highest * HEIGHT);
    let step = WIDTH / samples.len().max(1) as f64;
    let lanes = |is: &dyn Fn(&Sample) -> bool| {
        runs(samples, is)
            .into_iter()
            .map(move |(from, length)| (format!("{:.1}", from as f64 * step), format!("{:.1}", length as f64 * step)))
    };
    let slot = Duration::from_secs(SLOT_SECONDS);
    // A lane is filled where the limit blocked for half of the slot or more.
    let blocked = |sample: &Sample| sample.blocked * 2 >= slot;
    let grid = (1..10).map(|minute| minute * 60);
    html! {
        div.chart.gut {
            svg.plot.tideplot viewBox="0 0 600 108" preserveAspectRatio="none" role="img" aria-labelledby=(id) {
                title id=(id) { (finding) }
                rect.f-sunken width="600" height="80" {}
                @for x in grid { line.gridline x1=(x) x2=(x) y1="0" y2="80" {} }
                path.area d=(area) {}
                path.adm d=(bars(samples, step)) {}
                path.line d=(line) {}
                @if allowed > 0 { line.allowed x1="0" x2="600" y1=(y_allowed) y2=(y_allowed) {} }
                rect.f-sunken y="83" width="600" height="11" {} rect.f-sunken y="97" width="600" height="11" {}
                @for (x, width) in lanes(&blocked) { rect.f-block x=(x) width=(width) y="83" height="11" {} }
                @for (x, width) in lanes(&|sample| sample.paused) { rect.f-skip x=(x) width=(width) y="97" height="11" {} }
                @for (x, _) in lanes(&|sample| sample.refused > 0) { rect.f-fail x=(x) width="3" y="97" height="11" {} }
            }
            div.axis.tidey aria-hidden="true" {
                span { (format::count(allowed)) } span { "0" } span { "blocked" } span { "refused" }
            }
        }
        (minutes(now))
    }
}

/// The times below a chart of ten minutes.
pub(crate) fn minutes(now: SystemTime) -> Markup {
    html! {
        div.axis aria-hidden="true" {
            @for ago in (0..=10).rev() {
                span .o[ago % 2 == 1] { (format::minute(now - Duration::from_secs(60 * ago))) }
            }
        }
    }
}

/// What was admitted in each slot, as bars of at most half the height.
fn bars(samples: &[Option<Sample>], step: f64) -> String {
    let most = samples.iter().flatten().map(|sample| sample.admitted).max().unwrap_or(0).max(1) as f64;
    let mut out = String::new();
    for (at, sample) in samples.iter().enumerate() {
        let admitted = sample.map_or(0, |sample| sample.admitted);
        if admitted > 0 {
            let height = (admitted as f64 / most * HEIGHT / 2.0).max(1.0);
            let _ = write!(out, "M{:.1} 80v-{height:.1}h1.4v{height:.1}z", at as f64 * step);
        }
    }
    out
}

/// Stretches of samples for which `is` holds: where each begins, and its length.
fn runs(samples: &[Option<Sample>], is: &dyn Fn(&Sample) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (at, sample) in samples.iter().enumerate() {
        if sample.as_ref().is_some_and(is) {
            match runs.last_mut() {
                Some((from, length)) if *from + *length == at => *length += 1,
                _ => runs.push((at, 1)),
            }
        }
    }
    runs
}

/// A lag in milliseconds on a logarithmic scale from 0.1 ms to 1 s, as a share of the height.
pub(crate) fn logarithmic(lag: Duration) -> f64 {
    ((lag.as_secs_f64().max(1e-4) / 1e-4).log10() / 4.0).clamp(0.0, 1.0)
}

/// The loop's lag over ten minutes.
pub(crate) fn lag(values: &[Option<Duration>], finding: &str, now: SystemTime) -> Markup {
    let shares: Vec<Option<f64>> = values.iter().map(|value| value.map(logarithmic)).collect();
    let (line, area) = paths(&shares, WIDTH, 160.0);
    html! {
        div.chart.gut {
            svg.plot.h160 viewBox="0 0 600 160" preserveAspectRatio="none" role="img" aria-labelledby="lag-t" {
                title #lag-t { (finding) }
                @for y in [40, 80, 120] { line.gridline x1="0" x2="600" y1=(y) y2=(y) {} }
                path.area d=(area) {} path.line d=(line) {}
            }
            div.axis.y aria-hidden="true" {
                span { "1 s" } span { "100 ms" } span { "10 ms" } span { "1 ms" } span { "0.1 ms" }
            }
        }
        (minutes(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_break_the_line() {
        let (line, area) = paths(&[Some(0.0), Some(1.0), None, Some(0.5)], 30.0, 10.0);
        assert_eq!(line, "M0 10L10 0M30 5");
        assert_eq!(area, "M0 10L0 10L10 0L10 10ZM30 10L30 5L30 10Z");
    }

    #[test]
    fn the_lanes_are_runs() {
        let sample = |paused| Some(Sample { paused, ..Sample::default() });
        let samples = [sample(true), sample(true), None, sample(false), sample(true)];
        assert_eq!(runs(&samples, &|sample| sample.paused), [(0, 2), (4, 1)]);
    }

    #[test]
    fn the_scale_of_lag_is_logarithmic() {
        let share = |micros| (logarithmic(Duration::from_micros(micros)) * 100.0).round();
        assert_eq!(
            [0, 100, 1_000, 10_000, 100_000, 1_000_000, 9_000_000].map(share),
            [0., 0., 25., 50., 75., 100., 100.]
        );
    }
}
