//! Style sheet, scripts and the mark, embedded. Their address holds a digest of all of them, so browsers may keep them for
//! ever; each is compressed once.

use std::io::Write as _;
use std::sync::OnceLock;

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::answer::Failure;

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Every asset: name, media type, content.
const FILES: &[(&str, &str, &str)] = &[
    ("style.css", CSS, include_str!("../assets/style.css")),
    ("app.js", JS, include_str!("../assets/app.js")),
    ("jobs.js", JS, include_str!("../assets/jobs.js")),
    ("live.js", JS, include_str!("../assets/live.js")),
    ("timeline.css", CSS, tidegate_loop::trace::TIMELINE_STYLE),
    ("timeline.js", JS, tidegate_loop::trace::TIMELINE_SCRIPT),
    ("mark.svg", SVG, include_str!("../assets/mark.svg")),
];

struct Asset {
    name: &'static str,
    media_type: &'static str,
    plain: Bytes,
    gzip: Bytes,
}

struct Assets {
    digest: String,
    files: Vec<Asset>,
}

fn all() -> &'static Assets {
    static ASSETS: OnceLock<Assets> = OnceLock::new();
    ASSETS.get_or_init(|| {
        let mut digest = Sha256::new();
        let files = FILES.iter().map(|&(name, media_type, text)| {
            digest.update(name);
            digest.update(text);
            Asset { name, media_type, plain: Bytes::from_static(text.as_bytes()), gzip: gzip(text.as_bytes()) }
        });
        let files = files.collect();
        let digest = digest.finalize()[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        Assets { digest, files }
    })
}

/// The address of an asset.
///
/// # Panics
/// In debug builds, when there is none of this name.
#[must_use]
pub fn path(name: &str) -> String {
    debug_assert!(FILES.iter().any(|file| file.0 == name), "there is no asset {name}");
    format!("/assets/{}/{name}", all().digest)
}

/// Compresses `bytes`.
pub(crate) fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 3), Compression::new(6));
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    Bytes::from(written.expect("memory can be written to"))
}

/// Whether the browser takes gzip.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let quality = || parts.clone().find_map(|part| part.strip_prefix("q="));
        let refused = quality().and_then(|quality| quality.parse::<f32>().ok()) == Some(0.0);
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip")) && !refused
    })
}

/// Answers a request for an asset.
pub(crate) fn answer(digest: &str, name: &str, headers: &HeaderMap) -> Result<Response<Body>, Failure> {
    let assets = all();
    let asset = assets.files.iter().find(|asset| asset.name == name);
    let asset = asset.ok_or_else(|| Failure::not_found("There is no such asset."))?;
    let tag = format!("\"{}\"", assets.digest);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known =
        known.is_some_and(|known| known.split(',').any(|known| known.trim().trim_start_matches("W/") == tag));
    let zipped = accepts_gzip(headers);
    let body = match (is_known, zipped) {
        (true, _) => Bytes::new(),
        (false, true) => asset.gzip.clone(),
        (false, false) => asset.plain.clone(),
    };
    let mut response = Response::new(Body::from(body));
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let out = response.headers_mut();
    // An address of another version is answered with this one, which must not be kept under it.
    let cache = if digest == assets.digest { "public, max-age=31536000, immutable" } else { "no-cache" };
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.media_type));
    out.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        out.insert(header::ETAG, tag);
    }
    if zipped && !is_known {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_assets_together_fit_the_budget_of_a_page() {
        let bytes: usize = all().files.iter().map(|asset| asset.gzip.len()).sum();
        assert!(bytes <= 60 << 10, "{bytes} bytes compressed");
    }

    #[test]
    fn nothing_is_compressed_for_who_refuses_it() {
        let accepts = |value: &'static str| {
            accepts_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]))
        };
        assert!(accepts("deflate, gzip;q=0.5, br") && accepts("GZIP"));
        assert!(!accepts("gzip;q=0, br") && !accepts("identity") && !accepts(""));
    }
}
