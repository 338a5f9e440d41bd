//! The sections: each adds its pages, its routes of the API and its topics to a site.

pub(crate) mod event_loop;
#[cfg(feature = "jobs")]
pub(crate) mod job;
#[cfg(feature = "jobs")]
pub(crate) mod jobs;
#[cfg(feature = "jobs")]
mod jobs_api;
pub(crate) mod limits;
#[cfg(feature = "jobs")]
mod new;
#[cfg(feature = "jobs")]
mod parts;
#[cfg(feature = "jobs")]
mod plan;
#[cfg(feature = "jobs")]
mod reader;
#[cfg(feature = "jobs")]
mod request;
