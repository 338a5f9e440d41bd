//! Sites served on a loop, asked over HTTP: what is let through, what every answer carries, what is live.

mod guard;
mod live;
mod pages;
mod support;
