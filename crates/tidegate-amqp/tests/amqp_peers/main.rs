//! Against a real RabbitMQ; tests/rabbit/run.sh starts one and runs this.

mod consuming;
mod opening;
mod publishing;
mod support;
