//! Durations and rates as people write them: `"100ms"`, `"1h30m"`, `"1000/s"`, `"3 per minute"`.
//!
//! Whole numbers only, so that nothing is rounded: what is printed here reads back as the same value, and a
//! value that does not fit is refused, not clipped.

use std::{fmt, time::Duration};

use crate::limit::Quota;

/// Nanoseconds in a unit of time, and its names, longest unit first. The first name is the one that is printed.
const UNITS: [(u64, &[&str]); 7] = [
    (86_400_000_000_000, &["d", "day", "days"]),
    (3_600_000_000_000, &["h", "hour", "hours"]),
    (60_000_000_000, &["m", "min", "minute", "minutes"]),
    (1_000_000_000, &["s", "sec", "second", "seconds"]),
    (1_000_000, &["ms", "millisecond", "milliseconds"]),
    // Both code points for the Greek letter are in use: the micro sign and the small mu.
    (1_000, &["us", "\u{b5}s", "\u{3bc}s", "microsecond", "microseconds"]),
    (1, &["ns", "nanosecond", "nanoseconds"]),
];

/// Reads a duration: whole numbers, each with its unit, from the longest unit to the shortest.
///
/// The units are `d`, `h`, `m` (or `min`), `s`, `ms`, `us` (or `µs`) and `ns`, and their English names.
///
/// ```
/// use std::time::Duration;
/// use ratemesh::config::parse_duration;
///
/// assert_eq!(parse_duration("1h30m")?, Duration::from_secs(5_400));
/// assert_eq!(parse_duration("100 ms")?, Duration::from_millis(100));
/// # Ok::<(), ratemesh::config::TextError>(())
/// ```
///
/// # Errors
/// Says what is wrong with a text that is no duration, or one that is longer than a [`Duration`] can be.
pub fn parse_duration(text: &str) -> Result<Duration, TextError> {
    duration(text).map_err(|reason| TextError { text: text.to_owned(), kind: Kind::Duration, reason })
}

/// Reads a quota: a whole number of units, then `/` or `per`, then a unit of time or a duration.
///
/// The quota is not checked against what a limit can keep; building the limit does that.
///
/// ```
/// use std::time::Duration;
/// use ratemesh::{Quota, config::parse_quota};
///
/// assert_eq!(parse_quota("1000/s")?, Quota::per_second(1_000));
/// assert_eq!(parse_quota("3 per minute")?, Quota::per_minute(3));
/// assert_eq!(parse_quota("100/10s")?, Quota::new(100, Duration::from_secs(10)));
/// # Ok::<(), ratemesh::config::TextError>(())
/// ```
///
/// # Errors
/// Says what is wrong with a text that is no rate, or one whose numbers do not fit.
pub fn parse_quota(text: &str) -> Result<Quota, TextError> {
    quota(text).map_err(|reason| TextError { text: text.to_owned(), kind: Kind::Quota, reason })
}

/// Writes a duration so that [`parse_duration`] reads the same one back: `1h30m`, `100ms`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_nanos();
    let mut text = String::new();
    for (nanos, names) in UNITS {
        let count = rest / u128::from(nanos);
        rest %= u128::from(nanos);
        if count > 0 {
            text.push_str(&format!("{count}{}", names[0]));
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Writes a quota so that [`parse_quota`] reads the same one back: `1000/s`, `100/10s`.
pub fn format_quota(quota: Quota) -> String {
    let period = format_duration(quota.period());
    let lone_unit = UNITS.iter().any(|(nanos, _)| quota.period().as_nanos() == u128::from(*nanos));
    format!("{}/{}", quota.units(), if lone_unit { &period[1..] } else { &period })
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty");
    }
    let mut total: u128 = 0;
    let mut shortest = u64::MAX;
    while !rest.is_empty() {
        let (count, after) = whole_number(rest)?;
        let (nanos, after) = unit(after.trim_start())?;
        if nanos >= shortest {
            return Err("units go from the longest to the shortest, each at most once");
        }
        // At most one term a unit, each below 2^111, so the sum cannot overflow.
        total += u128::from(count) * u128::from(nanos);
        shortest = nanos;
        rest = after.trim_start();
    }
    let seconds = u64::try_from(total / 1_000_000_000).map_err(|_| "it is too long")?;
    let nanos = (total % 1_000_000_000) as u32;
    Ok(Duration::new(seconds, nanos))
}

fn quota(text: &str) -> Result<Quota, &'static str> {
    let halves = text.split_once('/').or_else(|| text.split_once(" per "));
    let (units, period) = halves.ok_or("it has no '/' between units and time")?;
    let (units, rest) = whole_number(units.trim())?;
    if !rest.is_empty() {
        return Err("only a whole number can stand before the '/'");
    }
    let period = period.trim();
    if period.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(Quota::new(units, duration(period)?));
    }
    match unit(period)? {
        (nanos, "") => Ok(Quota::new(units, Duration::from_nanos(nanos))),
        _ => Err("only a unit of time or a duration can stand after the '/'"),
    }
}

/// Takes a whole number off the front; `_` may part its digits.
fn whole_number(text: &str) -> Result<(u64, &str), &'static str> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.is_empty() || digits.starts_with('_') || digits.ends_with('_') {
        return Err("a whole number is missing");
    }
    let number = digits.replace('_', "").parse().map_err(|_| "a number in it is too large")?;
    Ok((number, rest))
}

/// Takes the name of a unit of time off the front, and gives the unit's nanoseconds.
fn unit(text: &str) -> Result<(u64, &str), &'static str> {
    let end = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return Err(if rest.starts_with(['.', ',']) {
            "it has a fraction; use a smaller unit"
        } else {
            "a unit of time is missing"
        });
    }
    let known = UNITS.iter().find(|(_, names)| names.contains(&name));
    known.map(|(nanos, _)| (*nanos, rest)).ok_or("its unit is none of d, h, m, s, ms, us and ns")
}

/// Why a text is not the duration or the rate that it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    text: String,
    kind: Kind,
    reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Duration,
    Quota,
}

impl TextError {
    /// The text that could not be read.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, kind, reason } = self;
        match kind {
            Kind::Duration => {
                write!(f, "{text:?} is not a duration: {reason}; write it as \"100ms\", \"2s\" or \"1h30m\"")
            }
            Kind::Quota => {
                write!(
                    f,
                    "{text:?} is not a rate: {reason}; write it as \"1000/s\", \"5/min\" or \"100/10s\""
                )
            }
        }
    }
}

impl std::error::Error for TextError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let cases = [
            ("100ms", Duration::from_millis(100)),
            ("2s", Duration::from_secs(2)),
            (" 5 m ", Duration::from_secs(300)),
            ("5min", Duration::from_secs(300)),
            ("1h30m", Duration::from_secs(5_400)),
            ("1 hour 30 minutes", Duration::from_secs(5_400)),
            ("1d", Duration::from_secs(86_400)),
            ("250us", Duration::from_micros(250)),
            ("250\u{b5}s", Duration::from_micros(250)),
            ("250\u{3bc}s", Duration::from_micros(250)),
            ("1_000ms", Duration::from_secs(1)),
            ("0s", Duration::ZERO),
            ("18446744073709551615s", Duration::from_secs(u64::MAX)),
        ];
        for (text, duration) in cases {
            assert_eq!(parse_duration(text), Ok(duration), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        let cases = [
            ("", "empty"),
            ("5", "unit of time is missing"),
            ("s", "whole number is missing"),
            ("-5s", "whole number is missing"),
            ("1.5s", "fraction"),
            ("5 parsecs", "none of"),
            ("1m1h", "longest to the shortest"),
            ("1m1m", "longest to the shortest"),
            ("1_s", "whole number is missing"),
            ("18446744073709551616s", "too large"),
            ("18446744073709551615m", "too long"),
        ];
        for (text, reason) in cases {
            let error = parse_duration(text).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(error.text(), text);
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        let cases = [
            ("1000/s", Quota::per_second(1_000)),
            ("5/min", Quota::per_minute(5)),
            ("10_000 / day", Quota::per_day(10_000)),
            ("3 per minute", Quota::per_minute(3)),
            ("100/10s", Quota::new(100, Duration::from_secs(10))),
            ("7/1h30m", Quota::new(7, Duration::from_secs(5_400))),
        ];
        for (text, quota) in cases {
            assert_eq!(parse_quota(text), Ok(quota), "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_is_refused_with_the_reason() {
        let cases = [
            ("", "no '/'"),
            ("1000", "no '/'"),
            ("/s", "whole number is missing"),
            ("1.5/s", "before the '/'"),
            ("5/", "unit of time is missing"),
            ("5/fortnight", "none of"),
            ("5/s/s", "after the '/'"),
            ("99999999999999999999/s", "too large"),
        ];
        for (text, reason) in cases {
            let error = parse_quota(text).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_duration_reads_back(seconds: u64, nanos in 0_u32..1_000_000_000) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn a_printed_rate_reads_back(units: u64, seconds in 0_u64..100_000, nanos in 0_u32..1_000_000_000) {
            for period in [Duration::new(seconds, nanos), Duration::from_secs(seconds), Duration::from_secs(60)] {
                let quota = Quota::new(units, period);
                prop_assert_eq!(parse_quota(&format_quota(quota)), Ok(quota));
            }
        }

        #[test]
        fn garbage_is_refused_and_never_panics(text in "\\PC{0,40}") {
            let _ = parse_duration(&text);
            let _ = parse_quota(&text);
        }

        #[test]
        fn near_misses_never_panic(text in "[0-9_./ dhmsuµn]{0,24}") {
            if let Ok(duration) = parse_duration(&text) {
                prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
            }
            if let Ok(quota) = parse_quota(&text) {
                prop_assert_eq!(parse_quota(&format_quota(quota)), Ok(quota));
            }
        }
    }
}
