//! `provider`, and what is rehearsed against it, as users meet them.

mod batch;
mod counts;
#[cfg(feature = "pdf")]
#[path = "../common/crew.rs"]
mod crew;
mod dashboard;
#[path = "../common/data.rs"]
mod data;
#[cfg(feature = "pdf")]
mod explain;
#[path = "../common/idle.rs"]
mod idle;
#[cfg(feature = "pdf")]
mod judge;
#[path = "../common/machine.rs"]
mod machine;
mod metrics;
#[cfg(feature = "pdf")]
#[path = "../common/pdf.rs"]
mod pdf;
mod plan;
mod provider;
#[cfg(feature = "pdf")]
mod serve;
#[cfg(feature = "pdf")]
#[path = "../common/strict.rs"]
mod strict;
mod support;
#[cfg(feature = "pdf")]
mod workers;
