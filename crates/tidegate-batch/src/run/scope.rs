//! The way to the gate for one item of a run: it waits while the run is paused, leaves the line when the run stops, and keeps
//! the item's state true.

use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tidegate_limit::{Admission, Admitted, Cost, EnterError, Place, Scope};
use tidegate_loop::sleep;

use super::control::Control;
use super::item::{ItemId, ItemState};

/// A scope of a gate, and the item of a run that enters the gate through it, if there is one.
#[derive(Clone, Debug)]
pub struct ItemScope {
    scope: Scope,
    item: Option<ItemHandle>,
}

/// An item of a run.
#[derive(Clone, Debug)]
pub(crate) struct ItemHandle {
    pub(crate) control: Control,
    pub(crate) id: ItemId,
    /// The name of its file, or its id.
    pub(crate) name: Rc<str>,
}

impl ItemHandle {
    /// The item is blocked by a limit that is not the gate's, until what this returns is dropped.
    pub(crate) fn block(&self, limit: &str) -> impl Drop {
        self.set(ItemState::Blocked { limit: limit.to_owned(), until: None }, None);
        Unblocked(self)
    }

    fn set(&self, state: ItemState, place: Option<Place>) {
        self.control.set_item(self.id, &self.name, state, place, None);
    }
}

/// Why an entry was not waited for to its end.
enum Interrupted {
    Stopping,
    Paused,
}

impl ItemScope {
    pub(crate) fn new(scope: Scope, item: ItemHandle) -> ItemScope {
        ItemScope { scope, item: Some(item) }
    }

    /// The scope.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns `true` if the item's run stops: nothing more is admitted.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.item.as_ref().is_some_and(|item| item.control.is_stopping())
    }

    /// Waits until `gate` admits `cost`, and books it.
    ///
    /// While the run is paused, the item is not in the gate's line; it lines up again when the run is resumed.
    ///
    /// # Errors
    /// [`EnterError::Closed`] if the run stops; otherwise as the gate's.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it leaves the line without a trace.
    pub async fn enter(&self, gate: &Admission, cost: Cost) -> Result<ItemLease, EnterError> {
        let Some(item) = &self.item else {
            return Ok(ItemLease { admitted: gate.enter(&self.scope, cost).await?, item: None, is_sent: false });
        };
        loop {
            item.control.wait_while_paused().await;
            if item.control.is_stopping() {
                return Err(EnterError::Closed);
            }
            let admitted = {
                let _unblocked = Unblocked(item);
                let blocked = |place: Option<Place>| {
                    let blocked = place.and_then(|place| gate.gate().blocked(place));
                    let state = match blocked {
                        Some(blocked) => ItemState::Blocked { limit: blocked.limit.to_string(), until: blocked.until },
                        None => ItemState::Blocked { limit: "shared".to_owned(), until: None },
                    };
                    item.set(state, place);
                };
                item.control.while_admitting(gate.enter_noting(&self.scope, cost.clone(), blocked)).await
            };
            match admitted {
                Err(Interrupted::Stopping) => return Err(EnterError::Closed),
                Err(Interrupted::Paused) => {}
                Ok(admitted) => {
                    let admitted = admitted?;
                    // Admitted by the very answer that has stopped the run, or paused it.
                    if !item.control.is_stopping() && !item.control.is_paused() {
                        return Ok(ItemLease { admitted, item: Some(item.clone()), is_sent: false });
                    }
                }
            }
        }
    }

    /// Sleeps for `delay`, but not longer than until the run stops.
    pub(crate) async fn sleep(&self, delay: Duration) {
        match &self.item {
            None => sleep(delay).await,
            Some(item) => drop(item.control.unless_stopping(sleep(delay)).await),
        }
    }
}

impl From<Scope> for ItemScope {
    fn from(scope: Scope) -> ItemScope {
        ItemScope { scope, item: None }
    }
}

impl From<&Scope> for ItemScope {
    fn from(scope: &Scope) -> ItemScope {
        ItemScope::from(scope.clone())
    }
}

/// The item is not blocked any more when this is dropped.
struct Unblocked<'a>(&'a ItemHandle);

impl Drop for Unblocked<'_> {
    fn drop(&mut self) {
        if self.0.control.is_blocked(self.0.id) {
            self.0.set(ItemState::Waiting, None);
        }
    }
}

impl Control {
    /// `entering`'s output, unless the run stops or is paused before.
    async fn while_admitting<T>(&self, entering: impl Future<Output = T>) -> Result<T, Interrupted> {
        let (stopping, paused) = (self.stop_asked(), self.pause_asked());
        let (mut entering, mut stopping, mut paused) = (pin!(entering), pin!(stopping), pin!(paused));
        poll_fn(|cx| {
            if let Poll::Ready(entered) = entering.as_mut().poll(cx) {
                return Poll::Ready(Ok(entered));
            }
            if stopping.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Interrupted::Stopping));
            }
            paused.as_mut().poll(cx).map(|()| Err(Interrupted::Paused))
        })
        .await
    }
}

/// What an item holds from its admission on. Dropped, the item is not in flight any more, and its slots are released.
#[derive(Debug)]
#[must_use = "a lease that is dropped before `sent` is taken back"]
pub struct ItemLease {
    admitted: Admitted,
    item: Option<ItemHandle>,
    is_sent: bool,
}

impl ItemLease {
    /// As [`Admitted::sent`]: the item is in flight.
    pub fn sent(&mut self) {
        self.admitted.sent();
        if let Some(item) = self.item.as_ref().filter(|_| !self.is_sent) {
            item.set(ItemState::InFlight, None);
        }
        self.is_sent = true;
    }
}

impl Drop for ItemLease {
    fn drop(&mut self) {
        // Before its slot is released: there are never more items in flight than slots.
        if let Some(item) = self.item.as_ref().filter(|_| self.is_sent) {
            item.set(ItemState::Waiting, None);
        }
    }
}

impl Deref for ItemLease {
    type Target = Admitted;

    fn deref(&self) -> &Admitted {
        &self.admitted
    }
}

impl DerefMut for ItemLease {
    fn deref_mut(&mut self) -> &mut Admitted {
        &mut self.admitted
    }
}
