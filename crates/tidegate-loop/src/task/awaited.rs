//! What a task can await and that can itself be cancelled: a settable future, a gathering of tasks. Counted without
//! atomics and kept in blocks that are used again, because there is one for every hop of a value between tasks; and
//! thin, so that a task notes what it awaits in one word.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::task::alloc;

/// Something of the loop's that a task can await.
pub(crate) trait Awaited: Sized + 'static {
    /// As for a task: true if the request was taken.
    fn cancel(this: &Counted<Self>) -> bool;
    fn describe(&self) -> String;
    /// Whether dropping it would do nothing, as far as that can be told at once.
    #[inline]
    fn is_bare(&self) -> bool {
        false
    }
}

/// One of them as it lies in memory. The head comes first, so a pointer to the one is a pointer to the other.
#[repr(C)]
struct AwaitedBox<A> {
    head: AwaitedHead,
    value: A,
}

pub(crate) struct AwaitedHead {
    vtable: &'static VTable,
    refs: Cell<usize>,
}

/// What depends on the type. All of them take a pointer to a live `AwaitedBox` of the type the table was made for.
struct VTable {
    cancel: unsafe fn(NonNull<AwaitedHead>) -> bool,
    describe: unsafe fn(NonNull<AwaitedHead>) -> String,
    free: unsafe fn(NonNull<AwaitedHead>),
}

/// A counted reference to one whose type is known.
pub(crate) struct Counted<A: Awaited> {
    any: AnyAwaited,
    /// Owned like an `Rc`, and like one it can be moved whatever it refers to.
    _value: PhantomData<Rc<A>>,
}

/// A counted reference to any of them.
pub(crate) struct AnyAwaited(NonNull<AwaitedHead>);

impl<A: Awaited> Counted<A> {
    #[inline]
    pub(crate) fn new(make: impl FnOnce() -> A) -> Counted<A> {
        let vtable = &const { VTable { cancel: cancel::<A>, describe: describe::<A>, free: free::<A> } };
        let inner = alloc::allocate(|| AwaitedBox { head: AwaitedHead { vtable, refs: Cell::new(1) }, value: make() });
        Counted { any: AnyAwaited(inner.cast()), _value: PhantomData }
    }

    /// The value to change, if this is the only reference.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut A> {
        // SAFETY: this is the only reference, and it is borrowed for as long as what comes back. It does not leave its
        // thread, so it is not cloned meanwhile.
        (self.any.head().refs.get() == 1).then(|| &mut unsafe { self.any.0.cast::<AwaitedBox<A>>().as_mut() }.value)
    }

    #[inline]
    pub(crate) fn any(&self) -> &AnyAwaited {
        &self.any
    }
}

impl<A: Awaited> Deref for Counted<A> {
    type Target = A;

    #[inline]
    fn deref(&self) -> &A {
        // SAFETY: made by `new` for this type, and counted, so it is there.
        &unsafe { self.any.0.cast::<AwaitedBox<A>>().as_ref() }.value
    }
}

impl<A: Awaited> Clone for Counted<A> {
    #[inline]
    fn clone(&self) -> Self {
        Counted { any: self.any.clone(), _value: PhantomData }
    }
}

impl AnyAwaited {
    #[inline]
    fn head(&self) -> &AwaitedHead {
        // SAFETY: this reference is counted, so what it points to is there.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn cancel(&self) -> bool {
        // SAFETY: the table is the one it was made with.
        unsafe { (self.head().vtable.cancel)(self.0) }
    }

    pub(crate) fn describe(&self) -> String {
        // SAFETY: the table is the one it was made with.
        unsafe { (self.head().vtable.describe)(self.0) }
    }

    #[inline]
    pub(crate) fn is(&self, other: &AnyAwaited) -> bool {
        self.0 == other.0
    }

    /// The reference as a pointer, still counted.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<AwaitedHead> {
        std::mem::ManuallyDrop::new(self).0
    }

    /// # Safety
    /// Takes over the count of a pointer that `into_raw` made.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<AwaitedHead>) -> AnyAwaited {
        AnyAwaited(raw)
    }
}

impl Clone for AnyAwaited {
    #[inline]
    fn clone(&self) -> Self {
        // A reference takes more than a byte, so a word is enough to count them; but they can be forgotten.
        let refs = self.head().refs.get().checked_add(1).expect("more references than memory");
        self.head().refs.set(refs);
        AnyAwaited(self.0)
    }
}

impl Drop for AnyAwaited {
    #[inline]
    fn drop(&mut self) {
        let refs = self.head().refs.get() - 1;
        self.head().refs.set(refs);
        if refs == 0 {
            // SAFETY: that was the last reference; the table is the one it was made with.
            unsafe { (self.head().vtable.free)(self.0) }
        }
    }
}

unsafe fn cancel<A: Awaited>(head: NonNull<AwaitedHead>) -> bool {
    // SAFETY: the caller holds a reference to it; this one is not counted, and so not dropped either.
    let this = std::mem::ManuallyDrop::new(Counted::<A> { any: AnyAwaited(head), _value: PhantomData });
    A::cancel(&this)
}

unsafe fn describe<A: Awaited>(head: NonNull<AwaitedHead>) -> String {
    // SAFETY: live, and of this type.
    unsafe { head.cast::<AwaitedBox<A>>().as_ref() }.value.describe()
}

unsafe fn free<A: Awaited>(head: NonNull<AwaitedHead>) {
    let inner = head.cast::<AwaitedBox<A>>();
    // SAFETY: made by `alloc::allocate` for this very type in `Counted::new`; this was the last reference. Of what is
    // given back undropped, the head has nothing to drop, and the value says so of itself.
    unsafe {
        if inner.as_ref().value.is_bare() {
            alloc::give_back(inner);
        } else {
            free_dropping(inner);
        }
    }
}

/// `#[inline(never)]`: keeps `free`'s fast path a leaf function without a stack frame.
#[inline(never)]
unsafe fn free_dropping<A: Awaited>(inner: NonNull<AwaitedBox<A>>) {
    // SAFETY: as in `free`.
    unsafe { alloc::free(inner) }
}
