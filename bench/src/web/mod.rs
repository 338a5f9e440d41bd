//! Group `web`: the page of `tidegate serve`: what a browser has to load, how soon a page is there, what a crowd of browsers costs.
//!
//! The server is the command, built beside this program, in a process of its own; the mock server behind it and the browsers are
//! here. `served.rs` starts it and asks it, `pages.rs` loads pages, `listeners.rs` is the crowd, `grid.py` a real browser with
//! 10,000 pages in its grid.

mod listeners;
mod pages;
mod served;

use crate::harness::Line;

pub(crate) fn lines() -> Vec<Line> {
    let mut lines = pages::lines();
    lines.extend(listeners::lines());
    lines
}
