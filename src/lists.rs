//! Allow and deny lists: keys, and networks of addresses, that a limit does not decide on by counting.
//!
//! Networks are matched before a key is digested, since a digest says nothing of its neighbours. A look-up takes one
//! binary search a prefix length that is in use, from the longest down, so a list of thousands costs little more
//! than a list of one.

use std::net::IpAddr;

use crate::{limit::Quota, time::saturating_nanos};

/// The most entries that the allow and deny lists of one limit may have together.
pub const MAX_LISTED: usize = 10_000;
/// The longest key that can be listed, in bytes.
const MAX_LISTED_KEY_BYTES: usize = 1_024;
/// What marks an entry as a key.
const KEY: &str = "key:";

/// What applies to a key in place of what its limit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Override {
    /// It has a quota of its own, by the limit's algorithm, in place of all the limit's quotas.
    ///
    /// Windows keep their length: such a quota's period has to be the limit's, and so has the period of permits, zero.
    /// Monthly limits take [`Quota::per_month`].
    ///
    /// ```
    /// use ratemesh::{Limit, Override, Quota};
    ///
    /// let api = Limit::token_bucket("api", Quota::per_second(10))
    ///     .override_key("pro", Override::quota(Quota::per_second(100)))
    ///     .override_key("batch", Override::Quota { quota: Quota::per_minute(60), burst: 500 });
    /// let calls = Limit::monthly("calls", 10_000)
    ///     .override_key("pro", Override::quota(Quota::per_month(1_000_000)));
    /// let reports = Limit::concurrency("reports", 2)
    ///     .override_key("pro", Override::quota(Quota::at_a_time(5)));
    /// for limit in [api, calls, reports] {
    ///     limit.build()?;
    /// }
    /// # Ok::<(), ratemesh::LimitError>(())
    /// ```
    Quota {
        /// The quota.
        quota: Quota,
        /// The units that a token bucket holds, or for which a leaky one may owe; of other algorithms, the quota's units.
        burst: u64,
    },
    /// Its requests are admitted, and not counted.
    Allow,
    /// Its requests are refused.
    Deny,
}

impl Override {
    /// A quota of its own, with a burst of the quota's units.
    pub const fn quota(quota: Quota) -> Self {
        Self::Quota { quota, burst: quota.units() }
    }

    /// A number for each kind, which all nodes know it by, and what it says beside.
    fn fields(self) -> (u8, [u64; 3]) {
        match self {
            Self::Allow => (0, [0; 3]),
            Self::Deny => (1, [0; 3]),
            Self::Quota { quota, burst } => (2, [quota.units(), saturating_nanos(quota.period()), burst]),
        }
    }
}

/// The allow and deny lists of one limit, and the quotas that it gives to single keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    networks: [Networks; 2],
    keys: Vec<(Box<str>, Override)>,
    entries: usize,
}

/// The networks of one family: by prefix length, the longest first, the networks' leading bits in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Networks(Vec<(u32, Vec<(u128, Override)>)>);

/// What an entry of a list takes.
pub(crate) const ENTRY: &str = "an address or a network without bits beyond its prefix, such as \"10.0.0.0/8\", or \"key:\" and a key \
     of 1 to 1,024 bytes; 10,000 entries a limit at most";

impl Lists {
    /// Adds an entry: an address, a network, or `key:` and a key. Returns whether it will do.
    pub(crate) fn add(&mut self, entry: &str, says: Override) -> bool {
        if let Some(key) = entry.strip_prefix(KEY) {
            return self.add_key(key, says);
        }
        self.entries += 1;
        if self.entries > MAX_LISTED {
            return false;
        }
        let Some((family, prefix, bits)) = network(entry) else { return false };
        self.networks[family].add(prefix, bits, says);
        true
    }

    /// Says something of a key. Returns whether it will do.
    pub(crate) fn add_key(&mut self, key: &str, says: Override) -> bool {
        self.entries += 1;
        let fits = (1..=MAX_LISTED_KEY_BYTES).contains(&key.len()) && self.entries <= MAX_LISTED;
        if fits {
            self.keys.push((key.into(), says));
        }
        fits
    }

    /// What is said of the smallest listed network that holds the address.
    pub(crate) fn find(&self, address: IpAddr) -> Option<Override> {
        let (family, width, bits) = parts(address);
        self.networks[family].find(width, bits)
    }

    pub(crate) fn has_networks(&self) -> bool {
        self.networks.iter().any(|networks| !networks.0.is_empty())
    }

    /// The listed keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, Override)> {
        self.keys.iter().map(|(key, says)| (&**key, *says))
    }

    /// How many different quotas keys are given.
    #[cfg(any(feature = "net", feature = "sim"))]
    pub(crate) fn quotas(&self) -> usize {
        let quotas = self.keys.iter().filter(|(_, says)| matches!(says, Override::Quota { .. }));
        quotas.map(|(_, says)| *says).collect::<std::collections::BTreeSet<_>>().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.has_networks()
    }

    /// Feeds everything that decides into a fingerprint.
    pub(crate) fn bytes(&self, bytes: &mut Vec<u8>) {
        for (family, networks) in self.networks.iter().enumerate() {
            for (prefix, entries) in &networks.0 {
                for (bits, says) in entries {
                    bytes.extend([family as u8, *prefix as u8, says.fields().0]);
                    bytes.extend(bits.to_le_bytes());
                }
            }
        }
        let mut keys: Vec<_> = self.keys().collect();
        keys.sort_unstable();
        keys.dedup();
        for (key, says) in keys {
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend(key.as_bytes());
            let (kind, fields) = says.fields();
            bytes.push(kind);
            if let Override::Quota { .. } = says {
                bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
            }
        }
    }
}

impl Networks {
    fn add(&mut self, prefix: u32, bits: u128, says: Override) {
        let place = self.0.partition_point(|(other, _)| *other > prefix);
        if self.0.get(place).is_none_or(|(other, _)| *other != prefix) {
            self.0.insert(place, (prefix, Vec::new()));
        }
        let entries = &mut self.0[place].1;
        match entries.binary_search_by_key(&bits, |(bits, _)| *bits) {
            // Of two that say otherwise of one network, the denial stands.
            Ok(at) => entries[at].1 = entries[at].1.max(says),
            Err(at) => entries.insert(at, (bits, says)),
        }
    }

    fn find(&self, width: u32, bits: u128) -> Option<Override> {
        self.0.iter().find_map(|(prefix, entries)| {
            let leading = leading(bits, width, *prefix);
            let at = entries.binary_search_by_key(&leading, |(bits, _)| *bits).ok()?;
            entries.get(at).map(|(_, says)| *says)
        })
    }
}

/// An address's family, its width and its bits. An IPv4 address is the same in its IPv4-mapped IPv6 form.
fn parts(address: IpAddr) -> (usize, u32, u128) {
    match address.to_canonical() {
        IpAddr::V4(address) => (0, 32, u128::from(u32::from(address))),
        IpAddr::V6(address) => (1, 128, u128::from(address)),
    }
}

fn leading(bits: u128, width: u32, prefix: u32) -> u128 {
    bits.checked_shr(width - prefix.min(width)).unwrap_or(0)
}

/// Reads an address or a network: its family, its prefix length and its leading bits.
fn network(text: &str) -> Option<(usize, u32, u128)> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    // A mapped network would be told from its IPv4 form only by its prefix; take the plain form.
    if address.to_canonical() != address {
        return None;
    }
    let (family, width, bits) = parts(address);
    let prefix = match prefix {
        None => width,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok().filter(|prefix| *prefix <= width)?
        }
        Some(_) => return None,
    };
    let leading = leading(bits, width, prefix);
    let back = leading.checked_shl(width - prefix).unwrap_or(0);
    (back == bits).then_some((family, prefix, leading))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(allow: &[&str], deny: &[&str]) -> Lists {
        let mut lists = Lists::default();
        allow.iter().for_each(|entry| assert!(lists.add(entry, Override::Allow), "{entry}"));
        deny.iter().for_each(|entry| assert!(lists.add(entry, Override::Deny), "{entry}"));
        lists
    }

    fn find(lists: &Lists, address: &str) -> Option<Override> {
        lists.find(address.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_decides_and_a_denial_where_two_are_equal() {
        use Override::{Allow, Deny};
        let lists = lists(
            &["10.0.0.0/8", "10.1.2.0/24", "192.0.2.1", "2001:db8::/32", "203.0.113.0/24"],
            &["10.1.0.0/16", "10.1.2.3/32", "203.0.113.0/24", "2001:db8:1::/48"],
        );
        let cases = [
            ("10.9.9.9", Some(Allow)),
            ("10.1.9.9", Some(Deny)),
            ("10.1.2.9", Some(Allow)),
            ("10.1.2.3", Some(Deny)),
            ("::ffff:10.1.2.3", Some(Deny)),
            ("192.0.2.1", Some(Allow)),
            ("192.0.2.2", None),
            ("203.0.113.7", Some(Deny)),
            ("2001:db8::1", Some(Allow)),
            ("2001:db8:1::1", Some(Deny)),
            ("2001:db9::1", None),
            ("11.0.0.0", None),
            ("::a00:1", None),
        ];
        for (address, said) in cases {
            assert_eq!(find(&lists, address), said, "{address}");
        }
    }

    #[test]
    fn a_prefix_of_nothing_holds_every_address_of_its_family() {
        let lists = lists(&["0.0.0.0/0"], &["::/0"]);
        assert_eq!(find(&lists, "8.8.8.8"), Some(Override::Allow));
        assert_eq!(find(&lists, "255.255.255.255"), Some(Override::Allow));
        assert_eq!(find(&lists, "::1"), Some(Override::Deny));
        assert_eq!(find(&lists, "ffff::1"), Some(Override::Deny));
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        let garbage = [
            "",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0/8",
            "alice",
            "key:",
            "::/129",
            "2001:db8::1/32",
            "::ffff:10.0.0.0/104",
            "10.0.0.0/8/8",
            " 10.0.0.0/8",
        ];
        for entry in garbage {
            assert!(!Lists::default().add(entry, Override::Allow), "{entry:?}");
        }
        let long = format!("key:{}", "x".repeat(MAX_LISTED_KEY_BYTES + 1));
        assert!(!Lists::default().add(&long, Override::Allow));
        let mut full = Lists::default();
        for number in 0..MAX_LISTED {
            assert!(full.add(&format!("key:{number}"), Override::Allow));
        }
        assert!(!full.add("key:one-more", Override::Allow));
    }

    proptest::proptest! {
        #[test]
        fn networks_hold_what_their_bits_say(address: u32, network: u32, prefix in 0_u32..=32) {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            let network = network & mask;
            let text = format!("{}/{prefix}", std::net::Ipv4Addr::from(network));
            let lists = lists(&[&text], &[]);
            for address in [address, network | (address & !mask)] {
                let found = lists.find(std::net::Ipv4Addr::from(address).into()).is_some();
                proptest::prop_assert_eq!(found, address & mask == network);
            }
        }

        #[test]
        fn garbage_never_panics(text in "[0-9a-f.:/k]{0,20}") {
            let _ = Lists::default().add(&text, Override::Deny);
        }
    }
}
