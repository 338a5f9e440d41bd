//! The pages of a PDF as text and pictures, read in a child process that is bounded in time and memory and
//! confined.
//!
//! A [`Reader`] opens a file as a [`Document`]; its pages are read when they are asked for, as text, as a picture, or both.
//! Whatever is in the file (endless loops, bombs, nesting without end, nonsense) costs at most what [`Limits`] says and
//! ends as a typed error: an [`OpenError`] for the document, a [`PageError`] for one page, after which the others go on.
//! [`judge`] says whether a page's text is worth sending, or its picture is.
//!
//! The child is the running program itself, started once more: a program that reads PDFs calls
//! [`child::main_if_asked`] first in `main`, and needs no file beside itself.
//!
//! The child opens nothing: it reads descriptors that its parent has opened. It has no capabilities and no other
//! descriptors, and where the kernel has Landlock and seccomp, no file system, no network and no processes.
//! [`Document::confinement`] says what is in force.
//!
//! It leaves out writing PDFs, forms, and recognising letters in pictures.
//!
//! # Where to read
//! `reader.rs` and `document.rs` are the surface, `source.rs` what is opened for the child, `worker.rs` the child as its
//! parent sees it, `files.rs` and `wire.rs` what they send each other. `child/` is what runs in the child: `bounds.rs` and
//! `confinement.rs`, then `open.rs`, `text.rs`, `picture.rs`, `fonts.rs`.
//! `layout.rs` makes text of glyphs, `quality.rs` says what it is worth; both know no PDF.

#![forbid(unsafe_code)]

pub mod child;
mod document;
mod error;
mod files;
mod layout;
mod page;
mod quality;
mod reader;
mod run_queue;
mod source;
mod wire;
mod worker;

pub use child::{Confinement, Guard};
pub use document::{Document, Stats};
pub use error::{Fault, OpenError, PageError};
pub use page::{Format, PICTURE_PX_MAX, Page, PageText, Picture, Want, Warning};
pub use quality::{Garble, Quality, judge};
pub use reader::{Limits, Reader};
