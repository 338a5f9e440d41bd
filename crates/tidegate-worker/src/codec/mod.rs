//! Codecs: a [`Task`](crate::Task) as the body of an [`Envelope`](crate::Envelope), and back. A worker looks into bodies
//! through one of these and nowhere else.

pub mod celery;
pub mod dramatiq;
pub mod native;
