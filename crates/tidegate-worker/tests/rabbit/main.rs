//! The broker in RabbitMQ against a real one; `./test --only rabbitmq` starts it and runs this.

mod celery;
mod celery_outages;
mod celery_redis;
mod cluster;
mod conformance;
mod delays;
mod delays_outages;
mod dramatiq;
mod earlier;
mod full_queues;
mod keys;
mod keys_outages;
mod modes;
mod outages;
mod producers;
mod proxy;
mod quarantine;
mod redis;
mod settling;
mod support;
mod tasks;
