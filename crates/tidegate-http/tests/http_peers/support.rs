//! Processes of others, data that can be checked while it passes, and this process's memory.

use std::convert::Infallible;
use std::fs;
use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

pub(crate) const HUNDRED_MB: usize = 100_000_000;

/// What a transfer of [`HUNDRED_MB`] may add to the process's peak: buffers, and nothing that grows with the body.
const GROWTH_BYTES_MAX: usize = 24 << 20;

pub(crate) fn on_loop<F: Future + 'static>(test: F) -> F::Output {
    tidegate_loop::run(test).unwrap()
}

/// A directory of its own, gone with it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidegate-peers-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// An authority, and a certificate by it for 127.0.0.1 and localhost: ca.pem, cert.pem, key.pem.
    pub(crate) fn write_certificates(&self) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the tests' authority");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        fs::write(self.file("ca.pem"), authority.pem()).unwrap();
        fs::write(self.file("cert.pem"), certificate.pem()).unwrap();
        fs::write(self.file("key.pem"), key.serialize_pem()).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that ends with this.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn spawn(mut command: Command, package: &str) -> Process {
        let child = command.stdin(Stdio::null()).spawn();
        let name = command.get_program().to_string_lossy().into_owned();
        Process(
            child.unwrap_or_else(|error| panic!("{name} cannot be started ({error}); install the package {package}")),
        )
    }

    pub(crate) fn exited(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Ends it at once. One that has ended already cannot be killed, and need not be.
    pub(crate) fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a program while the loop goes on.
pub(crate) async fn output(program: &'static str, arguments: Vec<String>) -> Output {
    let run = move || {
        Command::new(program)
            .args(&arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("{program} cannot be started ({error}); install the package {program}"))
    };
    tidegate_loop::to_thread(run).await.unwrap()
}

/// A port that was free at the time of the call.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A block of noise that repeats. Its length is not a multiple of a buffer's, so lost or doubled bytes show.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| (0..1_000_003u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect())
}

/// The pieces of noise that make up the pattern from `at` on.
fn blocks(mut at: usize, mut length: usize) -> impl Iterator<Item = &'static [u8]> {
    std::iter::from_fn(move || {
        let start = at % noise().len();
        let piece = &noise()[start..(start + length).min(noise().len())];
        at += piece.len();
        length -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(at: usize, length: usize) -> Vec<u8> {
    blocks(at, length).collect::<Vec<_>>().concat()
}

/// Whether `piece` is what stands at `at` of the pattern.
pub(crate) fn matches(at: usize, mut piece: &[u8]) -> bool {
    blocks(at, piece.len()).all(|block| {
        let (head, tail) = piece.split_at(block.len());
        piece = tail;
        head == block
    })
}

/// The pattern from `at` to `end`, made while it is sent.
pub(crate) struct Made {
    pub(crate) at: usize,
    pub(crate) end: usize,
}

impl Stream for Made {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let length = (self.end - self.at).min(64 * 1024);
        let piece = pattern(self.at, length);
        self.at += length;
        Poll::Ready((length > 0).then(|| Ok(piece.into())))
    }
}

/// The process's peak since `Peak::start`, which needs the tests to run one at a time.
pub(crate) struct Peak {
    before: usize,
}

impl Peak {
    pub(crate) fn start() -> Peak {
        fs::write("/proc/self/clear_refs", "5").unwrap();
        Peak { before: Peak::now() }
    }

    fn now() -> usize {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    pub(crate) fn assert_bounded(&self, what: &str) {
        let growth = Peak::now() - self.before;
        println!("{what}: {HUNDRED_MB} bytes, memory grew by {} KiB", growth / 1024);
        assert!(growth < GROWTH_BYTES_MAX, "{what}: memory grew by {growth} bytes");
    }
}
