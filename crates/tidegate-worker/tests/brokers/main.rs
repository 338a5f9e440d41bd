//! The brokers: the conformance suite on each, and what is special to the one in a file.

mod faults;
mod garbage;
mod special;
mod suite;
