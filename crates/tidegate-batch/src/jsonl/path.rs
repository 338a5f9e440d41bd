//! What may be the path of a request. Pure.

use crate::provider::Dialect;

/// Which paths of the server requests may go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paths {
    /// Those that their lines name, if they are plain and the provider understands such requests.
    #[default]
    Any,
    /// Those alone that the provider's own batches take. For lines whose author may not choose where requests go.
    Known,
}

/// The paths that a provider's own batches take. Gemini's lines name none.
pub(super) fn known(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::OpenAi => {
            &["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/moderations"]
        }
        Dialect::Anthropic => &["/v1/messages"],
        Dialect::Gemini => &[],
    }
}

/// The longest path, in bytes. Providers' paths have some dozens.
const LEN_MAX: usize = 2_048;

/// Checks that `url` is a path, perhaps with a query, that stays below the base URL and that no server, proxy or client can
/// read as another one; the reason if it is not.
///
/// It is appended to the base URL and sent with the key, so nothing is mended here: what is not plain is refused.
pub(super) fn check(url: &str) -> Result<(), &'static str> {
    if !url.starts_with('/') {
        return Err("it must be a path such as \"/v1/chat/completions\"");
    }
    if url.len() > LEN_MAX {
        return Err("it is longer than 2,048 bytes");
    }
    let fault = |byte: u8| match byte {
        b'#' => Some("a path has no fragment (#)"),
        b'\\' => Some("a path has no backslash"),
        b' ' => Some("a path has no spaces; write %20"),
        byte if byte.is_ascii_control() => Some("a path has no control characters"),
        byte if !byte.is_ascii() => Some("only ASCII may stand in a path; percent-encode the rest"),
        // RFC 3986: unreserved, sub-delims, and what else a path, a query and percent-encoding need.
        byte if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte) => None,
        _ => Some("it has a character that must be percent-encoded in a path"),
    };
    if let Some(reason) = url.bytes().find_map(fault) {
        return Err(reason);
    }
    let path = url.split('?').next().unwrap_or_default();
    check_escapes(url.as_bytes(), path.len())?;
    if path.contains("//") {
        return Err("it contains //, which can be read as the name of another host");
    }
    if path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err("it contains the path segment . or ..");
    }
    Ok(())
}

/// Each `%` begins an escape. None in the path, which ends at `path_len`, stands for what its segments are made of: a server that
/// decodes it would see another path.
fn check_escapes(url: &[u8], path_len: usize) -> Result<(), &'static str> {
    for (at, _) in url.iter().enumerate().filter(|(_, byte)| **byte == b'%') {
        let digit = |at: usize| char::from(*url.get(at)?).to_digit(16);
        let (Some(high), Some(low)) = (digit(at + 1), digit(at + 2)) else {
            return Err("two hexadecimal digits must follow each %");
        };
        match (high * 16 + low) as u8 {
            b'.' | b'/' | b'\\' if at < path_len => return Err("it contains an encoded dot, slash or backslash"),
            byte if byte.is_ascii_control() => return Err("it contains an encoded control character"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_providers_pass() {
        for url in [
            "/v1/chat/completions",
            "/v1/chat/completions/",
            "/chat/completions",
            "/v1/embeddings",
            "/v1/messages?beta=true",
            "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21&x=a/../b//c?d",
            "/v1beta/models/gemini-2.0-flash:generateContent",
            "/v1/projects/p/locations/us-central1/publishers/google/models/gemini@001:predict",
            "/v1/a%20b/%C3%A9",
            "/v1/a..b/...",
            "/v1/x?a=%2F..%2E%5C",
            "/",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn what_leads_elsewhere_or_is_no_path_is_refused() {
        for (url, reason) in [
            ("", "must be a path"),
            ("v1/x", "must be a path"),
            ("http://evil.example/v1", "must be a path"),
            ("@evil.example/v1", "must be a path"),
            (":80@evil.example/v1", "must be a path"),
            ("?x", "must be a path"),
            (" /v1/x", "must be a path"),
            ("\\\\evil.example", "must be a path"),
            ("//evil.example/v1", "another host"),
            ("/v1//x", "another host"),
            ("/v1///", "another host"),
            ("/\\evil.example", "backslash"),
            ("/v1\\..\\x", "backslash"),
            ("/v1/../../admin", "segment . or .."),
            ("/v1/..", "segment . or .."),
            ("/./x", "segment . or .."),
            ("/..?x", "segment . or .."),
            ("/v1/%2e%2E/x", "encoded dot"),
            ("/v1/.%2e/x", "encoded dot"),
            ("/v1%2fx", "encoded dot, slash"),
            ("/v1%5Cx", "encoded dot, slash"),
            ("/v1/x%00", "encoded control"),
            ("/v1/x%0d%0aHost:%20evil", "encoded control"),
            ("/v1/x%7f", "encoded control"),
            ("/v1/x%", "hexadecimal"),
            ("/v1/x%2", "hexadecimal"),
            ("/v1/x%zz", "hexadecimal"),
            ("/v1/x%\u{e9}", "only ASCII"),
            ("/v1/a b", "no spaces"),
            ("/v1/x ", "no spaces"),
            ("/v1/x\r\nx-key: 1", "control characters"),
            ("/v1/x\t", "control characters"),
            ("/v1/x\0", "control characters"),
            ("/v1/x\u{7f}", "control characters"),
            ("/v1/x#part", "fragment"),
            ("/v1/x?a#part", "fragment"),
            ("/v1/\u{202e}x", "only ASCII"),
            ("/v1/\u{e9}", "only ASCII"),
            ("/v1/<x>", "percent-encoded"),
            ("/v1/{x}", "percent-encoded"),
            ("/v1/x|y", "percent-encoded"),
            ("/v1/x\"", "percent-encoded"),
            ("/v1/[x]", "percent-encoded"),
        ] {
            let error = check(url).unwrap_err();
            assert!(error.contains(reason), "{url:?}: {error}");
        }
        assert_eq!(check(&format!("/{}", "x".repeat(LEN_MAX - 1))), Ok(()));
        assert!(check(&format!("/{}", "x".repeat(LEN_MAX))).unwrap_err().contains("longer"));
    }

    /// Whatever passes is a URL of the base's host, whose path is as it was written.
    #[test]
    fn what_passes_is_a_path_of_the_same_host() {
        let parts = [
            "/",
            "v1",
            ".",
            "..",
            "a",
            "%",
            "2e",
            "%41",
            "?",
            "#",
            "@",
            ":",
            "\\",
            " ",
            "é",
            "evil.example",
            "//",
            "x=y",
        ];
        let mut passed = 0;
        for seed in tidegate_seeds::seeds(20_000) {
            let mut random = fastrand::Rng::with_seed(seed);
            let tail: String = (0..random.usize(1..6)).map(|_| parts[random.usize(..parts.len())]).collect();
            let url = format!("/{tail}");
            if check(&url).is_err() {
                continue;
            }
            passed += 1;
            for base in ["http://good.example", "https://good.example:8443/v1"] {
                let whole: http::Uri =
                    format!("{base}{url}").parse().unwrap_or_else(|error| panic!("{url:?}: {error}"));
                assert_eq!(whole.host(), Some("good.example"), "{url:?}");
                let below = base.strip_suffix("/v1").map_or("", |_| "/v1");
                let sent = whole.path_and_query().unwrap().as_str();
                assert_eq!(sent, format!("{below}{url}"), "{url:?}");
            }
        }
        assert!(passed > 100, "{passed}");
    }
}
