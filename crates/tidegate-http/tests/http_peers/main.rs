//! The client against nginx, the server against curl and wrk. Needs those three; `./test --only http` runs it.

mod against_curl;
mod against_nginx;
mod against_wrk;
mod support;
