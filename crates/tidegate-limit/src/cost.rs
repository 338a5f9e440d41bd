//! What an entry costs, in as many dimensions as there are limits for.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What a rate limit counts: requests, tokens, or whatever was named.
///
/// ```
/// use tidegate_limit::Dimension;
/// let images = Dimension::named("images");
/// assert_eq!(images, Dimension::named("images"));
/// assert_eq!(images.to_string(), "images");
/// assert_eq!(Dimension::named("requests"), Dimension::REQUESTS);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dimension(u16);

/// The names given out, process-wide: a dimension is its place here. A program has a handful.
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

impl Dimension {
    /// Requests; every cost has one unless it says otherwise.
    pub const REQUESTS: Dimension = Dimension(0);
    /// Tokens.
    pub const TOKENS: Dimension = Dimension(1);
    /// Tokens of prompts, where they are counted apart.
    pub const INPUT_TOKENS: Dimension = Dimension(2);
    /// Tokens of answers, where they are counted apart.
    pub const OUTPUT_TOKENS: Dimension = Dimension(3);

    const BUILT_IN: [&'static str; 4] = ["requests", "tokens", "input-tokens", "output-tokens"];

    /// The dimension of that name, the same one each time. Names are kept for good: use few.
    ///
    /// # Panics
    /// When 65,000 names are in use.
    ///
    /// ```
    /// # use tidegate_limit::Dimension;
    /// assert_ne!(Dimension::named("images"), Dimension::named("audio-seconds"));
    /// assert_eq!(Dimension::named("output-tokens"), Dimension::OUTPUT_TOKENS);
    /// ```
    #[must_use]
    pub fn named(name: &str) -> Dimension {
        if let Some(at) = Self::BUILT_IN.iter().position(|known| *known == name) {
            return Dimension(at as u16);
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            assert!(names.len() < 65_000, "65,000 dimensions are in use; a dimension's name must not vary by request");
            names.push(Box::leak(name.into()));
            names.len() - 1
        });
        Dimension((at + Self::BUILT_IN.len()) as u16)
    }

    /// Its name.
    ///
    /// ```
    /// # use tidegate_limit::Dimension;
    /// assert_eq!(Dimension::TOKENS.name(), "tokens");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        let at = usize::from(self.0);
        match Self::BUILT_IN.get(at) {
            Some(name) => name,
            None => NAMES.lock().unwrap_or_else(PoisonError::into_inner)[at - Self::BUILT_IN.len()],
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one entry costs. A limit looks at its own dimension; one in which the cost is zero lets it pass and counts
/// nothing.
///
/// ```
/// use tidegate_limit::{Cost, Dimension};
///
/// let cost = Cost::tokens(1_200).and(Dimension::named("images"), 2);
/// assert_eq!(cost.of(Dimension::REQUESTS), 1);
/// assert_eq!(cost.of(Dimension::TOKENS), 1_200);
/// assert_eq!(cost.of(Dimension::named("images")), 2);
/// assert_eq!(cost.of(Dimension::named("audio-seconds")), 0);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Cost {
    requests: u64,
    tokens: u64,
    /// No dimension twice; allocated only by who needs it.
    named: Option<Box<[(Dimension, u64)]>>,
}

impl Cost {
    /// One request.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Dimension};
    /// assert_eq!(Cost::request().of(Dimension::TOKENS), 0);
    /// ```
    #[must_use]
    #[inline]
    pub const fn request() -> Cost {
        Cost { requests: 1, tokens: 0, named: None }
    }

    /// One request of so many tokens.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Dimension};
    /// assert_eq!(Cost::tokens(7).of(Dimension::REQUESTS), 1);
    /// ```
    #[must_use]
    #[inline]
    pub const fn tokens(tokens: u64) -> Cost {
        Cost { requests: 1, tokens, named: None }
    }

    /// Nothing: takes a slot, passes every rate limit.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Dimension};
    /// assert_eq!(Cost::nothing().of(Dimension::REQUESTS), 0);
    /// ```
    #[must_use]
    #[inline]
    pub const fn nothing() -> Cost {
        Cost { requests: 0, tokens: 0, named: None }
    }

    /// The same, with `amount` in one dimension, whatever it was there.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Dimension};
    /// let two = Cost::request().and(Dimension::REQUESTS, 2);
    /// assert_eq!(two.of(Dimension::REQUESTS), 2);
    /// ```
    #[must_use]
    pub fn and(mut self, dimension: Dimension, amount: u64) -> Cost {
        match dimension {
            Dimension::REQUESTS => self.requests = amount,
            Dimension::TOKENS => self.tokens = amount,
            _ => {
                let mut named = self.named.take().map_or_else(Vec::new, Vec::from);
                named.retain(|(known, _)| *known != dimension);
                named.push((dimension, amount));
                self.named = Some(named.into());
            }
        }
        self
    }

    /// How much of one dimension.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Dimension};
    /// assert_eq!(Cost::tokens(7).of(Dimension::TOKENS), 7);
    /// ```
    #[must_use]
    #[inline]
    pub fn of(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::REQUESTS => self.requests,
            Dimension::TOKENS => self.tokens,
            _ => self.of_named(dimension),
        }
    }

    #[cold]
    fn of_named(&self, dimension: Dimension) -> u64 {
        let named = self.named.as_deref().unwrap_or_default();
        named.iter().find(|(known, _)| *known == dimension).map_or(0, |(_, amount)| *amount)
    }
}

/// One request.
impl Default for Cost {
    fn default() -> Cost {
        Cost::request()
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        map.entry(&Dimension::REQUESTS, &self.requests).entry(&Dimension::TOKENS, &self.tokens);
        map.entries(self.named.iter().flat_map(|named| named.iter().map(|(name, amount)| (name, amount)))).finish()
    }
}
