//! The broker in RabbitMQ against a real one; tests/rabbit/run.sh starts it and runs this.

mod celery;
mod cluster;
mod conformance;
mod dramatiq;
mod modes;
mod outages;
mod producers;
mod proxy;
mod settling;
mod support;
mod tasks;
