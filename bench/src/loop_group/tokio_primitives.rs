//! tokio's own primitives under the names that `ping_pong.rs` uses.

pub(crate) mod oneshot {
    pub(crate) use tokio::sync::oneshot::{Receiver, Sender, channel};

    /// Carries the way back: every hop uses up one one-shot and makes the next.
    pub(crate) struct Ball(pub(crate) Sender<Ball>);

    pub(crate) fn send<T>(sender: Sender<T>, value: T) {
        assert!(sender.send(value).is_ok());
    }

    pub(crate) async fn recv<T>(receiver: Receiver<T>) -> T {
        receiver.await.expect("the sender is used")
    }
}
