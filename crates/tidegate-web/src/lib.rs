//! The web page of tidegate: limits, the event loop and jobs, live in a browser and as a JSON API. Safe by default.
//!
//! ```no_run
//! use tidegate_web::{Options, Page, NavEntry, Site};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mut site = Site::new();
//! site.nav(NavEntry { group: "Runtime", title: "Tides", href: "/tides", count: None });
//! site.get("/tides", |_| async { Ok(Page::new("Tides", maud::html! { h1 { "Tides" } })) });
//! let server = site.bind(Options::new("127.0.0.1:7433".parse()?)).await?;
//! println!("{}", server.link());
//! server.run().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Called by `tidegate serve` and by `--dashboard` of `explain` and `batch`. It leaves out TLS (put a proxy in front) and
//! users: the token allows everything, and `read_only` refuses every change.
//!
//! # Reading order
//! `site.rs` puts routes together, `server.rs` is the way of every request; `guard/` decides about its head, `request.rs` and
//! `answer.rs` are what handlers take and return, `page.rs` the shell around pages, `live/` what keeps them up to date,
//! `api.rs` the OpenAPI document, `audit.rs` what was changed. `pages/` are the sections; a section is a function that adds
//! its pages to a [`Site`]. `assets.rs` and `format.rs` are small tools.

#![forbid(unsafe_code)]

mod answer;
mod api;
pub mod assets;
mod audit;
mod chart;
pub mod format;
mod guard;
mod history;
#[cfg(feature = "jobs")]
pub mod jobs;
pub mod live;
mod page;
mod pages;
mod request;
mod server;
mod site;

pub use answer::{Answer, Failure};
pub use api::Doc;
pub use audit::Audit;
pub use guard::{Token, TokenError, Who};
pub use page::{Page, Theme};
pub use pages::event_loop::EventLoop;
pub use pages::limits::{Limits, Steer, Upstream, Watch};
pub use request::{FORM_BYTES_MAX, Form, Request, Upload};
pub use server::{Server, Stopper};
pub use site::{Audience, BindError, NavEntry, Options, Site, StripCell};
