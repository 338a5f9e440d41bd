//! tidegate-amqp on its own loop. It also fills the queue for everybody.

use std::error::Error;
use std::time::Duration;

use tidegate_amqp::types::BasicProperties;
use tidegate_amqp::{Connection, Consume, Incoming, Message, Options, Queue, Settle};

use super::{Acks, BODY, Cost, MESSAGES, PREFETCH, QUEUE, Watch};

pub(super) type Outcome<T> = Result<T, Box<dyn Error>>;

pub(super) fn on_loop<T: 'static>(work: impl Future<Output = Outcome<T>> + 'static) -> Result<T, String> {
    tidegate_loop::run(work).map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

async fn open(host: String, read_patience: Duration) -> Outcome<Connection> {
    let uri = format!("amqp://{host}").parse()?;
    let mut options = Options::default();
    options.read_patience = read_patience;
    Ok(Connection::open(&uri, &options).await?)
}

/// The durable queue with persistent messages, and nothing else in it.
pub(super) fn fill(host: &str) -> Result<(), String> {
    let host = host.to_owned();
    on_loop(async move {
        let connection = open(host, Duration::ZERO).await?;
        connection.declare(&Queue::durable(QUEUE)).await?;
        connection.purge(QUEUE).await?;
        let properties = BasicProperties::default().with_delivery_mode(2);
        let message = Message::to_queue(QUEUE, BODY.to_vec()).properties(&properties);
        let mut under_way = Vec::new();
        for _ in 0..MESSAGES {
            under_way.push(connection.publish(&message).await?);
        }
        for confirmed in under_way {
            confirmed.await?;
        }
        connection.close().await;
        Ok(())
    })
}

pub(super) fn consume(host: &str, acks: Acks) -> Result<Cost, String> {
    let host = host.to_owned();
    on_loop(async move {
        // As the worker's, where acknowledgements may wait as well.
        let patience = if acks == Acks::Each { Duration::ZERO } else { Duration::from_millis(2) };
        let connection = open(host, patience).await?;
        connection.qos(PREFETCH).await?;
        let watch = Watch::start();
        connection.consume(&Consume::from(QUEUE)).await?;
        let (mut seen, mut held) = (0, Vec::new());
        while seen < MESSAGES {
            for incoming in connection.recv_all().await? {
                let Incoming::Delivery(delivery) = incoming else { return Err(format!("{incoming:?}").into()) };
                assert_eq!(delivery.body.len(), BODY.len());
                seen += 1;
                match acks {
                    Acks::Each => {
                        connection.settle(delivery.tag, Settle::Ack);
                    }
                    Acks::Multiple(count) => {
                        held.push(delivery.tag);
                        if held.len() as u32 == count || seen == MESSAGES {
                            held.drain(..).for_each(|tag| _ = connection.settle(tag, Settle::Ack));
                        }
                    }
                }
            }
        }
        // Answered once the broker has seen the last acknowledgement.
        connection.qos(PREFETCH).await?;
        let cost = watch.stop();
        connection.close().await;
        Ok(cost)
    })
}
