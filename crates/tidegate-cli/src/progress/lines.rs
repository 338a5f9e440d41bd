//! Progress as lines, for logs and for terminals that cannot be drawn on.

use super::figures::{count, time};
use super::scene::{Blocker, Scene};

/// `37 of 120 pages, 85 per minute, about 58 s left, 12 in flight; 38 blocked by rpm (60 of 60 used)`
pub(crate) fn progress(scene: &Scene) -> String {
    let more = if scene.more { "+" } else { "" };
    let mut line = format!("{} of {}{more} {}", scene.done, scene.pages, scene.unit.name());
    for (number, what) in [(scene.failed, "failed"), (scene.skipped, "skipped")] {
        if number > 0 {
            line += &format!(", {number} {what}");
        }
    }
    if scene.pages_per_minute >= 1.0 {
        line += &format!(", {:.0} per minute", scene.pages_per_minute);
    }
    if let Some(left) = scene.remaining.filter(|left| !left.is_zero()) {
        line += &format!(", about {} left", time(left));
    }
    if scene.queue.in_flight > 0 {
        line += &format!(", {} in flight", scene.queue.in_flight);
    }
    if scene.paused {
        line += "; paused";
    }
    match &scene.queue.blocked_by {
        Some(Blocker::Found) => line += &format!("; {} blocked by the server", scene.queue.blocked),
        Some(Blocker::Files) => line += &format!("; {} blocked by the page concurrency", scene.queue.blocked),
        Some(Blocker::Limit(name)) => {
            line += &format!("; {} blocked by {name}", scene.queue.blocked);
            if let Some(gauge) = scene.gauges.iter().find(|gauge| gauge.name == *name) {
                line += &format!(" ({} of {} used)", count(gauge.used), count(gauge.amount));
            }
        }
        None => {}
    }
    if let Some(writing) = scene.writing() {
        line += &format!("; {writing}");
    }
    for notice in scene.found.iter().chain(&scene.load) {
        line += &format!("; {notice}");
    }
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::progress::scene::{File, Gauge, Queue, State};

    #[test]
    fn a_line_says_how_far_it_is_how_long_it_takes_and_what_is_waited_for() {
        let scene = Scene {
            pages: 120,
            done: 37,
            failed: 2,
            pages_per_minute: 85.4,
            remaining: Some(Duration::from_secs(58)),
            gauges: vec![Gauge { name: "rpm".to_owned(), used: 60, amount: 60, ..Gauge::default() }],
            queue: Queue { in_flight: 12, blocked: 38, blocked_by: Some(Blocker::Limit("rpm".to_owned())) },
            ..Scene::default()
        };
        let line = "37 of 120 pages, 2 failed, 85 per minute, about 58 s left, 12 in flight; 38 blocked by rpm (60 of 60 used)";
        assert_eq!(progress(&scene), line);
    }

    #[test]
    fn a_line_says_which_limit_was_found() {
        let scene = Scene {
            pages: 9,
            done: 3,
            queue: Queue { in_flight: 1, blocked: 5, blocked_by: Some(Blocker::Found) },
            found: Some("found: 10 requests per second".to_owned()),
            ..Scene::default()
        };
        let line = "3 of 9 pages, 1 in flight; 5 blocked by the server; found: 10 requests per second";
        assert_eq!(progress(&scene), line);
    }

    #[test]
    fn while_outputs_are_written_a_line_says_how_many_pages_are() {
        let file = |state, written| File { name: "b.pdf".to_owned(), state, pages: 2_415, written, ..File::default() };
        let files = vec![file(State::Done, 9), file(State::Writing, 1_200)];
        let scene = Scene { pages: 2_424, done: 2_424, files, ..Scene::default() };
        assert_eq!(progress(&scene), "2424 of 2424 pages; writing outputs: page 1200 of 2415 of b.pdf");
    }

    #[test]
    fn a_run_that_has_just_begun_does_not_pretend_to_know_more() {
        assert_eq!(progress(&Scene { pages: 4, more: true, ..Scene::default() }), "0 of 4+ pages");
    }
}
