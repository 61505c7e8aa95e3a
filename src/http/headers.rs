//! Response header fields that tell clients where they stand.
//!
//! - `RateLimit-Policy` and `RateLimit` as lists of strings with parameters: draft-ietf-httpapi-ratelimit-headers-10,
//!   sections 3 and 4, in the syntax of RFC 9651.
//! - The same names as draft 7 had them, and the three fields of draft 6, for clients that still read those. Both
//!   show one limit only: the one that refused, or else the one with the least left.
//! - `X-RateLimit-*`, which no document defines; `Reset` is in seconds to come, or since the Unix epoch.
//! - `Retry-After` (RFC 9110, section 10.2.3), on refusals only.
//!
//! Each quota of a limit has a policy of its own. What counts requests in flight has no window, and nobody knows when it
//! has more: there is no `w` and no `t`, and the fields that must name a time to reset say 1 second while nothing is left.
//!
//! A family of fields is left out as a whole where the application has set one of them.

use std::{fmt::Write as _, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};

use super::base64;
use crate::{limit::Quota, time::WallTime};

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The unit of what is in flight, one of the draft's quota units (section 3.1.2).
const CONCURRENT_REQUESTS: &str = "concurrent-requests";

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Which edition of the IETF's rate limit fields to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Edition {
    /// `RateLimit-Policy: "api";q=100;w=60` and `RateLimit: "api";r=50;t=30`, with every limit.
    Draft10,
    /// `RateLimit-Policy: 100;w=60` and `RateLimit: limit=100, remaining=50, reset=30`.
    Draft7,
    /// `RateLimit-Policy: 100;w=60`, `RateLimit-Limit: 100`, `RateLimit-Remaining: 50` and `RateLimit-Reset: 30`.
    Draft6,
}

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyReset {
    /// Seconds from now.
    Seconds,
    /// Seconds since the Unix epoch, which a client whose clock is wrong gets wrong.
    Epoch,
}

/// Which header fields a layer writes. `Retry-After` on refusals unless told otherwise; the rest when asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "fields are written by the layer that they are given to"]
pub struct HeaderFields {
    retry_after: bool,
    edition: Option<Edition>,
    legacy: Option<LegacyReset>,
}

impl HeaderFields {
    /// Just `Retry-After`.
    pub const fn new() -> Self {
        Self { retry_after: true, edition: None, legacy: None }
    }

    /// Adds the IETF's fields, on all responses.
    pub const fn rate_limit(mut self, edition: Edition) -> Self {
        self.edition = Some(edition);
        self
    }

    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, on all responses but those that nobody knows a
    /// reset for: to a client that is denied, and under a limit on concurrency. Of several quotas it is the one of which the
    /// least is left; `X-RateLimit-Limit` is what that holds, its burst.
    pub const fn legacy(mut self, reset: LegacyReset) -> Self {
        self.legacy = Some(reset);
        self
    }

    /// Sets whether refusals carry `Retry-After`; they do unless set.
    pub const fn retry_after(mut self, write: bool) -> Self {
        self.retry_after = write;
        self
    }
}

impl Default for HeaderFields {
    fn default() -> Self {
        Self::new()
    }
}

/// What the fields of one quota are written from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub(super) name: &'a str,
    /// Which of its limit's quotas it is, from 0.
    pub(super) band: usize,
    pub(super) quota: Quota,
    /// What `remaining` counts down from.
    pub(super) capacity: u64,
    pub(super) remaining: u64,
    /// `None` where nobody knows: permits are out, or the client is denied.
    pub(super) reset_after: Option<Duration>,
    /// Whether this is the quota that refused.
    pub(super) refused: bool,
    pub(super) retry_after: Option<Duration>,
    pub(super) unit: Option<&'a str>,
    pub(super) partition_key: Option<&'a [u8]>,
}

impl HeaderFields {
    /// Writes the fields that are asked for and that the application has not written.
    ///
    /// The limits are in the order in which they are shown. `policy` is what [`policy`](Self::policy) gives for them,
    /// where that is known. `now` is called only where the time of day is shown.
    pub(super) fn write(
        &self,
        headers: &mut HeaderMap,
        limits: &[Shown<'_>],
        policy: Option<&HeaderValue>,
        now: impl FnOnce() -> WallTime,
    ) {
        let Some(tightest) = tightest(limits) else { return };
        if let (true, Some(wait)) = (self.retry_after, tightest.retry_after) {
            insert(headers, [(RETRY_AFTER, retry_after_seconds(wait).into())]);
        }
        if let Some(policy) = policy.cloned().or_else(|| self.policy(limits)) {
            self.write_edition(headers, limits, tightest, policy);
        }
        if let Some(reset) = self.legacy {
            let Some(seconds) = tightest.stated_reset() else { return };
            let reset = match reset {
                LegacyReset::Seconds => seconds,
                LegacyReset::Epoch => now().as_unix_nanos().div_ceil(NANOS).saturating_add(seconds),
            };
            let standing = [
                (X_LIMIT, tightest.capacity.into()),
                (X_REMAINING, tightest.remaining.into()),
                (X_RESET, reset.into()),
            ];
            insert(headers, standing);
        }
    }

    fn write_edition(
        &self,
        headers: &mut HeaderMap,
        limits: &[Shown<'_>],
        tightest: &Shown<'_>,
        policy: HeaderValue,
    ) {
        match (self.edition, tightest.stated_reset()) {
            (Some(Edition::Draft10), _) => {
                let standings = list(limits, |out, shown| shown.push_standing(out));
                insert(headers, [(POLICY, policy), (RATE_LIMIT, text(standings))]);
            }
            (Some(Edition::Draft7), Some(reset)) => {
                let mut standing = String::with_capacity(64);
                push_integer(&mut standing, "limit=", tightest.capacity);
                push_integer(&mut standing, ", remaining=", tightest.remaining);
                push_integer(&mut standing, ", reset=", reset);
                insert(headers, [(POLICY, policy), (RATE_LIMIT, text(standing))]);
            }
            (Some(Edition::Draft6), Some(reset)) => {
                let standing = [
                    (POLICY, policy),
                    (LIMIT, tightest.capacity.into()),
                    (REMAINING, tightest.remaining.into()),
                    (RESET, reset.into()),
                ];
                insert(headers, standing);
            }
            (Some(Edition::Draft7 | Edition::Draft6), None) => insert(headers, [(POLICY, policy)]),
            (None, _) => {}
        }
    }

    /// The value of `RateLimit-Policy` for these limits, if it is asked for. Only partition keys change in it from one
    /// request to the next.
    pub(super) fn policy(&self, limits: &[Shown<'_>]) -> Option<HeaderValue> {
        let policies = match self.edition? {
            Edition::Draft10 => list(limits, |out, shown| shown.push_policy(out)),
            Edition::Draft7 | Edition::Draft6 => list(limits, |out, shown| shown.push_plain_policy(out)),
        };
        Some(text(policies))
    }

    /// Whether anything is written on responses that the service gave.
    pub(super) fn on_all_responses(&self) -> bool {
        self.edition.is_some() || self.legacy.is_some()
    }
}

/// The time to wait in whole seconds, rounded up; never 0, which would have clients retry at once.
pub(super) fn retry_after_seconds(wait: Duration) -> u64 {
    whole_seconds(wait).max(1)
}

const NANOS: u64 = 1_000_000_000;

/// A time this much over a whole second is not rounded up to the next. It comes of the limiter's own rounding, and is
/// shorter than the way of the response to its client.
const FORGIVEN: Duration = Duration::from_micros(10);

fn whole_seconds(time: Duration) -> u64 {
    let time = time.saturating_sub(FORGIVEN);
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// The limit that refused, or else the one with the least left, and of those the one that is full again last.
fn tightest<'a, 'b>(limits: &'a [Shown<'b>]) -> Option<&'a Shown<'b>> {
    let refused = limits.iter().find(|shown| shown.refused);
    refused
        .or_else(|| limits.iter().min_by_key(|shown| (shown.remaining, std::cmp::Reverse(shown.reset_after))))
}

impl Shown<'_> {
    /// When there is more: where the request was refused, when it would pass; else, when all of it is back. It is
    /// then never later than `Retry-After`. `None` where nobody knows.
    fn reset(&self) -> Option<u64> {
        let reset_after = self.reset_after?;
        Some(whole_seconds(self.retry_after.unwrap_or(reset_after)))
    }

    /// The same for fields that cannot leave it out: while no permit is left, it is worth asking again in a second. `None`
    /// for a client that is denied, of whom nothing is counted.
    fn stated_reset(&self) -> Option<u64> {
        let denied = self.refused && self.reset_after.is_none() && self.retry_after.is_none();
        let unknown = || (!denied).then(|| u64::from(self.remaining == 0));
        self.reset().or_else(unknown)
    }

    /// Whether it counts what is in flight, and not what comes in some time.
    fn is_in_flight(&self) -> bool {
        self.quota.period().is_zero()
    }

    /// The window in whole seconds, which is all that the fields can say, and what the quota comes to in it. There is no window
    /// for what is in flight.
    fn quota_and_window(&self) -> (u64, Option<u64>) {
        if self.is_in_flight() {
            return (self.quota.units(), None);
        }
        let window = self.quota.period().as_nanos().div_ceil(u128::from(NANOS)).max(1);
        let period = self.quota.period().as_nanos().max(1);
        let units = u128::from(self.quota.units()).saturating_mul(window * u128::from(NANOS)) / period;
        (saturated(units), Some(saturated(window)))
    }

    /// `"name";q=100;w=60;qu="requests";pk=:a2V5:`
    fn push_policy(&self, out: &mut String) {
        let (quota, window) = self.quota_and_window();
        self.push_name(out);
        push_integer(out, ";q=", quota);
        if let Some(unit) = self.unit.or(self.is_in_flight().then_some(CONCURRENT_REQUESTS)) {
            out.push_str(";qu=");
            push_string(out, unit);
        }
        if let Some(window) = window {
            push_integer(out, ";w=", window);
        }
        self.push_partition_key(out);
    }

    /// `"name";r=50;t=30;pk=:a2V5:`
    fn push_standing(&self, out: &mut String) {
        self.push_name(out);
        push_integer(out, ";r=", self.remaining);
        if let Some(reset) = self.reset() {
            push_integer(out, ";t=", reset);
        }
        self.push_partition_key(out);
    }

    /// The limit's name; further quotas of it have a number after a mark that no limit's name can have.
    fn push_name(&self, out: &mut String) {
        push_string(out, self.name);
        if self.band > 0 {
            out.pop();
            push_integer(out, "~", self.band as u64 + 1);
            out.push('"');
        }
    }

    fn push_partition_key(&self, out: &mut String) {
        if let Some(key) = self.partition_key {
            out.push_str(";pk=:");
            base64::push(out, key, base64::Padding::Yes);
            out.push(':');
        }
    }

    /// `100;w=60`, with the burst where it is not the quota.
    fn push_plain_policy(&self, out: &mut String) {
        let (quota, window) = self.quota_and_window();
        push_integer(out, "", quota);
        if let Some(window) = window {
            push_integer(out, ";w=", window);
        }
        if self.capacity != quota {
            push_integer(out, ";burst=", self.capacity);
        }
    }
}

fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn list<'a>(limits: &[Shown<'a>], push: impl Fn(&mut String, &Shown<'a>)) -> String {
    let mut out = String::with_capacity(40 * limits.len());
    for shown in limits {
        if !out.is_empty() {
            out.push_str(", ");
        }
        push(&mut out, shown);
    }
    out
}

/// Decimal digits, without the formatting machinery: several are written on every response.
fn push_integer(out: &mut String, before: &str, value: u64) {
    out.push_str(before);
    let (mut digits, mut start, mut rest) = ([0; 20], 20, value.min(MAX_INTEGER));
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (rest % 10) as u8;
        start = place;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let digits = digits.get(start..).unwrap_or_default();
    out.push_str(std::str::from_utf8(digits).unwrap_or_default());
}

/// A string of RFC 9651, section 4.1.6. It holds visible ASCII and spaces only, so anything else is written in
/// percent-encoded UTF-8.
fn push_string(out: &mut String, text: &str) {
    let stands_for_itself = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    out.push('"');
    if text.bytes().all(stands_for_itself) {
        out.push_str(text);
        out.push('"');
        return;
    }
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out.push('"');
}

fn text(value: String) -> HeaderValue {
    // All that is written is visible ASCII, so there is nothing to refuse.
    HeaderValue::try_from(value).unwrap_or(HeaderValue::from_static(""))
}

/// Inserts all of the fields, or none where one of them is there.
fn insert<const N: usize>(headers: &mut HeaderMap, fields: [(HeaderName, HeaderValue); N]) {
    // Most names differ in their first bytes or lengths, so that comparing is quicker than hashing each of ours.
    if headers.keys().any(|set| fields.iter().any(|(name, _)| name == set)) {
        return;
    }
    for (name, value) in fields {
        // A map that takes no more goes without.
        let _ = headers.try_insert(name, value);
    }
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
