//! What the process does with its signals: one handler for all of them, installed while a signal is used, the previous
//! disposition put back afterwards. The handler counts, wakes the loops that listen, and calls the handler
//! that was installed before; nothing else, because next to nothing is allowed in a signal handler.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{c_int, c_void, sighandler_t, siginfo_t};

use super::SignalKind;
use crate::mailbox;
use crate::mailbox::name::LOOPS_MAX;

/// Signals are numbered from 1; 64 is Linux's last.
const SIGNALS: usize = 65;
const WORDS: usize = LOOPS_MAX.div_ceil(64);

/// What the handler needs to know of a signal. Never freed, no locks: it may run at any instant, in any thread.
struct DispositionSlot {
    /// How often the signal has come.
    total: AtomicU64,
    /// Listeners in the whole process; while there are any, a runner leaves SIGINT to them.
    listeners: AtomicU32,
    /// The loops that want to know, by id.
    loops: [AtomicU64; WORDS],
    /// Who handled it before: an address, or `SIG_DFL` or `SIG_IGN`.
    previous: AtomicUsize,
    previous_flags: AtomicI32,
}

static SLOTS: [DispositionSlot; SIGNALS] = [const {
    DispositionSlot {
        total: AtomicU64::new(0),
        listeners: AtomicU32::new(0),
        loops: [const { AtomicU64::new(0) }; WORDS],
        previous: AtomicUsize::new(libc::SIG_DFL),
        previous_flags: AtomicI32::new(0),
    }
}; SIGNALS];

/// Runners that end in order on SIGINT, and how often it has come since the first of them began.
static RUNNERS: AtomicU32 = AtomicU32::new(0);
static PRESSED: AtomicU32 = AtomicU32::new(0);

const AT_ONCE: &[u8] = b"tidegate: interrupted again, ending at once\n";
/// What shells make of a program that was ended by SIGINT.
const EXIT_INTERRUPTED: c_int = 130;

fn slot(signal: SignalKind) -> &'static DispositionSlot {
    &SLOTS[signal.as_raw() as usize]
}

/// How often the signal has come since the process began to listen for it.
pub(super) fn total(signal: SignalKind) -> u64 {
    slot(signal).total.load(Ordering::SeqCst)
}

/// Whether Ctrl-C has come since the first of the runners began.
pub(super) fn is_pressed() -> bool {
    PRESSED.load(Ordering::SeqCst) > 0
}

pub(super) fn has_listeners(signal: SignalKind) -> bool {
    slot(signal).listeners.load(Ordering::SeqCst) > 0
}

/// The one handler. Async-signal-safe: atomics, `write` to an eventfd or to standard error, `_exit`.
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(slot) = usize::try_from(signal).ok().and_then(|signal| SLOTS.get(signal)) else { return };
    // SAFETY: the address of this thread's errno, which is always there.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the interrupted code must find it as it left it.
    let before = unsafe { *errno };
    slot.total.fetch_add(1, Ordering::SeqCst);
    if signal == libc::SIGINT
        && RUNNERS.load(Ordering::SeqCst) > 0
        && slot.listeners.load(Ordering::SeqCst) == 0
        && PRESSED.fetch_add(1, Ordering::SeqCst) > 0
    {
        // SAFETY: both are async-signal-safe; the bytes are static.
        unsafe {
            libc::write(libc::STDERR_FILENO, AT_ONCE.as_ptr().cast(), AT_ONCE.len());
            libc::_exit(EXIT_INTERRUPTED);
        }
    }
    for (word, ids) in slot.loops.iter().enumerate() {
        let mut ids = ids.load(Ordering::SeqCst);
        while ids != 0 {
            let id = word * 64 + ids.trailing_zeros() as usize;
            ids &= ids - 1;
            mailbox::signal_loop(id as u16);
        }
    }
    call_previous(slot, signal, info, context);
    // SAFETY: as above.
    unsafe { *errno = before };
}

fn call_previous(slot: &DispositionSlot, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let previous = slot.previous.load(Ordering::SeqCst);
    if previous == libc::SIG_DFL || previous == libc::SIG_IGN {
        return;
    }
    if slot.previous_flags.load(Ordering::SeqCst) & libc::SA_SIGINFO != 0 {
        // SAFETY: `sigaction` gave us this address as that of a handler of three arguments, and the system calls it so.
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { std::mem::transmute(previous) };
        handler(signal, info, context);
    } else {
        // SAFETY: as above, of one argument.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(previous) };
        handler(signal);
    }
}

/// The uses of a signal, and the disposition to put back when there is none any more.
struct Taken {
    uses: u32,
    /// What was there before our handler. `None`: it is not installed.
    before: Option<libc::sigaction>,
}

struct Table([Taken; SIGNALS]);

// SAFETY: a `sigaction` holds an address of code, which is the same in every thread, and plain numbers.
unsafe impl Send for Table {}

static TAKEN: Mutex<Table> = Mutex::new(Table([const { Taken { uses: 0, before: None } }; SIGNALS]));

fn taken() -> MutexGuard<'static, Table> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is done with the signal at present.
fn query(signal: SignalKind) -> io::Result<libc::sigaction> {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; the system writes a whole `sigaction` when it says 0.
    if unsafe { libc::sigaction(signal.as_raw(), ptr::null(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: written by the call above; and all zeros would be a valid one too.
    Ok(unsafe { found.assume_init() })
}

fn set(signal: SignalKind, action: &libc::sigaction) -> io::Result<()> {
    // SAFETY: `action` is either our handler, which is async-signal-safe, or one the system gave us.
    if unsafe { libc::sigaction(signal.as_raw(), action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn ours() -> sighandler_t {
    on_signal as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as *const () as sighandler_t
}

fn is_default(action: &libc::sigaction) -> bool {
    action.sa_sigaction == libc::SIG_DFL
}

/// A use of a signal: while there is one, our handler is installed, and the loop it was made for is notified.
pub(super) struct Use {
    signal: SignalKind,
    purpose: Purpose,
    /// Whether the previous disposition is put back when this was the last.
    restores: bool,
    /// How often the signal had come before.
    since: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Listener,
    /// A runner that ends in order.
    Runner,
}

impl Use {
    /// Installs the handler, unless it is.
    pub(super) fn listener(signal: SignalKind, restores: bool) -> io::Result<Use> {
        // Read first: a signal that comes while the handler is installed is the first of this use.
        let since = total(signal);
        install(&mut taken(), signal)?;
        slot(signal).listeners.fetch_add(1, Ordering::SeqCst);
        Ok(Use { signal, purpose: Purpose::Listener, restores, since })
    }

    /// `None`: the program does something else with SIGINT (or has it ignored), and that stands.
    pub(super) fn runner() -> Option<Use> {
        let signal = SignalKind::INTERRUPT;
        let mut table = taken();
        let current = query(signal).ok()?;
        // Ours with a listener is a program that sees to it itself.
        let is_free = is_default(&current) || (current.sa_sigaction == ours() && !has_listeners(signal));
        if !is_free || install(&mut table, signal).is_err() {
            return None;
        }
        if RUNNERS.load(Ordering::SeqCst) == 0 {
            PRESSED.store(0, Ordering::SeqCst);
        }
        RUNNERS.fetch_add(1, Ordering::SeqCst);
        Some(Use { signal, purpose: Purpose::Runner, restores: true, since: total(signal) })
    }

    pub(super) fn since(&self) -> u64 {
        self.since
    }

    pub(super) fn signal(&self) -> SignalKind {
        self.signal
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut table = taken();
        match self.purpose {
            Purpose::Listener => slot(self.signal).listeners.fetch_sub(1, Ordering::SeqCst),
            Purpose::Runner => RUNNERS.fetch_sub(1, Ordering::SeqCst),
        };
        let entry = &mut table.0[self.signal.as_raw() as usize];
        entry.uses -= 1;
        if entry.uses > 0 || !self.restores {
            return;
        }
        // A handler installed after ours calls ours: putting back the one before ours would remove the later one.
        if query(self.signal).is_ok_and(|current| current.sa_sigaction == ours())
            && let Some(before) = entry.before.take()
            && set(self.signal, &before).is_err()
        {
            entry.before = Some(before);
        }
    }
}

fn install(table: &mut Table, signal: SignalKind) -> io::Result<()> {
    let entry = &mut table.0[signal.as_raw() as usize];
    let current = query(signal)?;
    let replaced = is_default(&current) || current.sa_sigaction == libc::SIG_IGN;
    // A handler that came after ours calls ours, as ours calls the one before: installing it once more would make a
    // circle. Unless there is none at all any more.
    if entry.before.is_none() || (current.sa_sigaction != ours() && replaced) {
        let slot = slot(signal);
        slot.previous.store(current.sa_sigaction, Ordering::SeqCst);
        slot.previous_flags.store(current.sa_flags, Ordering::SeqCst);
        // SAFETY: all zeros is a valid `sigaction`, with an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = ours();
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        set(signal, &action)?;
        entry.before = Some(current);
    }
    entry.uses += 1;
    Ok(())
}

/// Lists the loops that are notified of a signal.
pub(super) fn tell_loop(signal: SignalKind, loop_id: u16, tell: bool) {
    let word = &slot(signal).loops[loop_id as usize / 64];
    let bit = 1 << (loop_id % 64);
    if tell {
        word.fetch_or(bit, Ordering::SeqCst);
    } else {
        word.fetch_and(!bit, Ordering::SeqCst);
    }
}
