//! `provider`, and what is rehearsed against it, as users meet them.

mod batch;
#[path = "../common/crew.rs"]
mod crew;
mod explain;
#[path = "../common/pdf.rs"]
mod pdf;
mod plan;
mod provider;
mod support;
mod workers;
