//! The figures that each primitive keeps.

/// A primitive's figures, all of one instant unless said otherwise.
///
/// | | [`Semaphore`](crate::Semaphore), [`Mutex`](crate::Mutex) | [`Queue`](crate::Queue) | [`Event`](crate::Event) |
/// |---|---|---|---|
/// | `current` | permits held | items inside | tasks waiting |
/// | `peak` | most permits ever held at once | most items ever inside | most tasks ever waiting |
/// | `total` | acquisitions granted | items pushed | waits that ended |
/// | `blocked` | acquisitions that had to wait | pushes and receives that had to wait | waits that had to wait |
/// | `waiting` | tasks in line | tasks in line, pushing and receiving | tasks waiting |
///
/// ```
/// use tidegate_sync::Semaphore;
///
/// let gate = Semaphore::new(3);
/// let two = gate.try_acquire_many(2)?;
/// drop(gate.try_acquire()?);
/// drop(two);
///
/// let stats = gate.stats();
/// assert_eq!((stats.current, stats.peak, stats.total), (0, 3, 2));
/// assert_eq!((stats.blocked, stats.waiting), (0, 0));
/// # Ok::<(), tidegate_sync::TryAcquireError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Value now.
    pub current: usize,
    /// Highest value so far.
    pub peak: usize,
    /// Number of operations completed so far.
    pub total: u64,
    /// Number of operations that had to wait so far, cancelled ones included.
    pub blocked: u64,
    /// Number of tasks waiting now.
    pub waiting: usize,
}
