//! The token of a server that others can reach: made or read once, compared in constant time, never shown again.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tidegate_secret::Secret;

/// Shorter tokens can be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// The token that opens a server, and the key of its sessions.
///
/// ```
/// let token = tidegate_web::Token::generate().unwrap();
/// assert!(!format!("{token:?}").contains(token.expose()));
/// ```
#[derive(Debug, Clone)]
pub struct Token {
    token: Secret,
    source: Source,
    /// What browsers hold after signing in: random, so a leaked cookie does not reveal the token, and expires with the process.
    session: Secret,
}

/// Where a token is from.
#[derive(Debug, Clone)]
enum Source {
    Generated,
    Given,
    File(PathBuf),
}

/// A token that cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum TokenError {
    /// Its file cannot be read.
    File(std::io::Error),
    /// It has less than 16 characters, or others than letters, digits, `-`, `_`, `.` and `~`.
    Weak,
    /// The system gave no random bytes.
    Random,
}

impl std::fmt::Display for TokenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TokenError::File(error) => write!(f, "cannot read the token's file: {error}"),
            TokenError::Weak => {
                write!(f, "a token needs at least {TOKEN_CHARS_MIN} characters, of letters, digits and - _ . ~")
            }
            TokenError::Random => f.write_str("the system gave no random bytes for a token"),
        }
    }
}

impl std::error::Error for TokenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TokenError::File(error) => Some(error),
            _ => None,
        }
    }
}

impl Token {
    /// A new random token of 256 bits.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn generate() -> Result<Token, TokenError> {
        Ok(Token { token: random()?, source: Source::Generated, session: random()? })
    }

    /// This token.
    ///
    /// # Errors
    /// When it could be guessed, or could not stand in a link.
    pub fn new(text: &str) -> Result<Token, TokenError> {
        Token::from_source(text, Source::Given)
    }

    fn from_source(text: &str, source: Source) -> Result<Token, TokenError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~');
        if text.len() < TOKEN_CHARS_MIN || !text.chars().all(fits) {
            return Err(TokenError::Weak);
        }
        Ok(Token { token: Secret::new(text), source, session: random()? })
    }

    /// The token in this file, without the white space around it.
    ///
    /// # Errors
    /// When the file cannot be read, or its token could be guessed.
    pub fn from_file(path: &Path) -> Result<Token, TokenError> {
        let text = fs::read_to_string(path).map_err(TokenError::File)?;
        Token::from_source(text.trim(), Source::File(path.to_owned()))
    }

    /// Returns the file that the token is from, if it is from one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.source {
            Source::File(path) => Some(path),
            Source::Generated | Source::Given => None,
        }
    }

    /// Returns the token for a link that is printed, if it was generated: it stands nowhere else.
    pub(crate) fn in_link(&self) -> Option<&str> {
        matches!(self.source, Source::Generated).then(|| self.expose())
    }

    /// Returns the token's text.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.token.expose()
    }

    pub(super) fn is(&self, given: &str) -> bool {
        same(self.token.expose(), given)
    }

    pub(super) fn is_session(&self, given: &str) -> bool {
        same(self.session.expose(), given)
    }

    /// Browsers share cookies among the ports of a host: each server has a cookie of its own.
    pub(super) fn cookie_name(port: u16) -> String {
        format!("tidegate-{port}")
    }

    pub(super) fn cookie(&self, port: u16) -> String {
        let name = Token::cookie_name(port);
        format!("{name}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000", self.session.expose())
    }
}

/// Compares digests, bit by bit to the end: the time it takes tells neither how much was right nor how long it is.
fn same(a: &str, b: &str) -> bool {
    let (a, b) = (Sha256::digest(a), Sha256::digest(b));
    std::hint::black_box(a.iter().zip(b.iter()).fold(0, |differences, (a, b)| differences | (a ^ b))) == 0
}

fn random() -> Result<Secret, TokenError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| TokenError::Random)?;
    Ok(Secret::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}
