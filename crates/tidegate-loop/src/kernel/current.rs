//! Which loops this thread has, and which of them is running.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::rc::{Rc, Weak};

use crate::kernel::Kernel;
use crate::mailbox::Registration;
use crate::mailbox::name::Name;

thread_local! {
    static CURRENT: Cell<*const Kernel> = const { Cell::new(ptr::null()) };
    /// Every loop of this thread, running or not.
    static HERE: RefCell<Vec<Weak<Kernel>>> = const { RefCell::new(Vec::new()) };
}

/// A loop of this thread, running or not.
fn find(is_it: impl Fn(&Registration) -> bool) -> Option<Rc<Kernel>> {
    // The thread may be past its end, and its locals gone.
    let find = |here: &RefCell<Vec<Weak<Kernel>>>| {
        here.borrow().iter().filter_map(Weak::upgrade).find(|kernel| is_it(&kernel.registration))
    };
    HERE.try_with(find).ok().flatten()
}

/// Makes a kernel the current one of this thread for as long as the guard lives.
pub(crate) struct Current<'a> {
    before: *const Kernel,
    _kernel: &'a Kernel,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Calls `f` with the loop that runs on this thread, if any.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(Option<&Kernel>) -> R) -> R {
    // SAFETY: the pointer was made from a reference by `Kernel::enter`, whose guard borrows the kernel and takes the
    // pointer back before that borrow ends. The guard is made and dropped on one thread (it holds a raw pointer, so
    // it is not `Send`), and lives in stack frames only, so guards go in reverse order.
    f(unsafe { CURRENT.get().as_ref() })
}

/// Whether that is the loop that runs on this thread.
#[inline]
pub(crate) fn is(kernel: &Kernel) -> bool {
    ptr::eq(CURRENT.get(), kernel)
}

/// Calls `f` with the loop of that serial, if it is one of this thread's and still there.
#[inline]
pub(crate) fn on<R>(serial: u32, f: impl FnOnce(&Kernel) -> R) -> Option<R> {
    with(|current| match current {
        Some(kernel) if kernel.registration.serial == serial => Some(f(kernel)),
        _ => find(|known| known.serial == serial).map(|kernel| f(&kernel)),
    })
}

/// Wakes a task of a loop of this thread that is not running at the moment; returns `false` if the loop is another
/// thread's. Through the inbox the task would be queued later than what is woken directly after it.
pub(crate) fn wake_idle(name: Name) -> bool {
    match find(|known| known.id == name.loop_id()) {
        Some(kernel) => {
            kernel.wake(name);
            true
        }
        None => false,
    }
}

/// Wakes a task of the loop that runs on this thread; returns `false` if it belongs to another loop.
#[inline]
pub(crate) fn wake_here(name: Name) -> bool {
    with(|kernel| match kernel {
        Some(kernel) if kernel.registration.id == name.loop_id() => {
            kernel.wake(name);
            true
        }
        _ => false,
    })
}

/// Wakes the first waiter of a future, if there is one. Returns `false`, and does nothing, if there is more to do than to put
/// a task of the running loop into its ready queue.
#[inline(always)]
pub(crate) fn wake_first(first: Option<Name>) -> bool {
    with(|kernel| match (kernel, first) {
        (Some(kernel), Some(first)) => kernel.registration.id == first.loop_id() && kernel.try_wake(first),
        (Some(kernel), None) => !kernel.watch.is_on(),
        (None, first) => first.is_none(),
    })
}

/// Makes a loop known on its thread.
pub(crate) fn register(kernel: &Rc<Kernel>) {
    HERE.with_borrow_mut(|here| {
        here.retain(|known| known.strong_count() > 0);
        here.push(Rc::downgrade(kernel));
    });
}

impl Kernel {
    /// Makes this the running loop of the thread.
    pub(crate) fn enter(&self) -> Current<'_> {
        Current { before: CURRENT.replace(self), _kernel: self }
    }
}
