//! The cost of an entry, in one or more dimensions.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What a rate limit counts: requests, tokens, or a named quantity.
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

/// The names of the process's dimensions: a dimension is an index here. A program has a handful.
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

impl Dimension {
    /// Requests; a cost has one unless stated otherwise.
    pub const REQUESTS: Dimension = Dimension(0);
    /// Tokens of prompts and answers together.
    pub const TOKENS: Dimension = Dimension(1);
    /// Tokens of prompts, for servers that limit them separately.
    pub const INPUT_TOKENS: Dimension = Dimension(2);
    /// Tokens of answers, for servers that limit them separately.
    pub const OUTPUT_TOKENS: Dimension = Dimension(3);

    const BUILT_IN: [&'static str; 4] = ["requests", "tokens", "input-tokens", "output-tokens"];

    /// Returns the dimension of that name, the same one each time. Names are never freed, so use few.
    ///
    /// # Panics
    /// If 65,000 names are in use.
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

    /// Returns the name.
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

/// The cost of one entry. A limit reads its own dimension; if the cost there is zero, the entry passes and counts nothing.
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
    /// Each dimension at most once. `None` without named dimensions, so that the usual cost needs no allocation.
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

    /// One request of `tokens` tokens.
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

    /// Nothing: the entry takes a slot and passes every rate limit.
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

    /// Sets the amount in one dimension.
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

    /// Returns the amount in one dimension.
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
