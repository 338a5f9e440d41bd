//! Group `batch`: requests to a strict LLM server: how many are refused, how much of the quota is used, what a call costs.
//!
//! The server is tidegate-rehearsal, in a thread of this process; the clients are processes of their own, so that their
//! memory and CPU time are theirs. `strict.rs` is burst and spread against strict limits, `pages.rs` a thousand pages at
//! 10 ms, `flight.rs` ten thousand at once, `plan.rs` a million in virtual time, `start.rs` the command from its
//! start to its first call; `client.rs` is what runs in the children, `bare.rs` the least a client could do,
//! `pollers.rs` how others keep to a limit.

mod bare;
mod client;
mod flight;
mod pages;
mod plan;
mod pollers;
mod start;
mod strict;

use std::cell::RefCell;
use std::rc::Rc;

pub(crate) use client::run_if_asked;
pub(crate) use start::{book, tidegate};

use crate::harness::Line;

pub(crate) fn lines() -> Vec<Line> {
    let mut lines = strict::lines();
    lines.extend(pages::lines());
    lines.push(flight::line());
    lines.push(plan::line());
    lines.push(start::line());
    lines
}

/// Runs once, whoever asks first; rounds of real seconds are not repeated.
fn once<T: Clone + 'static>(run: impl Fn() -> T + 'static) -> impl Fn() -> T + Clone + 'static {
    let kept: Rc<RefCell<Option<T>>> = Rc::default();
    let run = Rc::new(run);
    move || kept.borrow_mut().get_or_insert_with(|| run()).clone()
}
