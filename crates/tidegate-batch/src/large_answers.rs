//! Reading an answer's body. A server decides how long its answers are: of those that are large only a few are in memory at once,
//! however many requests are in flight; the others wait in the kernel and at the server.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tidegate_http::{Body, Error};
use tidegate_sync::{Permit, Semaphore};

/// Longest answer that is read.
const BYTES_MAX: u64 = 32 << 20;

/// Longer answers are large.
const LARGE_BYTES: usize = 256 << 10;

/// Large answers in memory at once.
const LARGE_MAX: usize = 8;

/// Room for the large answers of one caller.
pub(crate) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(LARGE_MAX))
}

/// Reads a body. A permit that comes with it is held for as long as the body is in memory.
pub(crate) async fn read(
    mut body: Body,
    room: &Arc<Semaphore>,
) -> Result<(Bytes, Option<Permit<Arc<Semaphore>>>), Error> {
    let Some(first) = body.chunk().await? else { return Ok((Bytes::new(), None)) };
    let mut next = body.chunk().await?;
    if next.is_none() {
        return Ok((first, None));
    }
    let mut all = BytesMut::from(first);
    while let Some(piece) = next {
        all.extend_from_slice(&piece);
        if all.len() > LARGE_BYTES {
            let permit = room.acquire_owned().await.ok();
            let rest = body.bytes_up_to(BYTES_MAX.saturating_sub(all.len() as u64)).await?;
            all.extend_from_slice(&rest);
            return Ok((all.freeze(), permit));
        }
        next = body.chunk().await?;
    }
    Ok((all.freeze(), None))
}
