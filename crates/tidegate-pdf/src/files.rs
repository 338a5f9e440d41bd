//! Files on their way to the child: sent over the socket as the first thing, so that no name and no number is needed.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::source::Source;
use crate::wire::PREFIX_BYTES;

/// The document, and perhaps a font.
const FILES_MAX: usize = 2;

/// Sends the document, then the font if there is one.
pub(crate) fn send(to: &UnixStream, source: &Source) -> io::Result<()> {
    let mut fds = vec![source.document.as_fd()];
    fds.extend(source.font.as_ref().map(AsFd::as_fd));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("more files than there is room for"));
    }
    // Files need bytes to go with. These are a frame without a head: a program that sends them back is noticed at once.
    sendmsg(to, &[IoSlice::new(&[0; PREFIX_BYTES])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`send`] has sent; `None` if the other end is gone.
pub(crate) fn receive(from: &UnixStream) -> io::Result<Option<(File, Option<File>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut frame = [0; PREFIX_BYTES];
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(from, &mut [IoSliceMut::new(&mut frame)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.map(File::from).collect(),
        _ => Vec::new(),
    });
    let document = files.next().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no document came"))?;
    let font = files.next();
    Ok(Some((document, font)))
}

/// Reads to the end, or `bytes_max`. Reads and nothing else: `File::read_to_end` asks for the size with a system call that
/// is not allowed in the child. Takes no more room than the file needs, because address space is limited.
pub(crate) fn read_to_end(mut file: &File, bytes_max: usize) -> io::Result<Vec<u8>> {
    const CHUNK_BYTES: usize = 1 << 20;
    let (mut bytes, mut read) = (Vec::new(), 0);
    while read < bytes_max {
        let room = CHUNK_BYTES.min(bytes_max - read);
        bytes.reserve_exact(read + room - bytes.len());
        bytes.resize(read + room, 0);
        match file.read(&mut bytes[read..]) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(read);
    bytes.shrink_to_fit();
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;
    use crate::source::Stamp;

    #[test]
    fn files_arrive_in_their_order_and_before_what_is_sent_behind_them() {
        for texts in [&["the document"][..], &["the document", "the font"]] {
            let mut files = texts.iter().map(|text| {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(text.as_bytes()).unwrap();
                file.rewind().unwrap();
                file.into()
            });
            let source = Source { document: files.next().unwrap(), stamp: Stamp::default(), font: files.next() };
            let (mut near, mut far) = UnixStream::pair().unwrap();
            send(&near, &source).unwrap();
            near.write_all(b"a request").unwrap();
            drop((near, source));
            let (document, font) = receive(&far).unwrap().unwrap();
            let read = [Some(document), font].into_iter().flatten().map(|file| read_to_end(&file, 99).unwrap());
            assert_eq!(read.collect::<Vec<_>>(), texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>());
            let mut behind = String::new();
            far.read_to_string(&mut behind).unwrap();
            assert_eq!(behind, "a request");
            assert!(receive(&far).unwrap().is_none(), "the other end is gone");
        }
    }

    #[test]
    fn a_file_is_read_whole_or_up_to_the_limit() {
        let written: Vec<u8> = (0..3_000_000_u32).map(|index| index as u8).collect();
        for bytes_max in [usize::MAX, 3_000_000, 2_999_999, 1 << 20, 1, 0] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&written).unwrap();
            file.rewind().unwrap();
            let read = read_to_end(&file, bytes_max).unwrap();
            assert!(read == written[..written.len().min(bytes_max)], "{bytes_max}");
        }
    }
}
