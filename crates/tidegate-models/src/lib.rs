//! Sources of other crates, compiled once more over loom's primitives, so that the tests of this
//! crate can run them through every interleaving of a few threads.
//!
//! Each module is a crate's inner room: it brings its own `sync`, with loom's types under the names
//! the sources know, and includes the sources by path. No flags are needed:
//! `cargo test -p tidegate-models --release`.

pub mod primitives;
