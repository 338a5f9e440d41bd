//! Promises: the caller creates one before the task exists, and the task's result goes to it.

use std::marker::PhantomData;

use crate::error::JoinError;

/// A receiver of a task's result. It is settled exactly once, however the task ends.
///
/// Implemented by tidegate's settable [`Deferred`](tidegate_loop::Deferred) and by tokio's `oneshot::Sender`.
///
/// ```
/// use std::{cell::RefCell, rc::Rc};
/// use tidegate_pool::{JoinError, Pool, Promise};
///
/// struct Log(Rc<RefCell<Vec<String>>>);
/// impl Promise<u32> for Log {
///     fn settle(self, result: Result<u32, JoinError>) {
///         self.0.borrow_mut().push(format!("{result:?}"));
///     }
/// }
///
/// tidegate_loop::run(async {
///     let pool = Pool::new(1);
///     let log = Rc::default();
///     pool.submit_to(Log(Rc::clone(&log)), async { 7 }).await.unwrap();
///     pool.close().await;
///     assert_eq!(*log.borrow(), ["Ok(7)"]);
/// })
/// .unwrap();
/// ```
pub trait Promise<T> {
    /// Takes the result. Called after the slot has been freed, on the task's thread; it should be short and not panic.
    fn settle(self, result: Result<T, JoinError>);
}

/// A promise that is still to be settled; dropping this settles it as cancelled.
pub(crate) struct Owed<T, P: Promise<T>> {
    promise: Option<P>,
    _of: PhantomData<fn(T)>,
}

impl<T, P: Promise<T>> Owed<T, P> {
    pub(crate) fn new(promise: P) -> Self {
        Owed { promise: Some(promise), _of: PhantomData }
    }

    pub(crate) fn settle(&mut self, result: Result<T, JoinError>) {
        if let Some(promise) = self.promise.take() {
            promise.settle(result);
        }
    }

    /// Returns the promise unsettled.
    pub(crate) fn into_inner(mut self) -> P {
        self.promise.take().expect("a promise is settled or handed back, not both")
    }
}

impl<T, P: Promise<T>> Drop for Owed<T, P> {
    fn drop(&mut self) {
        self.settle(Err(JoinError::Cancelled));
    }
}
