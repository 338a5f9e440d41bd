//! One consumer of a broker in memory: asks the store, and waits for a change when there is nothing.

use std::rc::Rc;

use crate::broker::{BrokerError, Consumer, Incoming, Local, Settled, Settlement};

use super::Shared;
use super::store::ConsumerId;

pub(super) struct MemoryConsumer {
    pub(super) shared: Rc<Shared>,
    pub(super) id: ConsumerId,
}

impl Consumer for MemoryConsumer {
    fn recv_all(&self) -> Local<'_, Result<Vec<Incoming>, BrokerError>> {
        Box::pin(async move {
            loop {
                let now = self.shared.now();
                let (incoming, open, deadline) = {
                    let mut store = self.shared.store.borrow_mut();
                    (store.take(self.id, now), store.is_open(self.id), store.next_deadline())
                };
                if !incoming.is_empty() {
                    return Ok(incoming);
                }
                if !open {
                    return Err(BrokerError::Closed);
                }
                self.shared.change(deadline).await;
            }
        })
    }

    fn settle(&self, batch: Vec<Settlement>) -> Local<'_, Result<Vec<Settled>, BrokerError>> {
        let now = self.shared.now();
        let settled = self.shared.store.borrow_mut().settle(self.id, batch, now);
        self.shared.changed.notify_all();
        Box::pin(std::future::ready(Ok(settled)))
    }

    fn stop(&self) -> Local<'_, Result<(), BrokerError>> {
        self.shared.store.borrow_mut().stop(self.id);
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        self.shared.store.borrow_mut().close(self.id);
        self.shared.changed.notify_all();
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Drop for MemoryConsumer {
    fn drop(&mut self) {
        let now = self.shared.now();
        self.shared.store.borrow_mut().abandon(self.id, now);
        self.shared.changed.notify_all();
    }
}
