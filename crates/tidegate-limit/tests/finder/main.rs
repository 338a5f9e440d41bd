//! Limits that were not stated, against simulated servers of many kinds, in virtual time and by seeds. `servers.rs` has the
//! limits of the servers, `run.rs` the wire and the queue, `rows.rs` one row per kind of server with the time and the
//! refusals that are allowed, `claims.rs` what holds in between.

mod claims;
mod random;
mod rows;
mod run;
mod servers;
