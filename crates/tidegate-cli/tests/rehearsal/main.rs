//! `provider`, and what is rehearsed against it, as users meet them.

mod provider;
mod support;
