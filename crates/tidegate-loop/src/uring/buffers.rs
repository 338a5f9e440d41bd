//! The ring of buffers that the kernel receives into: it takes one when data is there, we give it back when the data
//! has been read. So memory is held for what has arrived, not for every connection that might send.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A power of two, as the kernel wants it.
const COUNT: u16 = 1024;
pub(super) const SIZE: usize = 4096;
/// A cache line further than the size: with the same offset in every page they would all compete for the same lines.
const STRIDE: usize = SIZE + 64;
/// One page is what the kernel wants them aligned to; the buffers follow.
const RING_BYTES: usize = (COUNT as usize * size_of::<BufRingEntry>()).next_multiple_of(4096);
const GROUP: u16 = 0;

const _: () = assert!(COUNT.is_power_of_two() && COUNT <= 1 << 15);

/// A buffer with received bytes in it. It belongs to whoever holds this, until it is given back.
#[derive(Debug)]
pub(super) struct Lent {
    id: u16,
    /// At most `SIZE`.
    len: u16,
}

impl Lent {
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }
}

/// Registered with the ring that made it until `unregister`; the mapping lives until this is dropped.
pub(super) struct Buffers {
    mapping: NonNull<u8>,
    /// Where the next buffer is put; the kernel reads it from the mapping.
    tail: u16,
    /// In the hands of the kernel.
    free: u16,
}

impl Buffers {
    pub(super) const BYTES: usize = RING_BYTES + COUNT as usize * STRIDE;
    pub(super) const GROUP: u16 = GROUP;

    pub(super) fn register(ring: &IoUring) -> io::Result<Buffers> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let mapping = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), Self::BYTES, protection, MapFlags::PRIVATE)?
        };
        let mapping = NonNull::new(mapping.cast()).expect("a mapping is not at address zero");
        let mut buffers = Buffers { mapping, tail: 0, free: 0 };
        for id in 0..COUNT {
            buffers.put(id);
        }
        buffers.publish();
        // SAFETY: the entries lie at the mapping's start, page-aligned, COUNT of them. They are unmapped when this is
        // dropped: here if the call fails, otherwise by the owner, who unregisters first (see `Core::drop`).
        unsafe { ring.submitter().register_buf_ring_with_flags(mapping.as_ptr() as u64, COUNT, GROUP, 0)? };
        Ok(buffers)
    }

    pub(super) fn unregister(&self, ring: &IoUring) -> io::Result<()> {
        ring.submitter().unregister_buf_ring(GROUP)
    }

    /// Takes the buffer that a completion named.
    pub(super) fn take(&mut self, id: u16, len: usize) -> Lent {
        assert!(id < COUNT && len <= SIZE, "the kernel named a buffer that was not given to it");
        self.free -= 1;
        Lent { id, len: len as u16 }
    }

    pub(super) fn bytes(&self, lent: &Lent) -> &[u8] {
        // SAFETY: inside of the mapping, by the assertion in `take`; initialised (by the kernel, or zero as mapped). The
        // kernel does not write to it: it was taken from the ring, and `give_back`, which puts it there again, consumes
        // the `Lent`, of which there is one a buffer.
        unsafe { std::slice::from_raw_parts(self.buffer(lent.id), lent.len()) }
    }

    pub(super) fn give_back(&mut self, lent: Lent) {
        self.put(lent.id);
        self.publish();
    }

    fn buffer(&self, id: u16) -> *mut u8 {
        // SAFETY: ids are below COUNT, so this stays inside of the mapping.
        unsafe { self.mapping.as_ptr().add(RING_BYTES + usize::from(id) * STRIDE) }
    }

    fn put(&mut self, id: u16) {
        let address = self.buffer(id) as u64;
        let entries = self.mapping.cast::<BufRingEntry>();
        // SAFETY: one of the COUNT entries at the start of the mapping. The kernel reads entries below the published
        // tail only, and this one is above it: at most COUNT buffers exist, so it was consumed before.
        let entry = unsafe { &mut *entries.as_ptr().add(usize::from(self.tail & (COUNT - 1))) };
        entry.set_addr(address);
        entry.set_len(SIZE as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        self.free += 1;
    }

    fn publish(&self) {
        // SAFETY: the tail lies in the first entry of a mapping that lives as long as this; the kernel reads it
        // atomically, and nobody else writes it.
        unsafe {
            let tail = BufRingEntry::tail(self.mapping.as_ptr().cast());
            (*tail.cast::<AtomicU16>()).store(self.tail, Ordering::Release);
        }
    }

    /// Buffers that wait for data.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        usize::from(self.free)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: our mapping; nothing borrows from it, and the kernel was told (or never knew) that it is gone.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), Self::BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}
