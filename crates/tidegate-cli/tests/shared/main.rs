//! Several processes within limits that a real Redis holds for them; `./test --only redis` runs it. With a RabbitMQ, which
//! `./test --only rabbitmq` starts, pages go through that one as well.

mod batches;
#[path = "../common/crew.rs"]
mod crew;
#[path = "../common/machine.rs"]
mod machine;
#[path = "../common/pdf.rs"]
mod pdf;
mod proof;
mod redis;
#[path = "../common/strict.rs"]
mod strict;
mod words;
