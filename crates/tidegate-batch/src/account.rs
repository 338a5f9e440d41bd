//! Whose limits a run uses up: a provider, the address of its server, and a key.

use std::fmt::Write as _;

use http::Uri;
use sha2::{Digest, Sha256};

use crate::base_url::BaseUrl;
use crate::key::ApiKey;
use crate::provider::Dialect;

/// Counts up when names are made differently.
const VERSION: &str = "tidegate/account/1";

/// Bytes of the digest in a name. They tell accounts apart, and a key cannot be found from them.
const DIGEST_BYTES: usize = 16;

/// Returns a name for an account, such as `openai-5f2c…`: the same for the same provider, address and key. Keys are providers'
/// long random texts, so the name does not give them away; without a key, the user in the address takes its place.
///
/// ```
/// use tidegate_batch::{ApiKey, BaseUrl, Dialect, account_name};
///
/// let base = BaseUrl::parse("https://api.openai.com/v1").unwrap();
/// let key = ApiKey::new("sk-secret", "a test").unwrap();
/// let name = account_name(Dialect::OpenAi, &base, Some(&key));
/// assert!(name.starts_with("openai-") && !name.contains("secret"));
/// assert_ne!(name, account_name(Dialect::OpenAi, &base, None));
/// ```
#[must_use]
pub fn account_name(dialect: Dialect, base: &BaseUrl, key: Option<&ApiKey>) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        // With its length: no two lists of parts are the same bytes.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    add(VERSION);
    add(dialect.name());
    add(&normalized(base.as_str()));
    match key {
        Some(key) => add(key.secret().expose()),
        None => base.secrets().for_each(|secret| add(secret.expose())),
    }
    let mut name = format!("{}-", dialect.name());
    for byte in &hash.finalize()[..DIGEST_BYTES] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// The scheme and the host in lower case, without the scheme's usual port.
fn normalized(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else { return url.to_owned() };
    let (scheme, host) = (uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
    let port = match (scheme, uri.port_u16()) {
        ("http", Some(80)) | ("https", Some(443)) | (_, None) => String::new(),
        (_, Some(port)) => format!(":{port}"),
    };
    let path = uri.path_and_query().map_or("", |path| path.as_str()).trim_end_matches('/');
    format!("{}://{}{port}{path}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(dialect: Dialect, url: &str, key: Option<&str>) -> String {
        let key = key.map(|key| ApiKey::new(key, "a test").unwrap());
        account_name(dialect, &BaseUrl::parse(url).unwrap(), key.as_ref())
    }

    #[test]
    fn an_account_is_a_provider_an_address_and_a_key() {
        let url = "https://api.openai.com/v1";
        let one = name(Dialect::OpenAi, url, Some("sk-1"));
        for same in ["https://API.OpenAI.com/v1", "https://api.openai.com:443/v1/"] {
            assert_eq!(name(Dialect::OpenAi, same, Some("sk-1")), one, "{same}");
        }
        let others = [
            name(Dialect::OpenAi, url, Some("sk-2")),
            name(Dialect::OpenAi, url, None),
            name(Dialect::Anthropic, url, Some("sk-1")),
            name(Dialect::OpenAi, "https://api.openai.com/v2", Some("sk-1")),
            name(Dialect::OpenAi, "https://api.openai.com:8443/v1", Some("sk-1")),
            name(Dialect::OpenAi, "http://api.openai.com/v1", Some("sk-1")),
            name(Dialect::OpenAi, "https://api.openai.com", Some("sk-1")),
        ];
        let distinct: std::collections::HashSet<_> = others.iter().chain([&one]).collect();
        assert_eq!(distinct.len(), others.len() + 1, "{others:?}");
    }

    #[test]
    fn without_a_key_the_user_in_the_address_is_the_account() {
        let name = |url| name(Dialect::OpenAi, url, None);
        assert_eq!(name("http://joe:one@host/v1"), name("http://joe:one@HOST:80/v1"));
        assert_ne!(name("http://joe:one@host/v1"), name("http://ann:two@host/v1"));
        assert_ne!(name("http://joe:one@host/v1"), name("http://host/v1"));
    }
}
