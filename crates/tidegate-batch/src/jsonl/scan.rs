//! A request file read as a whole before a run: what its requests would cost, and what is wrong with which line, for each
//! provider.

use std::io;
use std::path::Path;

use serde_json::Value;

use super::body::estimate;
use super::input::{Faults, IdSet, Input, duplicate};
use super::line::{Format, IdHash};
use super::path::Paths;
use super::{BadLine, run};
use crate::plan::Tokens;
use crate::provider::Dialect;

/// The providers that a file is checked for.
const DIALECTS: [Dialect; 3] = [Dialect::OpenAi, Dialect::Gemini, Dialect::Anthropic];

/// How large a request file may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// Bytes of a line.
    pub line_bytes_max: usize,
    /// Requests in all.
    pub requests_max: usize,
}

/// What is in a request file.
///
/// ```
/// use tidegate_batch::Dialect;
/// use tidegate_batch::jsonl::{Scan, ScanLimits};
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("requests.jsonl");
/// std::fs::write(&path, "{\"key\":\"1\",\"request\":{}}\n{\"key\":\"1\",\"request\":{}}\n").unwrap();
/// let scan = Scan::read(&path, ScanLimits { line_bytes_max: 1 << 20, requests_max: 100 }).unwrap();
/// assert_eq!(scan.requests.len(), 1);
/// let faults = scan.faults(Dialect::Gemini);
/// assert_eq!(faults.listed()[0].to_string(), "line 2: the id \"1\" occurred before; ids must be unique in a file");
/// assert!(scan.faults(Dialect::OpenAi).listed()[0].reason.contains("Gemini's form"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The requests, in the order of their lines.
    pub requests: Vec<Scanned>,
    /// Lines in Gemini's form, which name no model.
    pub needs_model: bool,
    /// Faults for each of [`DIALECTS`].
    faults: [Faults; DIALECTS.len()],
}

/// A request in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Its line, from 1.
    pub line: u32,
    /// What it would cost; its answer counts as long as it may be.
    pub tokens: Tokens,
}

impl Scan {
    /// Reads a file. Blocking.
    ///
    /// # Errors
    /// When it cannot be read. What is wrong with its lines is in [`faults`](Self::faults).
    pub fn read(path: &Path, limits: ScanLimits) -> io::Result<Scan> {
        let mut lines = Input::File(path.to_owned()).open()?.limited(limits.line_bytes_max);
        let mut ids = IdSet::default();
        let mut scan = Scan::default();
        let mut last = 0;
        while let Some(next) = lines.next_request()? {
            let (line, request) = match next {
                Ok(request) => request,
                Err(fault) => {
                    last = fault.line;
                    scan.fault(&fault);
                    continue;
                }
            };
            last = line;
            if !ids.insert(IdHash::of(&request.id)) {
                scan.fault(&duplicate(line, &request.id));
                continue;
            }
            let Some(short) = u32::try_from(line).ok().filter(|_| scan.requests.len() < limits.requests_max) else {
                let reason = format!("a file has at most {} requests; split it", limits.requests_max);
                scan.fault(&BadLine { line, reason });
                break;
            };
            for (dialect, faults) in DIALECTS.into_iter().zip(&mut scan.faults) {
                if let Err(reason) = request.fits(dialect, Paths::Known) {
                    faults.add(BadLine { line, reason });
                }
            }
            scan.needs_model |= request.format == Format::Gemini;
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let (estimate, _) = estimate(Dialect::OpenAi, &request.url, &body);
            scan.requests.push(Scanned { line: short, tokens: run::tokens(estimate) });
        }
        if last == 0 {
            scan.fault(&BadLine { line: 1, reason: "the file has no requests".into() });
        }
        Ok(scan)
    }

    /// Adds what is wrong for every provider.
    fn fault(&mut self, fault: &BadLine) {
        self.faults.iter_mut().for_each(|faults| faults.add(fault.clone()));
    }

    /// Returns what is wrong with the lines if they are sent to this provider: also a request in another provider's form, and one
    /// for another path than its batches have.
    #[must_use]
    pub fn faults(&self, dialect: Dialect) -> &Faults {
        let at = DIALECTS.iter().position(|it| *it == dialect).unwrap_or_default();
        &self.faults[at]
    }

    /// Returns the faults for the provider that takes most of the lines, and that provider.
    #[must_use]
    pub fn best(&self) -> (Dialect, &Faults) {
        let best = DIALECTS.into_iter().zip(&self.faults).min_by_key(|(_, faults)| faults.count());
        best.expect("there are three providers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str, limits: ScanLimits) -> Scan {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("in.jsonl");
        std::fs::write(&path, text).unwrap();
        Scan::read(&path, limits).unwrap()
    }

    const LIMITS: ScanLimits = ScanLimits { line_bytes_max: 1_000, requests_max: 3 };

    fn line(id: &str, url: &str) -> String {
        format!("{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"{url}\",\"body\":{{\"max_tokens\":9}}}}\n")
    }

    #[test]
    fn requests_keep_their_lines_and_costs() {
        let text = [&line("a", "/v1/chat/completions"), "\n", &line("b", "/v1/embeddings")].concat();
        let scan = scan(&text, LIMITS);
        assert_eq!(scan.requests.iter().map(|it| (it.line, it.tokens.output)).collect::<Vec<_>>(), [(1, 9), (3, 0)]);
        assert!(scan.faults(Dialect::OpenAi).is_empty() && !scan.needs_model);
        assert_eq!(scan.faults(Dialect::Anthropic).count(), 2);
        assert_eq!(scan.best().0, Dialect::OpenAi);
    }

    #[test]
    fn a_path_that_is_not_the_providers_is_a_fault() {
        for url in [
            "/v1/files",
            "/v1/chat/completions/",
            "/v1/chat/completions?x=1",
            "/v1/../admin/v1/chat/completions",
            "//evil.example/v1/chat/completions",
            "/proxy/v1/chat/completions",
            "/v1/messages",
        ] {
            let scan = scan(&line("a", url), LIMITS);
            let faults = scan.faults(Dialect::OpenAi);
            assert_eq!((faults.count(), faults.listed()[0].line), (1, 1), "{url}");
            assert!(!scan.faults(Dialect::Gemini).is_empty(), "{url}");
        }
        assert!(scan(&line("a", "/v1/messages"), LIMITS).faults(Dialect::Anthropic).is_empty());
        assert!(scan("{\"key\":\"1\",\"request\":{}}", LIMITS).faults(Dialect::Gemini).is_empty());
    }

    #[test]
    fn too_long_a_line_and_too_many_requests_are_faults() {
        let long = line(&"x".repeat(1_000), "/v1/embeddings");
        let scan_long = scan(&[&*line("a", "/v1/embeddings"), &long].concat(), LIMITS);
        assert!(scan_long.faults(Dialect::OpenAi).listed()[0].to_string().starts_with("line 2: it is longer than"));
        let many: String = (0..9).map(|id| line(&id.to_string(), "/v1/embeddings")).collect();
        let scan_many = scan(&many, LIMITS);
        let faults = scan_many.faults(Dialect::OpenAi);
        assert_eq!((faults.count(), faults.listed()[0].line, scan_many.requests.len()), (1, 4, 3));
        assert_eq!(scan(" \n", LIMITS).faults(Dialect::OpenAi).count(), 1, "an empty file");
    }
}
