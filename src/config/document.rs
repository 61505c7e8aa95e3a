//! The TOML text of a configuration: its types, and where in it each key stands.
//!
//! Two passes over one parse. The first notes the place of every key, the second fills the form. An error that
//! names a key, whoever found it, is then given its line.
//!
//! The reader's own error text quotes the line it stopped at. That line may hold the secret, so here only its message
//! and place are used, and not even its message where it would quote a value of `[keys]`.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::error::{ConfigError, Position, Problem};

/// The table whose values are never quoted.
const SECRET_TABLE: &str = "keys";

/// A text with the places of its keys.
pub(crate) struct Document<'a> {
    text: &'a str,
    source_name: &'a str,
    places: Vec<Place>,
}

/// Where a key and its value stand, in bytes.
struct Place {
    /// As errors name it: `limit[2].burst`.
    key: String,
    key_span: Range<usize>,
    value_span: Range<usize>,
}

impl<'a> Document<'a> {
    /// Reads `text` into a form, and notes the places of its keys.
    pub(crate) fn read<F: DeserializeOwned>(
        text: &'a str,
        source_name: &'a str,
    ) -> Result<(Self, F), ConfigError> {
        let mut document = Self { text, source_name, places: Vec::new() };
        // Some editors begin a file with a byte order mark.
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let problem = ConfigError::new("", Problem::Syntax(error.message().to_owned()));
                return Err(
                    problem.in_source(source_name, error.span().map(|span| document.position(span.start)))
                );
            }
        };
        note_table("", table.get_ref(), &mut document.places);
        let form =
            F::deserialize(toml::Deserializer::from(table)).map_err(|error| document.explain(&error))?;
        Ok((document, form))
    }

    /// Gives an error the name of this text, and the place of the key that it is about or of the nearest table around it.
    pub(crate) fn locate(&self, error: ConfigError) -> ConfigError {
        let mut key = error.key();
        let position = loop {
            if let Some(place) = self.places.iter().find(|place| place.key == key) {
                break Some(self.position(place.key_span.start));
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = &key[..end],
                None => break None,
            }
        };
        error.in_source(self.source_name, position)
    }

    /// Puts the deserializer's error in our words.
    fn explain(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or_default();
        let place = self.places.iter().find(|place| place.key_span == span || place.value_span == span);
        let key = place.map_or("", |place| &place.key);
        let secret = place.is_none() || key.split('.').next() == Some(SECRET_TABLE);
        ConfigError::new(key, problem(error.message(), key, secret))
            .in_source(self.source_name, error.span().map(|span| self.position(span.start)))
    }

    fn position(&self, offset: usize) -> Position {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Position { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }
}

fn note_table(prefix: &str, table: &DeTable<'_>, places: &mut Vec<Place>) {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.get_ref().to_string()
        } else {
            format!("{prefix}.{}", name.get_ref())
        };
        note_value(key, name.span(), value, places);
    }
}

fn note_value(key: String, key_span: Range<usize>, value: &Spanned<DeValue<'_>>, places: &mut Vec<Place>) {
    match value.get_ref() {
        DeValue::Table(table) => note_table(&key, table, places),
        DeValue::Array(entries) => {
            for (index, entry) in entries.iter().enumerate() {
                note_value(format!("{key}[{index}]"), entry.span(), entry, places);
            }
        }
        _ => {}
    }
    places.push(Place { key, key_span, value_span: value.span() });
}

/// Reads serde's message, whose wording serde fixes: "unknown field `a`, expected one of `b`, `c`" and "invalid type:
/// integer `5`, expected a string".
fn problem(message: &str, key: &str, secret: bool) -> Problem {
    let (said, expected) = message.split_once(", expected ").unwrap_or((message, "something else"));
    if let Some(unknown) = said.strip_prefix("unknown field `") {
        let unknown = unknown.trim_end_matches('`');
        let known: Vec<_> = expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let nearest = nearest(unknown, known.iter().map(String::as_str)).map(str::to_owned);
        return Problem::Unknown { nearest, known };
    }
    let found = said.strip_prefix("invalid type: ").or_else(|| said.strip_prefix("invalid value: "));
    let wanted = match expected {
        "i64" => "a whole number".to_owned(),
        "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" if key.ends_with(".allow") || key.ends_with(".deny") => {
            "a list, such as [\"10.0.0.0/8\", \"key:internal-batch\"]".to_owned()
        }
        "a string" if !secret => text_of(key).to_owned(),
        "a sequence" => format!("tables, each under a header [[{key}]]"),
        other => other.to_owned(),
    };
    let found = found.filter(|_| !secret).map(|found| found.trim_end_matches(" as i128").replace('`', ""));
    Problem::Type { found, wanted }
}

/// What a key that takes text is given.
fn text_of(key: &str) -> &'static str {
    let last = key.rsplit('.').next().unwrap_or(key);
    match last.split('[').next().unwrap_or(last) {
        "rate" => "a rate, such as \"50/s\"",
        "period" | "ban" | "heartbeat" | "suspect_after" | "sync_timeout" | "repair_interval"
        | "min_interval" => "a duration, such as \"15m\"",
        _ => "a string",
    }
}

/// The name that `given` was probably meant to be, if one is near enough.
pub(crate) fn nearest<'n>(given: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // Garbage of any length is near to nothing; names are short.
    const MAX_BYTES: usize = 64;
    if given.len() > MAX_BYTES {
        return None;
    }
    let begun = |name: &str| given.len() >= 3 && name.starts_with(given);
    let near = names.map(|name| (if begun(name) { 1 } else { distance(given, name) }, name)).min()?;
    (near.0 <= 1 + given.len() / 4).then_some(near.1)
}

/// How many bytes must be put in, taken out or replaced to turn one name into the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let names = ["name", "burst", "max_keys", "on_partition"];
        let nearest = |given| nearest(given, names.into_iter());
        assert_eq!(nearest("brust"), Some("burst"));
        assert_eq!(nearest("maxkeys"), Some("max_keys"));
        assert_eq!(nearest("on_partitions"), Some("on_partition"));
        assert_eq!(nearest("max"), Some("max_keys"));
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(&"burst".repeat(100)), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
