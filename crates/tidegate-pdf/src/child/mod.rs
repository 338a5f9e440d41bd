//! The child: confines itself, reads the file that it was given, and answers until it is asked no more. It trusts its parent
//! and nothing else.

mod bounds;
mod confinement;
mod encode;
mod fonts;
mod open;
mod picture;
mod text;

use std::any::Any;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::thread;

use hayro::hayro_syntax::Pdf;

use self::bounds::MemoryPeak;
pub use self::confinement::{Confinement, Guard};
use self::fonts::Collection;
use crate::error::Fault;
use crate::files;
use crate::page::Warning;
use crate::wire::{self, PictureHead, Reply, Request};

/// Set in the environment of a child.
pub(crate) const MARK: &str = "TIDEGATE_PDF_CHILD";

/// What the recursion of the PDF library may use: deep enough for every sane file, and part of the limited memory.
const STACK_BYTES: usize = 32 << 20;

/// To be called first in `main`: if this process was started to read a document, does so and ends; otherwise returns.
///
/// ```
/// tidegate_pdf::child::main_if_asked();
/// // what the program does otherwise
/// ```
pub fn main_if_asked() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    // The main thread's stack is as large as the shell that started us happened to say.
    let reader = thread::Builder::new().name("pdf".to_owned()).stack_size(STACK_BYTES);
    let memory = MemoryPeak::open();
    // Before the thread is started: it inherits what holds this one.
    let served = confinement::enter().and_then(|landlock| Ok(reader.spawn(|| serve(landlock, memory))?.join()));
    process::exit(match served {
        Ok(Ok(Ok(()))) => 0,
        Ok(Ok(Err(error))) => {
            eprintln!("{error}");
            1
        }
        Ok(Err(_)) => 1,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    });
}

thread_local! {
    /// The last panic: where, and what it said.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn serve(landlock: Guard, memory: MemoryPeak) -> io::Result<()> {
    panic::set_hook(Box::new(|info| PANIC.set(Some(info.to_string()))));
    let mut parent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some((document, font)) = files::receive(&parent)? else { return Ok(()) };
    let Some((Request::Open { password, memory_bytes, cpu }, _)) = wire::read(&mut parent)? else {
        return Ok(());
    };
    bounds::set(memory_bytes, cpu)?;
    let confinement = Confinement { landlock, seccomp: confinement::seal() };
    let opened = panic::catch_unwind(|| open::open(&document, password.as_deref(), memory_bytes));
    let file = match opened {
        Ok(Ok(file)) => file,
        Ok(Err(refusal)) => return wire::write(&mut parent, &Reply::Refused(refusal), &[]),
        Err(payload) => return wire::write(&mut parent, &panicked(payload), &[]),
    };
    wire::write(&mut parent, &file.reply(confinement), &[])?;
    answer(&file.pdf, font, &memory, &mut parent)
}

fn answer(pdf: &Pdf, font: Option<File>, memory: &MemoryPeak, parent: &mut UnixStream) -> io::Result<()> {
    let mut texts = text::Texts::new();
    let mut pictures = picture::Pictures::new(Collection::new(font));
    while let Some((request, _)) = wire::read::<Request>(parent)? {
        let Request::Page { number, text, picture } = request else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "opened twice"));
        };
        let Some(page) = (number as usize).checked_sub(1).and_then(|index| pdf.pages().get(index)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no such page"));
        };
        let read = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut warnings: Vec<Warning> = Vec::new();
            let text = text.then(|| texts.read(page, &mut warnings));
            let picture = picture.map(|want| pictures.draw(page, want, &mut warnings)).transpose();
            (text, picture, warnings)
        }));
        match read {
            Ok((text, Ok(picture), warnings)) => {
                let (text, words) = text.unzip();
                let (picture, bytes) = picture.unzip();
                let (words, bytes) = (words.unwrap_or_default(), bytes.unwrap_or_default());
                let memory_bytes = memory.bytes();
                let reply = Reply::Page { text, picture, warnings, memory_bytes };
                wire::write(parent, &reply, &[words.as_bytes(), &bytes])?;
            }
            Ok((_, Err(fault), _)) => return wire::write(parent, &Reply::Fault(fault), &[]),
            // The library's caches may be in any state: a new child starts with new ones.
            Err(payload) => return wire::write(parent, &panicked(payload), &[]),
        }
    }
    Ok(())
}

/// The hook has seen more than the payload says.
fn panicked(_: Box<dyn Any + Send>) -> Reply {
    let message = PANIC.take().unwrap_or_default();
    Reply::Fault(Fault::Panicked { message: message.split_whitespace().collect::<Vec<_>>().join(" ") })
}

/// A picture that was drawn.
type Drawn = (PictureHead, Vec<u8>);
