//! lapin on tokio's current-thread runtime; its own thread does the I/O.

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};

use super::{Acks, BODY, Cost, MESSAGES, PREFETCH, QUEUE, Watch};

pub(super) fn consume(host: &str, acks: Acks) -> Result<Cost, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(run(host, acks)).map_err(|error| error.to_string())
}

async fn run(host: &str, acks: Acks) -> Result<Cost, lapin::Error> {
    let address = format!("amqp://guest:guest@{host}/%2f");
    let connection = Connection::connect(&address, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let watch = Watch::start();
    let options = BasicConsumeOptions::default();
    let mut consumer = channel.basic_consume(QUEUE.into(), "bench".into(), options, FieldTable::default()).await?;
    let mut seen = 0;
    while seen < MESSAGES {
        let Some(delivery) = consumer.next().await else { break };
        let delivery = delivery?;
        assert_eq!(delivery.data.len(), BODY.len());
        seen += 1;
        match acks {
            Acks::Each => {
                delivery.ack(BasicAckOptions::default()).await?;
            }
            Acks::Multiple(count) => {
                if seen % count == 0 || seen == MESSAGES {
                    delivery.ack(BasicAckOptions { multiple: true }).await?;
                }
            }
        }
    }
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let cost = watch.stop();
    connection.close(200, "bye".into()).await?;
    Ok(cost)
}
