//! Items that are to be asked again while a run goes on.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use super::item::{ItemId, ItemState};

/// Why an item is not asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryError {
    /// The run has no such item, or has not read it yet.
    Unknown,
    /// It is waiting, blocked or in flight.
    Busy,
    /// Its line cannot be read again: the input is a stream, or the request did not fail in this run.
    NotKept,
    /// The run stops or has ended.
    Ended,
}

impl fmt::Display for RetryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RetryError::Unknown => "the run has no such item",
            RetryError::Busy => "the item is not settled yet: wait until it is",
            RetryError::NotKept => "the request cannot be read again: run the same job again to retry what failed",
            RetryError::Ended => "the run has ended: start it again to retry items",
        })
    }
}

impl std::error::Error for RetryError {}

/// Where the answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// From the provider, whatever is stored.
    Ask,
    /// From the store.
    Reload,
}

/// An item that is to be asked again.
pub(crate) struct Wish {
    pub(crate) again: Again,
    /// The name of its file, or its id.
    pub(crate) name: Rc<str>,
    /// Its state until then.
    pub(crate) before: ItemState,
}

/// Items to be asked again.
pub(crate) type Wanted = BTreeMap<ItemId, Wish>;
