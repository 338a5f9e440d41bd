//! Codecs: a [`Task`](crate::Task) as the body of an [`Envelope`](crate::Envelope), and back. A worker looks into bodies
//! through one of these and nowhere else.

pub mod native;
