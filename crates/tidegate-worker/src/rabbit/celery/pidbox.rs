//! The mailbox that remote control writes to: a fanout exchange, a queue of this worker's own, answers to whoever asked.

use std::rc::Rc;

use serde_json::{Value, json};
use tidegate_amqp::types::{AMQPValue, FieldTable};
use tidegate_amqp::{Connection, Consume, Exchange, Field, Incoming, Message, Queue, Settle};
use tidegate_loop::sleep;

use super::super::backoff::Backoff;
use super::super::link::{BACKOFF_FIRST, BACKOFF_MOST, of_connect, of_request};
use super::control::{self, ReplyTo};
use super::panel::Desk;
use super::{Shared, events, log};
use crate::broker::BrokerError;

/// Answers for as long as the worker lives.
pub(super) async fn serve(shared: Rc<Shared>) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
    loop {
        let error = serve_once(&shared, &mut backoff).await;
        log("remote control is not heard", &error);
        sleep(backoff.next()).await;
    }
}

/// An exchange of kombu's mailboxes: neither of them outlives the broker.
fn exchange(name: &str, kind: &str) -> Exchange {
    let mut exchange = Exchange::durable(name, kind);
    exchange.durable = false;
    exchange
}

async fn serve_once(shared: &Rc<Shared>, backoff: &mut Backoff) -> BrokerError {
    let core = &shared.broker.core;
    let mut options = tidegate_amqp::Options::default();
    options.name = format!("{} control", core.options.name);
    let connection = match Connection::open(&core.uri, &options).await {
        Ok(connection) => connection,
        Err(error) => return of_connect(&error),
    };
    let served = async {
        let mailbox = format!("{}.pidbox", shared.options.control_exchange);
        let replies = format!("reply.{mailbox}");
        connection.declare_exchange(&exchange(&mailbox, "fanout")).await?;
        connection.declare_exchange(&exchange(&replies, "direct")).await?;
        let queue = format!("{}.{mailbox}", shared.options.hostname);
        connection.declare(&Queue::exclusive(queue.as_str())).await?;
        connection.bind(&queue, &mailbox, "").await?;
        connection.qos(100).await?;
        connection.consume(&Consume::from(queue)).await?;
        backoff.reset();
        loop {
            for incoming in connection.recv_all().await? {
                let Incoming::Delivery(delivery) = incoming else { continue };
                connection.settle(delivery.tag, Settle::Ack);
                let Some((answer, to)) = hear(shared, &delivery) else { continue };
                if to.exchange != replies {
                    connection.declare_exchange(&exchange(&to.exchange, "direct")).await?;
                }
                // Whether anybody still listens is theirs to know.
                drop(connection.publish(&reply(shared, &answer, &to)).await?);
            }
        }
    };
    let ended: Result<(), tidegate_amqp::Error> = served.await;
    of_request(&ended.expect_err("it ends by an error"))
}

/// Does as asked; what is answered, and where, if anybody wants to know.
fn hear(shared: &Rc<Shared>, delivery: &tidegate_amqp::Delivery) -> Option<(Value, ReplyTo)> {
    if let Ok(mut properties) = delivery.properties.glance() {
        let clock = properties.headers.find_map(|header| match header {
            (b"clock", Field::Integer(clock)) => u64::try_from(clock).ok(),
            _ => None,
        });
        shared.sender.borrow_mut().adjust(clock.unwrap_or(0));
    }
    let request = control::request(&delivery.body, &shared.options.hostname)?;
    tracing::debug!(method = request.method, "asked by remote control");
    let answer = control::answer(&request, &Desk(shared))?;
    Some((answer, request.reply?))
}

fn reply(shared: &Shared, answer: &Value, to: &ReplyTo) -> Message {
    let mut headers = FieldTable::default();
    headers.insert("ticket".into(), AMQPValue::LongString(to.ticket.as_str().into()));
    let clock = i64::try_from(shared.sender.borrow_mut().tick()).unwrap_or(i64::MAX);
    headers.insert("clock".into(), AMQPValue::LongLongInt(clock));
    let body = json!({ shared.options.hostname.as_str(): answer });
    let properties = events::json_properties().with_headers(headers);
    Message::new(to.exchange.as_str(), to.routing_key.as_str(), body.to_string().into()).properties(&properties)
}
