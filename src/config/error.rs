//! Why a configuration will not do, and where it says so.

use std::{fmt, io};

/// Why a configuration will not do: the file and line, the key, what it holds, and what would do.
///
/// Secrets and private keys never appear in it.
#[derive(Debug)]
pub struct ConfigError(Box<Fault>);

#[derive(Debug)]
struct Fault {
    source_name: Option<String>,
    position: Option<Position>,
    key: String,
    entry: Option<String>,
    problem: Problem,
}

/// A place in a text, counted from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// What is the matter with a key.
#[derive(Debug)]
pub(super) enum Problem {
    /// The file behind the configuration or one of its keys cannot be read.
    Unreadable { path: String, error: io::Error },
    /// The text is not TOML.
    Syntax(String),
    /// No such key is known in this table.
    Unknown { nearest: Option<String>, known: Vec<String> },
    /// The key must be there, and is not.
    Missing { wanted: String },
    /// The value has the wrong type; what was found is told unless it might be a secret.
    Type { found: Option<String>, wanted: String },
    /// The value will not do.
    Value { value: String, wanted: String },
    /// The value will not do, and is not told.
    Unquoted { wanted: String },
    /// The value will not do; the text, a clause, says why and what would.
    Refused(String),
}

impl ConfigError {
    pub(super) fn new(key: impl Into<String>, problem: Problem) -> Self {
        Self(Box::new(Fault { source_name: None, position: None, key: key.into(), entry: None, problem }))
    }

    pub(crate) fn missing(key: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self::new(key, Problem::Missing { wanted: wanted.into() })
    }

    pub(crate) fn value(key: impl Into<String>, value: impl fmt::Display, wanted: impl Into<String>) -> Self {
        Self::new(key, Problem::Value { value: value.to_string(), wanted: wanted.into() })
    }

    /// A value that might be a secret in the wrong place will not do.
    pub(super) fn unquoted(key: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self::new(key, Problem::Unquoted { wanted: wanted.into() })
    }

    pub(crate) fn refused(key: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::new(key, Problem::Refused(why.to_string()))
    }

    /// Says which of several `[[peer]]` or `[[limit]]` tables is meant, by its name.
    pub(super) fn of_entry(mut self, name: &str) -> Self {
        self.0.entry = Some(name.to_owned());
        self
    }

    pub(super) fn in_source(mut self, name: &str, position: Option<Position>) -> Self {
        self.0.source_name = Some(name.to_owned());
        self.0.position = position;
        self
    }

    /// The file, or what the caller named the text; `None` where the configuration was built by code.
    pub fn source_name(&self) -> Option<&str> {
        self.0.source_name.as_deref()
    }

    /// The line in the file, counted from 1, where there is one to point at.
    pub fn line(&self) -> Option<usize> {
        self.0.position.map(|position| position.line)
    }

    /// The key, such as `gossip.heartbeat` or `limit[2].burst` (the third `[[limit]]`); empty where the whole text
    /// is at fault.
    pub fn key(&self) -> &str {
        &self.0.key
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { source_name, position, key, entry, problem } = &*self.0;
        f.write_str(source_name.as_deref().unwrap_or("configuration"))?;
        if let Some(Position { line, column }) = position {
            write!(f, ":{line}:{column}")?;
        }
        f.write_str(": ")?;
        f.write_str(key)?;
        if let Some(entry) = entry {
            write!(f, " (of {entry:?})")?;
        }
        write!(f, "{problem}")
    }
}

impl fmt::Display for Problem {
    /// Continues a text that ends with the key, or with `: ` where there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => write!(f, " cannot be read from {path}: {error}"),
            Self::Syntax(message) => write!(f, "not TOML: {message}"),
            Self::Unknown { nearest, known } => {
                f.write_str(" is not a known key")?;
                if let Some(nearest) = nearest {
                    write!(f, "; did you mean {nearest}?")?;
                }
                write!(f, " Known here: {}", known.join(", "))
            }
            Self::Missing { wanted } => write!(f, " is missing; it takes {wanted}"),
            Self::Type { found: Some(found), wanted } => write!(f, " is {found}; it takes {wanted}"),
            Self::Type { found: None, wanted } => write!(f, " has the wrong type; it takes {wanted}"),
            Self::Value { value, wanted } => write!(f, " = {value} will not do; it takes {wanted}"),
            Self::Unquoted { wanted } => write!(f, " will not do; it takes {wanted}"),
            Self::Refused(why) => write!(f, ": {why}"),
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.problem {
            Problem::Unreadable { error, .. } => Some(error),
            _ => None,
        }
    }
}
