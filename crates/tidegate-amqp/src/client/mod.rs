//! A session on the loop.

mod connect;
mod connection;
mod driver;
mod error;
mod gather;
mod shared;
mod tls;

pub use connect::Options;
pub use connection::{Connection, ConnectionStats, Incoming, Publishing};
pub use error::{ConnectError, Error, PublishError};
