//! The ring of buffers that the kernel receives into: it takes one when data is there, we give it back when the data
//! has been read. So memory is held for what has arrived, not for every connection that might send.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::{BufRingEntry, IOU_PBUF_RING_INC};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// How many buffers there are, and how long they are.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// A power of two, as the kernel wants it.
    count: u16,
    size: u16,
    /// The kernel fills a buffer bit by bit, with what arrives on many streams, and says when it has moved on. Small
    /// messages then lie close together, and large ones come in large pieces. Otherwise a buffer is filled once.
    shared: bool,
}

const SHARED: Shape = Shape { count: 256, size: 16 * 1024, shared: true };
const SINGLE: Shape = Shape { count: 1024, size: 4 * 1024, shared: false };

/// The longest piece in which anything arrives.
pub(super) const SIZE_MAX: usize = SHARED.size as usize;
/// Buffers are a cache line further apart than they are long: with the same offset in every page they would all compete
/// for the same lines.
const APART: usize = 64;
const GROUP: u16 = 0;

const _: () = assert!(SHARED.count.is_power_of_two() && SINGLE.count.is_power_of_two());
const _: () = assert!(SHARED.size >= SINGLE.size);

impl Shape {
    fn stride(self) -> usize {
        usize::from(self.size) + APART
    }

    /// The entries come first; a page is what the kernel wants them aligned to.
    fn ring_bytes(self) -> usize {
        (usize::from(self.count) * size_of::<BufRingEntry>()).next_multiple_of(4096)
    }

    fn bytes(self) -> usize {
        self.ring_bytes() + usize::from(self.count) * self.stride()
    }
}

/// A part of a buffer with received bytes in it. It belongs to the holder of this value, until it is given back.
#[derive(Debug)]
pub(super) struct Lent {
    id: u16,
    /// Offset and length stay within the buffer.
    offset: u16,
    len: u16,
}

impl Lent {
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }
}

/// What became of a buffer since the kernel got it.
#[derive(Debug, Clone, Copy, Default)]
struct Filled {
    /// The next bytes go behind these.
    bytes: u16,
    /// Parts that were not given back.
    lent: u16,
    /// The kernel has moved on to another one.
    done: bool,
}

/// Registered with the ring that made it until `unregister`; the mapping lives until this is dropped.
pub(super) struct Buffers {
    shape: Shape,
    mapping: NonNull<u8>,
    filled: Box<[Filled]>,
    /// Where the next buffer is put; the kernel reads it from the mapping.
    tail: u16,
}

impl Buffers {
    pub(super) const GROUP: u16 = GROUP;

    pub(super) fn register(ring: &IoUring) -> io::Result<Buffers> {
        // Shared buffers came with Linux 6.12; a later feature stands for the corrections they got.
        if ring.params().is_feature_no_iowait()
            && let Ok(buffers) = Buffers::register_as(ring, SHARED)
        {
            return Ok(buffers);
        }
        Buffers::register_as(ring, SINGLE)
    }

    fn register_as(ring: &IoUring, shape: Shape) -> io::Result<Buffers> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let mapping = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), shape.bytes(), protection, MapFlags::PRIVATE)?
        };
        let mapping = NonNull::new(mapping.cast()).expect("a mapping is not at address zero");
        let filled = vec![Filled::default(); usize::from(shape.count)].into();
        let mut buffers = Buffers { shape, mapping, filled, tail: 0 };
        for id in 0..shape.count {
            buffers.put(id);
        }
        buffers.publish();
        let flags = if shape.shared { IOU_PBUF_RING_INC as u16 } else { 0 };
        // SAFETY: the entries lie at the mapping's start, page-aligned, `count` of them. They are unmapped when this is
        // dropped: here if the call fails, otherwise by the owner, who unregisters first (see `Core::drop`).
        unsafe {
            ring.submitter().register_buf_ring_with_flags(mapping.as_ptr() as u64, shape.count, GROUP, flags)?;
        }
        Ok(buffers)
    }

    pub(super) fn unregister(&self, ring: &IoUring) -> io::Result<()> {
        ring.submitter().unregister_buf_ring(GROUP)
    }

    /// Takes the part of a buffer that a completion is about; `more` if the kernel goes on behind it.
    pub(super) fn take(&mut self, id: u16, len: usize, more: bool) -> Lent {
        assert!(id < self.shape.count, "the kernel named a buffer that it was not given");
        let filled = &mut self.filled[usize::from(id)];
        let offset = filled.bytes;
        assert!(usize::from(offset) + len <= usize::from(self.shape.size), "the kernel filled a buffer twice");
        filled.bytes += len as u16;
        filled.lent += 1;
        filled.done = !more;
        Lent { id, offset, len: len as u16 }
    }

    pub(super) fn bytes(&self, lent: &Lent) -> &[u8] {
        // SAFETY: inside of a buffer, by the assertions in `take`; initialised (by the kernel, or zero as mapped). The
        // kernel does not write to it: it goes on behind what it has filled, and starts anew when it gets the buffer
        // again, which `give_back` sees to when every part has been given back. That consumes the `Lent`, of which
        // there is one a part.
        unsafe { std::slice::from_raw_parts(self.buffer(lent.id).add(usize::from(lent.offset)), lent.len()) }
    }

    pub(super) fn give_back(&mut self, lent: Lent) {
        let filled = &mut self.filled[usize::from(lent.id)];
        filled.lent -= 1;
        if filled.lent == 0 && filled.done {
            self.put(lent.id);
            self.publish();
        }
    }

    fn buffer(&self, id: u16) -> *mut u8 {
        // SAFETY: ids are below the count, so this stays inside of the mapping.
        unsafe { self.mapping.as_ptr().add(self.shape.ring_bytes() + usize::from(id) * self.shape.stride()) }
    }

    fn put(&mut self, id: u16) {
        let address = self.buffer(id) as u64;
        let entries = self.mapping.cast::<BufRingEntry>();
        // SAFETY: one of the entries at the start of the mapping. The kernel uses entries below the published tail
        // only, and this one is above it: there are as many entries as buffers, so it was consumed before.
        let entry = unsafe { &mut *entries.as_ptr().add(usize::from(self.tail & (self.shape.count - 1))) };
        entry.set_addr(address);
        entry.set_len(u32::from(self.shape.size));
        entry.set_bid(id);
        self.filled[usize::from(id)] = Filled::default();
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the tail lies in the first entry of a mapping that lives as long as this; the kernel reads it
        // atomically, and only this ring writes it.
        unsafe {
            let tail = BufRingEntry::tail(self.mapping.as_ptr().cast());
            (*tail.cast::<AtomicU16>()).store(self.tail, Ordering::Release);
        }
    }

    /// As a kernel has them that cannot share them.
    #[cfg(test)]
    pub(super) fn register_single(ring: &IoUring) -> Buffers {
        Buffers::register_as(ring, SINGLE).unwrap()
    }

    /// Parts that were not given back.
    #[cfg(test)]
    pub(super) fn lent(&self) -> usize {
        self.filled.iter().map(|filled| usize::from(filled.lent)).sum()
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: our mapping; nothing borrows from it, and the kernel was notified (or never knew) that it is gone.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.shape.bytes()) };
        debug_assert!(unmapped.is_ok());
    }
}
