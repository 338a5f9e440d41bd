//! Context variables: values that follow the flow of control, inherited by tasks, callbacks and done-callbacks when
//! they are made. A context is an immutable map that is shared until one is written to, so inheriting one costs a
//! reference count. To another thread it travels as a copy: the values that can leave their thread are cloned, the
//! others (`ContextVar::local`) stay behind.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::kernel::Kernel;
use crate::kernel::current;

/// What a context holds: few variables, so a list searched by the variable's address. `None` is the empty one.
type Map = Option<Rc<Vec<ContextEntry>>>;
/// A variable's address, which is unique.
type Key = usize;
/// How a value is copied for another thread.
type Carry = fn(&dyn Any) -> Box<dyn Any + Send>;

#[derive(Clone)]
struct ContextEntry {
    key: Key,
    /// `None`: the value cannot leave its thread.
    carry: Option<Carry>,
    value: Rc<dyn Any>,
}

/// A snapshot of the variables, as tasks and handles keep it.
#[derive(Clone, Default)]
pub(crate) struct Snapshot(Map);

/// A context that was entered: where its values are, and who it is, because a token is only good where it was made.
#[derive(Clone, Copy)]
struct Inside {
    values: NonNull<Cell<Snapshot>>,
    owner: u64,
}

thread_local! {
    /// The innermost context that was entered. `None`: the current task's own, so that a step need not say so; without
    /// a task the thread's. Set by guards only; see `with_running` why it can be followed.
    static INSIDE: Cell<Option<Inside>> = const { Cell::new(None) };
    /// What a thread has set outside of any task, callback or `ContextVars::run`.
    static BASE: Cell<Snapshot> = const { Cell::new(Snapshot(None)) };
    static OWNERS: Cell<u64> = const { Cell::new(1 << 63) };
}

/// Calls `f` with the values of the running context and whose it is. Nothing foreign may be called with them: they are out
/// of their place.
fn with_running<R>(f: impl FnOnce(&mut Snapshot, u64) -> R) -> R {
    let lend = |cell: &Cell<Snapshot>, owner| {
        let mut values = cell.take();
        let result = f(&mut values, owner);
        cell.set(values);
        result
    };
    if let Some(inside) = INSIDE.get() {
        // SAFETY: `Snapshot::enter` made the pointer from a reference that outlives its guard, and guards put back what was
        // there before. They live in stack frames of this crate and so go in reverse order: the pointer that is there is
        // always that of a guard that is alive. It is only ever used on its own thread.
        return lend(unsafe { inside.values.as_ref() }, inside.owner);
    }
    current::with(|kernel| match kernel.and_then(Kernel::current_task) {
        Some(task) => lend(&task.context, task.name.bits()),
        // A thread that is ending has no context of its own any more.
        None => {
            let values = Cell::new(BASE.try_with(Cell::take).unwrap_or_default());
            let result = lend(&values, 0);
            let _ = BASE.try_with(|base| base.set(values.take()));
            result
        }
    })
}

/// A fresh identity for a context that is no task's; a task's is its name. Names fill the word from the loop id
/// down, so the two meet only beyond two thousand loops.
fn new_owner() -> u64 {
    OWNERS.with(|owners| {
        owners.set(owners.get() + 1);
        owners.get()
    })
}

impl Snapshot {
    #[inline]
    pub(crate) fn current() -> Snapshot {
        // Asked at every spawn, and mostly there is nothing.
        let is_empty = INSIDE.get().is_none()
            && current::with(|kernel| {
                let task = kernel.and_then(Kernel::current_task);
                task.is_some_and(|task| {
                    let values = task.context.take();
                    let is_empty = values.0.is_none();
                    task.context.set(values);
                    is_empty
                })
            });
        if is_empty { Snapshot(None) } else { Snapshot::copy() }
    }

    #[inline(never)]
    fn copy() -> Snapshot {
        with_running(|values, _| values.clone())
    }

    /// Makes the context whose values are in that cell the running one, until the guard goes. What is written meanwhile
    /// is written there.
    fn enter(values: &Cell<Snapshot>, owner: u64) -> Entered<'_> {
        Entered { outer: INSIDE.replace(Some(Inside { values: NonNull::from(values), owner })), _values: PhantomData }
    }

    /// Leaves whatever context was entered, until the guard goes: the current task's own is the running one.
    pub(crate) fn leave() -> Entered<'static> {
        Entered { outer: INSIDE.replace(None), _values: PhantomData }
    }

    /// Runs `f` in a copy of its own: what it writes is gone afterwards.
    pub(crate) fn run_detached<R>(self, f: impl FnOnce() -> R) -> R {
        let values = Cell::new(self);
        let _entered = Snapshot::enter(&values, new_owner());
        f()
    }

    /// A copy for another thread. Runs the values' `Clone`, so no context may be out of its place meanwhile.
    pub(crate) fn carried(&self) -> Carried {
        let entries = self.0.iter().flat_map(|entries| entries.iter());
        let carried = entries.filter_map(|entry| {
            let carry = entry.carry?;
            Some(CarriedEntry { key: entry.key, carry, value: carry(&*entry.value) })
        });
        Carried(carried.collect())
    }

    fn get(&self, key: Key) -> Option<&Rc<dyn Any>> {
        self.0.as_ref()?.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The value it had before.
    fn put(&mut self, key: Key, carry: Option<Carry>, value: Option<Rc<dyn Any>>) -> Option<Rc<dyn Any>> {
        let entries = Rc::make_mut(self.0.get_or_insert_default());
        match (entries.iter().position(|entry| entry.key == key), value) {
            (Some(at), Some(value)) => Some(std::mem::replace(&mut entries[at].value, value)),
            (Some(at), None) => Some(entries.remove(at).value),
            (None, Some(value)) => {
                entries.push(ContextEntry { key, carry, value });
                None
            }
            (None, None) => None,
        }
    }
}

/// A context on its way to another thread.
pub(crate) struct Carried(Vec<CarriedEntry>);

struct CarriedEntry {
    key: Key,
    carry: Carry,
    value: Box<dyn Any + Send>,
}

impl Carried {
    /// The running context's values that can leave this thread.
    pub(crate) fn current() -> Carried {
        Snapshot::current().carried()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs `f` in this context, on whichever thread: what it writes is gone afterwards.
    pub(crate) fn run<R>(self, f: impl FnOnce() -> R) -> R {
        let entries = self.0.into_iter().map(|CarriedEntry { key, carry, value }| {
            let value: Box<dyn Any> = value;
            ContextEntry { key, carry: Some(carry), value: Rc::from(value) }
        });
        let entries: Vec<ContextEntry> = entries.collect();
        let values = if entries.is_empty() { None } else { Some(Rc::new(entries)) };
        Snapshot(values).run_detached(f)
    }
}

/// Borrows the values for as long as they are the running ones.
pub(crate) struct Entered<'a> {
    outer: Option<Inside>,
    _values: PhantomData<&'a Cell<Snapshot>>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        INSIDE.set(self.outer);
    }
}

/// A variable whose value belongs to the running context rather than to the thread.
///
/// Tasks, callbacks and done-callbacks inherit it. So do jobs in other threads ([`to_thread`](crate::to_thread) and
/// its kin): they get a clone of the value, made when the job is submitted, which is why the value must be `Send`. A
/// variable whose values cannot leave their thread is made with [`local`](Self::local); jobs in other threads do not
/// see it.
///
/// ```
/// use tidegate_loop::{ContextVar, run, spawn};
///
/// static REQUEST: ContextVar<u32> = ContextVar::new("request");
///
/// run(async {
///     REQUEST.set(7);
///     let child = spawn(async {
///         assert_eq!(REQUEST.get(), Some(7)); // inherited
///         REQUEST.set(8); // its own copy
///     });
///     child.await.unwrap();
///     assert_eq!(REQUEST.get(), Some(7));
/// })
/// .unwrap();
/// ```
pub struct ContextVar<T: 'static> {
    name: &'static str,
    default: Option<fn() -> T>,
    /// How its values travel to other threads; `None`: they do not.
    carry: Option<Carry>,
    /// Makes the variable occupy an address of its own, which is its identity.
    _address: u8,
}

/// What `ContextVar<T>` keeps for values of a type that may travel.
fn carry_clone<T: Clone + Send + 'static>(value: &dyn Any) -> Box<dyn Any + Send> {
    Box::new(value.downcast_ref::<T>().expect("a variable has one type").clone())
}

impl<T: Clone + Send + 'static> ContextVar<T> {
    /// A variable without a default.
    ///
    /// ```
    /// static USER: tidegate_loop::ContextVar<String> = tidegate_loop::ContextVar::new("user");
    /// assert_eq!(USER.get(), None);
    /// ```
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        ContextVar { name, default: None, carry: Some(carry_clone::<T>), _address: 0 }
    }

    /// A variable that reads as `default()` where it was not set.
    ///
    /// ```
    /// static DEPTH: tidegate_loop::ContextVar<u32> = tidegate_loop::ContextVar::with_default("depth", || 0);
    /// assert_eq!(DEPTH.get(), Some(0));
    /// ```
    #[must_use]
    pub const fn with_default(name: &'static str, default: fn() -> T) -> Self {
        ContextVar { name, default: Some(default), carry: Some(carry_clone::<T>), _address: 0 }
    }
}

impl<T: Clone + 'static> ContextVar<T> {
    /// A variable for values that stay on their thread, an `Rc` for example. Jobs in other threads find it unset.
    ///
    /// ```
    /// use std::rc::Rc;
    /// use tidegate_loop::{ContextVar, run, to_thread};
    ///
    /// static SESSION: ContextVar<Rc<str>> = ContextVar::local("session");
    ///
    /// run(async {
    ///     SESSION.set("s1".into());
    ///     assert_eq!(SESSION.get().as_deref(), Some("s1"));
    ///     assert!(to_thread(|| SESSION.get().is_none()).await.unwrap());
    /// })
    /// .unwrap();
    /// ```
    #[must_use]
    pub const fn local(name: &'static str) -> Self {
        ContextVar { name, default: None, carry: None, _address: 0 }
    }

    /// The name it was given, for messages.
    ///
    /// ```
    /// static USER: tidegate_loop::ContextVar<String> = tidegate_loop::ContextVar::new("user");
    /// assert_eq!(USER.name(), "user");
    /// ```
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The value in the running context, or the default.
    ///
    /// ```
    /// static USER: tidegate_loop::ContextVar<u32> = tidegate_loop::ContextVar::new("user");
    /// USER.set(1);
    /// assert_eq!(USER.get(), Some(1));
    /// ```
    pub fn get(&'static self) -> Option<T> {
        self.read(&Snapshot::current())
    }

    /// Sets it in the running context. The token takes it back.
    ///
    /// ```
    /// static USER: tidegate_loop::ContextVar<u32> = tidegate_loop::ContextVar::new("user");
    /// let token = USER.set(1);
    /// USER.reset(token).unwrap();
    /// assert_eq!(USER.get(), None);
    /// ```
    pub fn set(&'static self, value: T) -> Token<T> {
        let value = Rc::new(value);
        let (before, owner) = with_running(|values, owner| (values.put(self.key(), self.carry, Some(value)), owner));
        Token { variable: self.key(), owner, before, _type: PhantomData }
    }

    /// Gives it back the value it had before the `set` that made the token.
    ///
    /// # Errors
    /// [`ResetError`] when the token belongs to another variable or was made in another context.
    ///
    /// ```
    /// use tidegate_loop::{ContextVars, ContextVar, ResetError};
    /// static USER: ContextVar<u32> = ContextVar::new("user");
    /// let elsewhere = ContextVars::current().run(|| USER.set(1));
    /// assert_eq!(USER.reset(elsewhere), Err(ResetError::OtherContext));
    /// ```
    pub fn reset(&'static self, token: Token<T>) -> Result<(), ResetError> {
        if token.variable != self.key() {
            return Err(ResetError::OtherVariable);
        }
        let Token { owner: made_in, before, .. } = token;
        let put = |values: &mut Snapshot, owner| (owner == made_in).then(|| values.put(self.key(), self.carry, before));
        // What was there is dropped here, when the values are back in their place.
        with_running(put).map(drop).ok_or(ResetError::OtherContext)
    }

    fn key(&'static self) -> Key {
        std::ptr::from_ref(self).addr()
    }

    fn read(&'static self, values: &Snapshot) -> Option<T> {
        match values.get(self.key()) {
            Some(value) => Some(value.downcast_ref::<T>().expect("a variable has one type").clone()),
            None => self.default.map(|default| default()),
        }
    }
}

impl<T> fmt::Debug for ContextVar<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextVar").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a variable held before it was set. Used up by [`ContextVar::reset`].
pub struct Token<T> {
    variable: Key,
    owner: u64,
    before: Option<Rc<dyn Any>>,
    _type: PhantomData<T>,
}

impl<T> fmt::Debug for Token<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

/// Why a token was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetError {
    /// The token was made by another variable's `set`.
    OtherVariable,
    /// The token was made in another context (another task, callback or `ContextVars::run`).
    OtherContext,
}

impl fmt::Display for ResetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResetError::OtherVariable => "the token was made by another variable",
            ResetError::OtherContext => "the token was made in another context; reset where you set",
        })
    }
}

impl std::error::Error for ResetError {}

/// A context of its own: a copy of the variables as they were, into which code can be run.
///
/// ```
/// use tidegate_loop::{ContextVars, ContextVar};
/// static VAR: ContextVar<&str> = ContextVar::with_default("var", || "default");
///
/// let before = ContextVars::current();
/// let _ = VAR.set("new");
/// assert_eq!(before.run(|| VAR.get()), Some("default"));
/// assert_eq!(VAR.get(), Some("new"));
/// ```
#[derive(Clone)]
pub struct ContextVars {
    inner: Rc<ContextCell>,
}

pub(crate) struct ContextCell {
    values: Cell<Snapshot>,
    owner: u64,
    entered: Cell<bool>,
}

impl ContextVars {
    /// A copy of the running context.
    ///
    /// ```
    /// let context = tidegate_loop::ContextVars::current();
    /// assert_eq!(context.run(|| 1 + 1), 2);
    /// ```
    #[must_use]
    pub fn current() -> ContextVars {
        let values = Cell::new(Snapshot::current());
        ContextVars { inner: Rc::new(ContextCell { values, owner: new_owner(), entered: Cell::new(false) }) }
    }

    /// Runs `f` in this context. What it sets stays in this context, for the next `run`.
    ///
    /// # Panics
    /// When the context is entered already: a context runs one thing at a time.
    ///
    /// ```
    /// use tidegate_loop::{ContextVars, ContextVar};
    /// static VAR: ContextVar<u32> = ContextVar::new("var");
    /// let context = ContextVars::current();
    /// context.run(|| drop(VAR.set(1)));
    /// assert_eq!((VAR.get(), context.get(&VAR)), (None, Some(1)));
    /// ```
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        self.inner.enter(f)
    }

    /// What the variable is in this context.
    ///
    /// ```
    /// use tidegate_loop::{ContextVars, ContextVar};
    /// static VAR: ContextVar<u32> = ContextVar::new("var");
    /// assert_eq!(ContextVars::current().get(&VAR), None);
    /// ```
    pub fn get<T: Clone + 'static>(&self, variable: &'static ContextVar<T>) -> Option<T> {
        let values = self.inner.values.take();
        let copy = values.clone();
        self.inner.values.set(values);
        // From a copy: cloning a value may run any code.
        variable.read(&copy)
    }

    pub(crate) fn cell(&self) -> Rc<ContextCell> {
        self.inner.clone()
    }
}

impl ContextCell {
    pub(crate) fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Leave<'a>(&'a Cell<bool>);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        let busy = self.entered.replace(true);
        assert!(!busy, "this context is entered already; take another copy with ContextVars::current()");
        let _leave = Leave(&self.entered);
        let _entered = Snapshot::enter(&self.values, self.owner);
        f()
    }
}

impl fmt::Debug for ContextVars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextVars").finish_non_exhaustive()
    }
}
