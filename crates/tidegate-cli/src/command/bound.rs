//! A hint after a run that was held back by its concurrency and not by the provider's limits: it names the option to raise.

/// A shorter run is not worth a hint.
const SECONDS_MIN: f64 = 5.0;

/// The share of the time from which on the concurrency is to blame.
const SHARE_MIN: f64 = 0.5;

/// What can be raised by stating more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    /// The most requests in flight: stated, or what this machine has room for. A run that derives fewer does so because more would
    /// bring nothing.
    pub(crate) in_flight: u64,
    /// The pages of a file are stated.
    pub(crate) pages_stated: bool,
}

/// How long a limit held a run back.
pub(crate) struct Wait<'a> {
    pub(crate) limit: &'a str,
    pub(crate) amount: u64,
    pub(crate) seconds: f64,
}

/// Returns the hint after a run of `seconds`.
pub(crate) fn hint<'a>(waits: impl IntoIterator<Item = Wait<'a>>, seconds: f64, caps: Caps) -> Option<String> {
    let mut has_rate = false;
    let mut longest: (f64, &str) = (0.0, "");
    for wait in waits {
        let option = match wait.limit {
            "global" if wait.amount >= caps.in_flight => "--global-concurrency",
            "pages of a file" if caps.pages_stated => "--page-concurrency",
            "pictures of a file" => "--picture-concurrency",
            "global" | "pages of a file" | "found" => continue,
            _ => {
                has_rate = true;
                continue;
            }
        };
        if wait.seconds > longest.0 {
            longest = (wait.seconds, option);
        }
    }
    let (share, option) = (longest.0 / seconds, longest.1);
    (has_rate && seconds >= SECONDS_MIN && share >= SHARE_MIN).then(|| {
        format!(
            "the concurrency held the run back for {:.0} % of the time, not the provider's limits: raise {option}",
            share * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hint after a run in which 40 requests and the pages of a file were stated.
    fn hint(waits: &[(&'static str, u64, f64)], seconds: f64) -> Option<String> {
        let waits = waits.iter().map(|&(limit, amount, seconds)| Wait { limit, amount, seconds });
        super::hint(waits, seconds, Caps { in_flight: 40, pages_stated: true })
    }

    #[test]
    fn a_run_bound_by_its_concurrency_names_the_option() {
        let bound = hint(&[("global", 40, 0.1), ("rpm", 9, 1.0), ("pages of a file", 0, 8.5)], 10.0).unwrap();
        assert!(bound.contains("85 %") && bound.ends_with("raise --page-concurrency"), "{bound}");
        let global = hint(&[("global", 40, 9.0), ("tpm", 9, 0.0)], 10.0).unwrap();
        assert!(global.ends_with("raise --global-concurrency"), "{global}");
    }

    #[test]
    fn a_run_bound_by_its_quota_or_without_one_has_no_hint() {
        assert_eq!(hint(&[("global", 40, 1.0), ("rpm", 9, 9.0)], 10.0), None);
        assert_eq!(hint(&[("global", 40, 9.0), ("found", 0, 0.0)], 10.0), None, "no limit is stated");
        assert_eq!(hint(&[("global", 40, 0.9), ("rpm", 9, 0.0)], 1.0), None, "short");
    }

    #[test]
    fn what_was_derived_is_not_to_be_raised() {
        assert_eq!(hint(&[("global", 30, 9.0), ("rpm", 9, 0.0)], 10.0), None, "more would bring nothing");
        let caps = Caps { in_flight: 40, pages_stated: false };
        let waits = [("pages of a file", 9.0), ("rpm", 0.0)];
        let waits = waits.map(|(limit, seconds)| Wait { limit, amount: 0, seconds });
        assert_eq!(super::hint(waits, 10.0, caps), None);
    }
}
