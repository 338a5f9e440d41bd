//! Sources of other crates, compiled again with loom's atomics, cells and locks, so that the tests of this crate can run
//! them through every interleaving of a few threads.
//!
//! A module includes a crate's sources by path, beside a `shim` module that has loom's types under the names that the
//! sources use. `primitives` does so for `tidegate-sync`; `tests/inbox.rs` (`tidegate-loop`) and `tests/pool`
//! (`tidegate-pool`) contain theirs. No flags are needed: `cargo test -p tidegate-models --release`.

pub mod primitives;
