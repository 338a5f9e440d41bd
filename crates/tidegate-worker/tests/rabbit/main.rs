//! The broker in RabbitMQ against a real one; tests/rabbit/run.sh starts it and runs this.

mod conformance;
mod producers;
mod restarts;
mod settling;
mod support;
mod tasks;
