//! A consumer on its loop: hands out the deliveries that the engine feeds it, and sends settlements to the engine.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crate::broker::{BrokerError, Consumer, Incoming, Local, Settled, Settlement, Verdict};

use super::Handle;
use super::oneshot::oneshot;
use super::op::{Feed, Op, ReaderKey, Write};

pub(super) struct SqliteConsumer {
    pub(super) handle: Rc<Handle>,
    pub(super) reader: ReaderKey,
    pub(super) feed: Arc<Feed>,
    /// Taken out of the feed by `stop`, and still to be told.
    pub(super) kept: RefCell<VecDeque<Incoming>>,
}

impl Consumer for SqliteConsumer {
    fn recv_all(&self) -> Local<'_, Result<Vec<Incoming>, BrokerError>> {
        Box::pin(async move {
            let kept: Vec<Incoming> = self.kept.borrow_mut().drain(..).collect();
            if !kept.is_empty() {
                return Ok(kept);
            }
            match self.feed.recv_all().await {
                Ok(batches) => Ok(batches.into_iter().flatten().collect()),
                Err(_) => Err(self.handle.why_closed()),
            }
        })
    }

    fn settle(&self, batch: Vec<Settlement>) -> Local<'_, Result<Vec<Settled>, BrokerError>> {
        Box::pin(self.handle.write(|answer| Write::Settle { reader: self.reader, batch, answer }))
    }

    fn stop(&self) -> Local<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let (answer, done) = oneshot();
            self.handle.ask(Op::Stop { reader: self.reader, answer }).await?;
            done.await?;
            let mut unseen = Vec::new();
            while let Ok(batch) = self.feed.try_recv() {
                for incoming in batch {
                    match incoming {
                        Incoming::Delivery(delivery) => {
                            unseen.push(Settlement { tag: delivery.tag, verdict: Verdict::Return, result: None });
                        }
                        notice => self.kept.borrow_mut().push_back(notice),
                    }
                }
            }
            if !unseen.is_empty() {
                self.settle(unseen).await?;
            }
            Ok(())
        })
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        Box::pin(self.handle.write(|answer| Write::CloseReader { reader: self.reader, answer }))
    }
}

impl Drop for SqliteConsumer {
    fn drop(&mut self) {
        self.handle.inbox.push_now(Op::Abandon { reader: self.reader });
    }
}
