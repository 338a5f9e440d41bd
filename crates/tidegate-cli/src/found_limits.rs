//! Limits that were found, kept for the next run with the same provider, address and model: one small file in the user's data
//! directory. It only saves time, so nothing about it is an error: a file that is missing, unreadable or of another version is
//! taken for an empty one, and what is too old or makes no sense is left out.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tidegate_files::Draft;
use tidegate_limit::{Found, FoundWindow};

use crate::user_data;

const NAME: &str = "found-limits.json";
const VERSION: u32 = 1;

/// Limits change: after this time they are looked for again.
const STALE_AFTER: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Servers that are kept; the oldest go first.
const SERVERS_MAX: usize = 64;

/// Largest file that is read; tidegate writes smaller ones.
const BYTES_MAX: u64 = 1 << 20;

/// The lengths that a window can have.
const WINDOW_MS: std::ops::RangeInclusive<u64> = 10..=3_600_000;

/// Whose limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) provider: String,
    /// Without user and password.
    pub(crate) base_url: String,
    /// Empty if each request names its own.
    pub(crate) model: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    version: u32,
    servers: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    server: Server,
    /// Seconds since 1970.
    found_at: u64,
    in_flight: Option<u64>,
    window: Option<KeptWindow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptWindow {
    amount: u64,
    length_ms: u64,
    is_pace: bool,
}

impl Entry {
    fn new(server: &Server, found: &Found, now: u64) -> Entry {
        let window = found.window.map(|window| KeptWindow {
            amount: window.amount,
            // Rounded up: a window that is too short is refused.
            length_ms: u64::try_from(window.length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
            is_pace: window.is_pace,
        });
        Entry { server: server.clone(), found_at: now, in_flight: found.in_flight, window }
    }

    /// Returns what was found, unless it is too old or makes no sense.
    fn found(&self, now: u64) -> Option<Found> {
        // A clock that was set back makes an entry of the future: as good as an old one.
        let is_fresh = now.checked_sub(self.found_at).is_some_and(|age| age < STALE_AFTER.as_secs());
        let in_range = self.window.is_none_or(|window| window.amount > 0 && WINDOW_MS.contains(&window.length_ms));
        let is_any = self.in_flight.is_some_and(|cap| cap > 0) || self.in_flight.is_none() && self.window.is_some();
        let window = self.window.map(|KeptWindow { amount, length_ms, is_pace }| FoundWindow {
            amount,
            length: Duration::from_millis(length_ms),
            is_pace,
        });
        (is_fresh && in_range && is_any).then(|| Found { in_flight: self.in_flight, window, ..Found::default() })
    }
}

/// Returns what the last run found out about `server`, if that is worth something.
pub(crate) fn recall(server: &Server) -> Option<Found> {
    let kept = read(&user_data::file(NAME)?).ok()?;
    kept.servers.iter().find(|entry| entry.server == *server)?.found(now())
}

/// Keeps what was found for the next run.
pub(crate) fn keep(server: &Server, found: &Found) {
    // What was only remembered keeps its date, so that it is looked for again some day.
    if !found.is_any() || found.remembered {
        return;
    }
    let Some(path) = user_data::file(NAME) else { return };
    if let Err(error) = add(&path, Entry::new(server, found, now())) {
        tracing::debug!(%error, path = %path.display(), "limits that were found are not kept");
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn read(path: &Path) -> io::Result<Kept> {
    let mut text = String::new();
    fs::File::open(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
    let kept: Kept = serde_json::from_str(&text)?;
    match kept.version {
        VERSION => Ok(kept),
        other => Err(io::Error::other(format!("version {other}"))),
    }
}

/// Of two runs that end at the same instant, one may overwrite what the other has found: it is found again.
fn add(path: &Path, entry: Entry) -> io::Result<()> {
    let mut kept = read(path).unwrap_or_default();
    kept.version = VERSION;
    kept.servers.retain(|other| other.server != entry.server && other.found(entry.found_at).is_some());
    kept.servers.push(entry);
    kept.servers.sort_by_key(|entry| entry.found_at);
    let excess = kept.servers.len().saturating_sub(SERVERS_MAX);
    kept.servers.drain(..excess);
    let folder: PathBuf = path.parent().map(Into::into).unwrap_or_default();
    tidegate_files::create_directories(&folder)?;
    Draft::remove_stale(path);
    let mut draft = Draft::new(path)?;
    draft.file().write_all(&serde_json::to_vec_pretty(&kept)?)?;
    draft.commit().map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const DAY: u64 = 24 * 3_600;

    fn server(model: &str) -> Server {
        Server { provider: "openai".into(), base_url: "http://localhost:1/v1".into(), model: model.into() }
    }

    fn ten_per_second() -> Found {
        let window = FoundWindow { amount: 10, length: Duration::from_micros(1_020_300), is_pace: false };
        Found { in_flight: Some(20), window: Some(window), refused: 9, ..Found::default() }
    }

    fn recalled(path: &Path, model: &str, now: u64) -> Option<String> {
        let kept = read(path).ok()?;
        let entry = kept.servers.iter().find(|entry| entry.server == server(model))?;
        Some(entry.found(now)?.to_string())
    }

    #[test]
    fn what_was_found_is_kept_for_a_week_and_for_its_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tidegate").join(NAME);
        add(&path, Entry::new(&server("a"), &ten_per_second(), 100 * DAY)).unwrap();
        add(&path, Entry::new(&server("b"), &Found { in_flight: Some(5), ..Found::default() }, 101 * DAY)).unwrap();
        let found = "20 requests in flight, 10 requests per second";
        assert_eq!(recalled(&path, "a", 106 * DAY).as_deref(), Some(found));
        assert_eq!(recalled(&path, "b", 106 * DAY).as_deref(), Some("5 requests in flight"));
        assert_eq!(recalled(&path, "c", 106 * DAY), None, "another model");
        assert_eq!(recalled(&path, "a", 107 * DAY), None, "too old");
        assert_eq!(recalled(&path, "a", 99 * DAY), None, "of the future");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        add(&path, Entry::new(&server("b"), &ten_per_second(), 107 * DAY)).unwrap();
        assert_eq!(read(&path).unwrap().servers.len(), 1, "replaced, and the old one is gone");
    }

    #[test]
    fn files_that_make_no_sense_are_empty_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        for text in ["", "{", "[]", r#"{"version":9,"servers":[]}"#, "\u{0}"] {
            fs::write(&path, text).unwrap();
            assert!(read(&path).is_err(), "{text}");
            add(&path, Entry::new(&server("a"), &ten_per_second(), DAY)).unwrap();
            assert!(recalled(&path, "a", DAY).is_some(), "{text}");
        }
        let entry = |in_flight, window| Entry { server: server("a"), found_at: 0, in_flight, window };
        let window = |amount, length_ms| Some(KeptWindow { amount, length_ms, is_pace: false });
        for entry in [
            entry(None, None),
            entry(Some(0), None),
            entry(None, window(0, 1_000)),
            entry(None, window(1, 0)),
            entry(None, window(1, u64::MAX)),
        ] {
            assert_eq!(entry.found(1), None, "{entry:?}");
        }
    }

    #[test]
    fn only_so_many_servers_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        for number in 0..SERVERS_MAX as u64 + 3 {
            add(&path, Entry::new(&server(&number.to_string()), &ten_per_second(), DAY + number)).unwrap();
        }
        assert_eq!(read(&path).unwrap().servers.len(), SERVERS_MAX);
        assert_eq!(recalled(&path, "2", DAY + 100), None, "the oldest go first");
        assert!(recalled(&path, "3", DAY + 100).is_some());
    }
}
