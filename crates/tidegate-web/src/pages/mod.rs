//! The sections: each adds its pages, its routes of the API and its topics to a site.

pub(crate) mod event_loop;
pub(crate) mod limits;
