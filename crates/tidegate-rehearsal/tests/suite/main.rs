//! The server over HTTP, as clients see it.

mod accounting;
mod faults;
mod shapes;
mod support;
