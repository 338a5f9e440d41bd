//! Sleeping and time-outs.

pub(crate) mod sleep;
pub(crate) mod timeout;
