//! The look-up of headers that the parsers need.

/// A look-up of header values by lower-case name. Returns the first value; one that is not text counts as absent.
///
/// Implemented for lists of pairs and, with the feature `http`, for `http::HeaderMap`.
///
/// ```
/// use tidegate_limit::feedback::Headers;
///
/// let headers = [("Retry-After", "20"), ("x-request-id", "req_1")];
/// assert_eq!(headers.value("retry-after"), Some("20"));
/// assert_eq!(headers.value("retry-after-ms"), None);
/// ```
pub trait Headers {
    /// Returns the first value of `name`, which is in lower case. The match must ignore case.
    fn value(&self, name: &str) -> Option<&str>;
}

impl<N: AsRef<str>, V: AsRef<str>> Headers for [(N, V)] {
    fn value(&self, name: &str) -> Option<&str> {
        self.iter().find(|(key, _)| key.as_ref().eq_ignore_ascii_case(name)).map(|(_, value)| value.as_ref())
    }
}

impl<N: AsRef<str>, V: AsRef<str>, const LEN: usize> Headers for [(N, V); LEN] {
    fn value(&self, name: &str) -> Option<&str> {
        self.as_slice().value(name)
    }
}

impl<N: AsRef<str>, V: AsRef<str>> Headers for Vec<(N, V)> {
    fn value(&self, name: &str) -> Option<&str> {
        self.as_slice().value(name)
    }
}

#[cfg(feature = "http")]
impl Headers for http::HeaderMap {
    fn value(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_str().ok()
    }
}
