//! The worker end to end, in virtual time where nothing outside of the loop takes part.

mod cron;
mod faults;
mod flow;
mod hooks;
mod limits;
mod outcomes;
mod pages;
mod status;
mod stop;
mod support;
mod threads;
