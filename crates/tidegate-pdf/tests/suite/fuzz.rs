//! Samples with random damage: whatever comes of it has a name, and nothing leaves the child.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use fastrand::Rng;
use flate2::read::ZlibDecoder;
use tidegate_pdf::{Fault, Limits, OpenError, PageError, Want};

use crate::support::{file, reader, run, sample};

#[test]
fn no_damage_is_without_a_name() {
    let soak = std::env::var_os("TIDEGATE_SOAK").is_some();
    let rounds = if soak { 5_000 } else { 40 };
    let mut samples = vec![std::fs::read(sample("scan.pdf")).unwrap()];
    for name in ["tides.pdf", "chaoxi.pdf", "columns.pdf", "marees.pdf"] {
        let bytes = std::fs::read(sample(name)).unwrap();
        let open = unpacked(&bytes);
        assert!(open.len() > bytes.len(), "{name} has nothing to unpack");
        samples.extend([bytes, open]);
    }
    let mut damaged = 0;
    let mut outcomes: BTreeMap<&'static str, u32> = BTreeMap::new();
    let seeds = tidegate_seeds::seeds(rounds);
    let is_replay = seeds.is_replay();
    for seed in seeds {
        let mut random = Rng::with_seed(seed);
        let sample = random.choice(&samples).unwrap();
        let mut bytes = sample.clone();
        for _ in 0..random.usize(1..=64) {
            damage(&mut bytes, &mut random);
        }
        damaged += u64::from(bytes != *sample);
        let (_directory, path) = file(&bytes);
        for outcome in run(read(path)) {
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    println!("{rounds} damaged files: {outcomes:?}");
    if is_replay {
        return;
    }
    assert!(outcomes.get("page read").is_some_and(|&read| read > 10), "{outcomes:?}");
    assert!(damaged > rounds / 2, "only {damaged} files were damaged");
}

/// What became of the file and its first pages.
async fn read(path: PathBuf) -> Vec<&'static str> {
    // Time enough for a machine that is busy elsewhere: what never ends is another test's.
    let limits =
        Limits { memory_bytes: 256 << 20, page_time: Duration::from_secs(20), document_time: Duration::from_secs(60) };
    let document = match reader().limits(limits).open(path).await {
        Ok(document) => document,
        Err(OpenError::NotPdf { .. }) => return vec!["not a PDF"],
        Err(OpenError::Empty { .. }) => return vec!["empty"],
        Err(OpenError::Encrypted { .. }) => return vec!["encrypted"],
        Err(OpenError::Broken { .. }) => return vec!["broken"],
        Err(OpenError::Failed { fault, .. }) if fault != Fault::Forbidden => return vec!["failed to open"],
        Err(error) => panic!("{error}"),
    };
    let mut outcomes = Vec::new();
    for number in 1..=document.page_count().min(3) {
        outcomes.push(match document.page(number, Want::text().and_picture(48)).await {
            Ok(page) => {
                assert!(page.text.is_some() && page.picture.is_some());
                "page read"
            }
            Err(PageError::Failed { fault, .. }) if fault != Fault::Forbidden => "page failed",
            Err(PageError::DocumentTime { .. }) => "time used up",
            Err(PageError::Reopen { source: OpenError::Failed { fault, .. }, .. }) if fault != Fault::Forbidden => {
                "failed to open again"
            }
            Err(error) => panic!("{error}"),
        });
    }
    outcomes
}

/// The same file with its streams decompressed, so that damage is done to what is in them and not only to the packing.
/// The table of objects is wrong afterwards, and has to be found again.
fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), bytes);
    while let Some(at) = rest.windows(8).position(|it| it == b">>\nstrea") {
        let (head, data) = (&rest[..at], &rest[at + 10..]);
        let end = data.windows(9).position(|it| it == b"endstream").unwrap_or(data.len());
        let dictionary = head.windows(5).rposition(|it| it == b" obj\n").map_or(0, |at| at + 5);
        let text = String::from_utf8_lossy(&head[dictionary..]);
        let mut content = Vec::new();
        // Pictures keep their prediction; only what is packed and nothing else is unpacked.
        if text.contains("/FlateDecode") && !text.contains("/Predictor") {
            // What cannot be unpacked stays as it is.
            let _ = ZlibDecoder::new(&data[..end]).read_to_end(&mut content);
        }
        out.extend_from_slice(&head[..dictionary]);
        if content.is_empty() {
            out.extend_from_slice(&head[dictionary..]);
            content = data[..end].to_vec();
        } else {
            out.extend_from_slice(text.replace("/Filter /FlateDecode", "").replace("/Length ", "/Packed ").as_bytes());
            out.extend_from_slice(format!("/Length {}\n", content.len()).as_bytes());
        }
        out.extend_from_slice(b">>\nstream\n");
        out.extend_from_slice(&content);
        rest = &data[end..];
    }
    out.extend_from_slice(rest);
    out
}

fn damage(bytes: &mut Vec<u8>, random: &mut Rng) {
    if bytes.len() < 1024 {
        return;
    }
    let at = random.usize(0..bytes.len() - 256);
    let length = random.usize(1..256);
    match random.u8(0..7) {
        0 => bytes[at] ^= 1 << random.u8(0..8),
        1 => bytes[at..at + length].iter_mut().for_each(|byte| *byte = random.u8(..)),
        2 => drop(bytes.drain(at..at + length)),
        3 => {
            let copy = bytes[at..at + length].to_vec();
            let to = random.usize(0..bytes.len());
            bytes.splice(to..to, copy);
        }
        4 if random.u8(0..8) == 0 => bytes.truncate(at),
        // Numbers are where lengths, offsets, sizes and counts are.
        _ => number(bytes, at, random),
    }
}

/// Replaces the next number by an unexpected one.
fn number(bytes: &mut Vec<u8>, at: usize, random: &mut Rng) {
    const NUMBERS: [&str; 8] =
        ["0", "-1", "1", "2147483647", "4294967296", "99999999999999999999", "1e308", "0.0000001"];
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) else { return };
    let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let other = random.choice(NUMBERS).unwrap_or("0");
    bytes.splice(start..start + digits, other.bytes());
}
