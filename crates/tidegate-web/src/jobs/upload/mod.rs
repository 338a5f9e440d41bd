//! Uploads: a form's files go to the disk as they come, each under a random name. No file is in memory as a whole, and every
//! size and count has a limit. What is not [kept](Received::keep) is removed again.

mod multipart;
mod space;

use std::fmt;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;

use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use tidegate_loop::to_thread;

use self::multipart::{BadMultipart, Head, Multipart, Piece};
pub(crate) use self::space::{Measuring, Reservation, Space};
use super::model::PROMPT_BYTES_MAX;

/// Fields of a form that are not files.
const FIELDS_MAX: usize = 64;

/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 256 * 1024;

/// The first bytes of a file, by which its kind is known.
const START_BYTES: usize = 1024;

/// How much may be uploaded and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadLimits {
    /// Bytes of one file.
    pub file_bytes_max: u64,
    /// Files of one job.
    pub files_max: usize,
    /// Bytes of all uploads and results on the disk.
    pub disk_bytes_max: u64,
}

impl Default for UploadLimits {
    /// 512 MiB, 500 files, 20 GiB.
    fn default() -> UploadLimits {
        UploadLimits { file_bytes_max: 512 << 20, files_max: 500, disk_bytes_max: 20 << 30 }
    }
}

/// Why an upload was refused, or failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum UploadError {
    /// The body is not a form.
    BadForm(String),
    /// A file is too large.
    FileTooLarge {
        /// The most bytes.
        max: u64,
    },
    /// There are too many files.
    TooManyFiles {
        /// The most files.
        max: usize,
    },
    /// A field of the form is too long, or there are too many.
    FieldTooLarge,
    /// The space that is set aside is used up.
    NoSpace {
        /// The most bytes.
        max: u64,
    },
    /// The connection ended.
    Broken(String),
    /// The disk is full, or cannot be written to.
    Disk(io::Error),
}

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UploadError::BadForm(reason) => f.write_str(reason),
            UploadError::FileTooLarge { max } => {
                write!(f, "the file is larger than {} MiB; raise --max-upload, or split the file", max >> 20)
            }
            UploadError::TooManyFiles { max } => write!(f, "a job has at most {max} files; make a second job"),
            UploadError::FieldTooLarge => f.write_str("a field of the form is too long"),
            UploadError::NoSpace { max } => write!(
                f,
                "uploads and results use the {} MiB that --max-disk allows; delete jobs, or raise it",
                max >> 20
            ),
            UploadError::Broken(reason) => write!(f, "the upload broke off: {reason}; send it again"),
            UploadError::Disk(error) => {
                write!(f, "cannot store the upload: {error}; free some space, then send it again")
            }
        }
    }
}

impl std::error::Error for UploadError {}

impl From<BadMultipart> for UploadError {
    fn from(error: BadMultipart) -> UploadError {
        UploadError::BadForm(error.to_string())
    }
}

/// A form that has been received.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) files: Vec<ReceivedFile>,
    pub(crate) fields: Vec<(String, String)>,
    /// The space of the files.
    pub(crate) reservation: Reservation,
}

impl Received {
    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// A file of a form, on the disk; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct ReceivedFile {
    /// What the sender calls it; never part of a path.
    pub(crate) name: String,
    /// Where it is now.
    path: PathBuf,
    pub(crate) bytes: u64,
    /// Its first bytes.
    pub(crate) start: Vec<u8>,
}

impl ReceivedFile {
    /// Moves it to `folder`, where it stays, and returns the name it has there.
    pub(crate) fn keep(mut self, folder: &Path) -> io::Result<String> {
        let stored = random_name();
        let target = folder.join(&stored);
        std::fs::rename(&self.path, &target)?;
        self.path = PathBuf::new();
        tidegate_files::sync_parent(&target)?;
        Ok(stored)
    }
}

impl Drop for ReceivedFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// How much one form may bring.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) limits: UploadLimits,
    /// Files that the job may still get.
    pub(crate) files: usize,
    /// Nothing yet.
    pub(crate) reservation: Reservation,
}

/// Receives a form into `folder`. Its space is reserved before it is read: as many bytes as it has, or those of one file if it
/// does not say, and more as they come.
///
/// # Cancel safety
/// Dropped, everything received is removed.
pub(crate) async fn receive(
    content_type: &str,
    body: Body,
    folder: &Path,
    room: Room,
) -> Result<Received, UploadError> {
    let mut multipart = Multipart::new(content_type)?;
    let Room { limits, files, mut reservation } = room;
    if !reservation.extend(body.size_hint().exact().unwrap_or(limits.file_bytes_max)) {
        return Err(UploadError::NoSpace { max: limits.disk_bytes_max });
    }
    let received = Received { files: Vec::new(), fields: Vec::new(), reservation };
    let mut form = Form { folder, limits, files_max: files, received, open: None, stored: 0 };
    let mut body = body;
    while let Some(chunk) = next_chunk(&mut body).await? {
        multipart.push(&chunk);
        while let Some(piece) = multipart.next()? {
            form.take(piece).await?;
        }
    }
    multipart.finish()?;
    form.received.reservation.shrink_to(form.stored);
    Ok(form.received)
}

async fn next_chunk(body: &mut Body) -> Result<Option<Bytes>, UploadError> {
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(UploadError::Broken(error.to_string())),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

struct Form<'a> {
    folder: &'a Path,
    limits: UploadLimits,
    files_max: usize,
    received: Received,
    open: Option<Open>,
    /// Bytes of all files so far.
    stored: u64,
}

enum Open {
    Field {
        name: String,
        value: Vec<u8>,
    },
    File {
        file: ReceivedFile,
        sink: Sink,
    },
    /// A file field that was left empty.
    Nothing,
}

impl Form<'_> {
    async fn take(&mut self, piece: Piece) -> Result<(), UploadError> {
        match piece {
            Piece::Begin(head) => self.begin(head),
            Piece::Data(data) => self.data(data).await,
            Piece::End => self.end().await,
        }
    }

    fn begin(&mut self, head: Head) -> Result<(), UploadError> {
        self.open = Some(match head.file_name {
            Some(name) if name.is_empty() => Open::Nothing,
            Some(name) => {
                if self.received.files.len() >= self.files_max {
                    return Err(UploadError::TooManyFiles { max: self.limits.files_max });
                }
                let path = self.folder.join(random_name());
                let sink = Sink::new(&path).map_err(UploadError::Disk)?;
                Open::File { file: ReceivedFile { name, path, bytes: 0, start: Vec::new() }, sink }
            }
            None if self.received.fields.len() >= FIELDS_MAX => return Err(UploadError::FieldTooLarge),
            None => Open::Field { name: head.name, value: Vec::new() },
        });
        Ok(())
    }

    async fn data(&mut self, data: Vec<u8>) -> Result<(), UploadError> {
        match &mut self.open {
            Some(Open::Field { value, .. }) => {
                if value.len() + data.len() > PROMPT_BYTES_MAX {
                    return Err(UploadError::FieldTooLarge);
                }
                value.extend(data);
            }
            Some(Open::File { file, sink }) => {
                let len = data.len() as u64;
                if file.bytes + len > self.limits.file_bytes_max {
                    return Err(UploadError::FileTooLarge { max: self.limits.file_bytes_max });
                }
                let missing = (self.stored + len).saturating_sub(self.received.reservation.bytes());
                if missing > 0 && !self.received.reservation.extend(missing) {
                    return Err(UploadError::NoSpace { max: self.limits.disk_bytes_max });
                }
                (file.bytes, self.stored) = (file.bytes + len, self.stored + len);
                let missing = START_BYTES.saturating_sub(file.start.len()).min(data.len());
                file.start.extend(&data[..missing]);
                sink.write(data).await.map_err(UploadError::Disk)?;
            }
            Some(Open::Nothing) | None => {}
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<(), UploadError> {
        match self.open.take() {
            Some(Open::Field { name, value }) => {
                let value =
                    String::from_utf8(value).map_err(|_| UploadError::BadForm("a field is not UTF-8".into()))?;
                self.received.fields.push((name, value));
            }
            Some(Open::File { file, sink }) => {
                sink.finish().await.map_err(UploadError::Disk)?;
                self.received.files.push(file);
            }
            Some(Open::Nothing) | None => {}
        }
        Ok(())
    }
}

/// A file that is being written, in a thread.
struct Sink {
    /// `None` while a thread has it, and after an error.
    file: Option<File>,
    gathered: Vec<u8>,
}

impl Sink {
    fn new(path: &Path) -> io::Result<Sink> {
        Ok(Sink { file: Some(tidegate_files::create_new(path)?), gathered: Vec::new() })
    }

    async fn write(&mut self, data: Vec<u8>) -> io::Result<()> {
        if self.gathered.is_empty() {
            self.gathered = data;
        } else {
            self.gathered.extend(data);
        }
        if self.gathered.len() >= WRITE_BYTES { self.flush(false).await } else { Ok(()) }
    }

    async fn finish(mut self) -> io::Result<()> {
        self.flush(true).await
    }

    async fn flush(&mut self, sync: bool) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.gathered);
        let Some(mut file) = self.file.take() else { return Err(io::Error::other("an earlier write failed")) };
        let written = to_thread(move || {
            file.write_all(&bytes)?;
            if sync {
                file.sync_all()?;
            }
            Ok::<File, io::Error>(file)
        });
        self.file = Some(written.await.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))?);
        Ok(())
    }
}

/// 128 random bits, in hexadecimal.
pub(crate) fn random_name() -> String {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn form(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (name, data) in files {
            body.extend(
                format!("--b\r\nContent-Disposition: form-data; name=\"files\"; filename=\"{name}\"\r\n\r\n").bytes(),
            );
            body.extend(*data);
            body.extend(b"\r\n");
        }
        body.extend(b"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nany\r\n--b--\r\n");
        body
    }

    fn room(files: usize, bytes: u64) -> Room {
        let limits = UploadLimits { file_bytes_max: 100, files_max: files, disk_bytes_max: bytes };
        Room { limits, files, reservation: Measuring::begin(&Rc::default()).ended(0, bytes) }
    }

    fn receive_in(folder: &Path, body: Vec<u8>, room: Room) -> Result<Received, UploadError> {
        receive_body_in(folder, body.into(), room)
    }

    fn receive_body_in(folder: &Path, body: Body, room: Room) -> Result<Received, UploadError> {
        let folder = folder.to_owned();
        tidegate_loop::run(async move { receive("multipart/form-data; boundary=b", body, &folder, room).await })
            .unwrap()
    }

    #[test]
    fn a_form_is_received_and_what_is_not_kept_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let kept = tempfile::tempdir().unwrap();
        let body = form(&[("../../a.pdf", b"%PDF-1"), ("", b""), ("b.pdf", b"x")]);
        let mut received = receive_in(folder.path(), body, room(2, 1_000)).unwrap();
        assert_eq!(received.field("model"), Some("any"));
        let names: Vec<&str> = received.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["../../a.pdf", "b.pdf"]);
        let stored = received.files.remove(0).keep(kept.path()).unwrap();
        assert_eq!(std::fs::read(kept.path().join(stored)).unwrap(), b"%PDF-1");
        drop(received);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    /// A body of one piece, of unknown length.
    struct Undeclared(Option<Bytes>);

    impl http_body::Body for Undeclared {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<io::Result<http_body::Frame<Bytes>>>> {
            std::task::Poll::Ready(self.0.take().map(|data| Ok(http_body::Frame::data(data))))
        }
    }

    #[test]
    fn each_limit_is_kept_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let large = vec![b'x'; 101];
        let refused = |files: &[(&str, &[u8])], room| receive_in(folder.path(), form(files), room).unwrap_err();
        assert!(matches!(refused(&[("a", &large)], room(9, 999)), UploadError::FileTooLarge { max: 100 }));
        assert!(matches!(refused(&[("a", b"1"), ("b", b"2")], room(1, 999)), UploadError::TooManyFiles { max: 1 }));
        assert!(matches!(refused(&[("a", b"123"), ("b", b"45")], room(9, 4)), UploadError::NoSpace { max: 4 }));
        // A body that does not say how long it is reserves one file, and more as it comes.
        let two = form(&[("a", &large[..99]), ("b", &large[..99])]);
        let undeclared = |body: Vec<u8>| Body::new(Undeclared(Some(body.into())));
        let refused = receive_body_in(folder.path(), undeclared(two.clone()), room(9, 197)).unwrap_err();
        assert!(matches!(refused, UploadError::NoSpace { max: 197 }), "{refused}");
        let received = receive_body_in(folder.path(), undeclared(two), room(9, 198)).unwrap();
        assert_eq!(received.reservation.bytes(), 198);
        drop(received);
        let small = receive_body_in(folder.path(), undeclared(form(&[("a", b"1")])), room(9, 99)).unwrap_err();
        assert!(matches!(small, UploadError::NoSpace { max: 99 }), "{small}");
        let mut cut = form(&[("a", b"12")]);
        cut.truncate(cut.len() - 10);
        assert!(matches!(receive_in(folder.path(), cut, room(9, 999)), Err(UploadError::BadForm(_))));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
