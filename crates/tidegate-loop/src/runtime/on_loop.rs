//! Values that stay on their loop while a `Send` stand-in travels: for libraries that demand `Send` of what never
//! leaves its thread.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use crate::kernel::current;
use crate::mailbox::{Mailbox, Message};
use crate::runtime::event_loop::LoopHandle;

/// What a loop keeps for its stand-ins.
#[derive(Default)]
pub(crate) struct Owned {
    values: HashMap<u64, Rc<dyn Any>>,
    next: u64,
}

/// A `Send + Sync` stand-in for a value that lives on a loop. On that loop it gives access; anywhere else it is an
/// error, not a race. Dropped anywhere, the value is dropped on its loop.
///
/// ```
/// use std::{cell::Cell, rc::Rc};
/// use tidegate_loop::{run, OnLoop};
///
/// run(async {
///     let stand_in = OnLoop::new(Rc::new(Cell::new(1)));
///     assert_eq!(stand_in.with(|value| value.get()), Ok(1));
///     let elsewhere = std::thread::spawn(move || stand_in.with(|value| value.get()).is_err());
///     assert!(elsewhere.join().unwrap());
/// })
/// .unwrap();
/// ```
pub struct OnLoop<T> {
    mailbox: &'static Mailbox,
    serial: u32,
    key: u64,
    _type: PhantomData<fn() -> T>,
}

impl<T: 'static> OnLoop<T> {
    /// Leaves `value` with the loop that is running.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let stand_in = tidegate_loop::OnLoop::new(String::from("here"));
    /// assert_eq!(stand_in.with(String::len), Ok(4));
    /// # }).unwrap();
    /// ```
    pub fn new(value: T) -> OnLoop<T> {
        let handle = LoopHandle::current();
        let kernel = &handle.kernel;
        let mut owned = kernel.owned.borrow_mut();
        owned.next += 1;
        let key = owned.next;
        owned.values.insert(key, Rc::new(value));
        OnLoop { mailbox: kernel.registration.mailbox, serial: kernel.registration.serial, key, _type: PhantomData }
    }

    /// Calls `f` with the value.
    ///
    /// # Errors
    /// [`WrongLoop`] anywhere but inside the loop it was made on.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let stand_in = tidegate_loop::OnLoop::new(5);
    /// assert_eq!(stand_in.with(|five| five + 1), Ok(6));
    /// # }).unwrap();
    /// ```
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> Result<R, WrongLoop> {
        let value = current::with(|kernel| {
            let kernel = kernel.filter(|kernel| kernel.registration.serial == self.serial)?;
            kernel.owned.borrow().values.get(&self.key).cloned()
        });
        let value = value.ok_or(WrongLoop)?;
        Ok(f(value.downcast_ref::<T>().expect("a key has one type")))
    }
}

impl<T> Drop for OnLoop<T> {
    fn drop(&mut self) {
        let (serial, key) = (self.serial, self.key);
        let here = current::with(|kernel| {
            let kernel = kernel.filter(|kernel| kernel.registration.serial == serial)?;
            Some(kernel.owned.borrow_mut().values.remove(&key))
        });
        if here.is_none() {
            // Refused means closed, and a closed loop has dropped what it owned.
            let remove = move || {
                let value = current::with(|kernel| kernel?.owned.borrow_mut().values.remove(&key));
                drop(value);
            };
            let _ = self.mailbox.post(Some(serial), Message::Call(Box::new(remove), std::panic::Location::caller()));
        }
    }
}

impl<T> fmt::Debug for OnLoop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnLoop").field("loop", &self.serial).finish_non_exhaustive()
    }
}

/// A value was asked for outside of the loop it lives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongLoop;

impl fmt::Display for WrongLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this value lives on another loop; use call_soon_threadsafe to reach it there")
    }
}

impl std::error::Error for WrongLoop {}
