//! Against a real RabbitMQ; `./test --only rabbitmq` starts one and runs this.

mod consuming;
mod opening;
mod publishing;
mod support;
