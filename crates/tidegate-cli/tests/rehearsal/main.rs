//! `provider`, and what is rehearsed against it, as users meet them.

mod batch;
mod explain;
mod plan;
mod provider;
mod support;
