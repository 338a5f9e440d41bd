//! Keys, passwords and tokens. [`Secret`] holds one and never shows it, [`Redactor`] removes secrets from text that came from
//! elsewhere, [`UserInfo`] takes `user:password@` out of a URL.
//!
//! Every crate that holds a secret uses these types; this one depends on none of them. It reads no file and no variable:
//! where a secret comes from is the program's business.
//!
//! Read `secret.rs`, then `redactor.rs`, then `url.rs`.

#![forbid(unsafe_code)]

mod redactor;
mod secret;
mod url;

pub use redactor::{REDACTED, Redactor};
pub use secret::Secret;
pub use url::{UserInfo, is_loopback, masked};
