//! Decisions without I/O: events go in, actions come out, time is an argument. Driven by the files above; tested by seeds.

pub(super) mod deliveries;
pub(super) mod held;
pub(super) mod keys;
pub(super) mod plan;
pub(super) mod publisher;
pub(super) mod settling;
