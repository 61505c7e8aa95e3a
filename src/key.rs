//! What is being limited: a keyed 128-bit digest of the caller's bytes.
//!
//! The digest is computed once per request, and is the only form in which a key is stored or sent: the bytes
//! themselves never leave the call. It is keyed with a secret that all nodes of a cluster share, so that who can
//! choose keys cannot make two of them collide, and it is the same on every build and platform.
//!
//! Two kinds of input never give the same digest by being written alike: bytes, addresses, integers and tuples
//! are digested under secrets of their own, and a tuple digests the digests of its parts, so `("a", "bc")` and
//! `("ab", "c")` are different keys.
//!
//! The default digest is XXH3-128 (Yann Collet's xxHash, version 0.8) under a derived 192-byte secret. It is fast,
//! and no collision is known that does not need the secret, but it makes no cryptographic claim;
//! [`Digest::SipHash128`] is SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012), a proven
//! pseudo-random function, for those who want one.

use std::{
    fmt,
    hash::Hasher as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use xxhash_rust::xxh3::{SecretInput, xxh3_128_with_secret_input};

/// The digest of what is being limited.
///
/// Equal inputs give equal keys on every node that shares the cluster's secret. Made by
/// [`KeyHasher::key`], or by the limiter's methods from any [`KeySource`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u128);

impl Key {
    /// The key with this digest, for those who bring a digest of their own; it must be uniformly distributed
    /// and the same on every node.
    pub const fn from_digest(digest: u128) -> Self {
        Self(digest)
    }

    /// The digest.
    pub const fn digest(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:032x})", self.0)
    }
}

/// Which function digests keys. All nodes of a cluster must use the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Digest {
    /// XXH3-128 under a derived secret: about 6 ns for a 31-byte key.
    #[default]
    Xxh3,
    /// SipHash-2-4 with 128 bits of output: a proven pseudo-random function, about 20 ns for a 31-byte key.
    SipHash128,
}

/// Kinds of input that must not be confused with each other; each is digested under a secret of its own.
#[derive(Clone, Copy)]
enum Domain {
    Bytes = 0,
    Address = 1,
    Integer = 2,
    Tuple = 3,
}

const DOMAINS: usize = 4;
const XXH3_SECRET_BYTES: usize = 192;

type Xxh3Secret = SecretInput<[u8; XXH3_SECRET_BYTES]>;

/// Digests keys under a cluster's secret.
#[derive(Clone)]
pub struct KeyHasher(Secrets);

#[derive(Clone)]
enum Secrets {
    Xxh3(Arc<[Xxh3Secret; DOMAINS]>),
    SipHash128([[u8; 16]; DOMAINS]),
}

impl KeyHasher {
    /// A hasher for the cluster that shares `secret`. Any length is taken; 16 random bytes or more make it
    /// unguessable.
    pub fn new(digest: Digest, secret: &[u8]) -> Self {
        let root = siphash(&[0; 16], secret).to_le_bytes();
        // SipHash in counter mode stretches the root into as many bytes as are needed.
        let block = |counter: u64| siphash(&root, &counter.to_le_bytes()).to_le_bytes();
        match digest {
            Digest::Xxh3 => {
                let mut secrets = [[0; XXH3_SECRET_BYTES]; DOMAINS];
                let blocks = secrets.iter_mut().flat_map(|secret| secret.chunks_exact_mut(16));
                for (counter, bytes) in (0..).zip(blocks) {
                    bytes.copy_from_slice(&block(counter));
                }
                Self(Secrets::Xxh3(Arc::new(secrets.map(SecretInput::new))))
            }
            Digest::SipHash128 => {
                Self(Secrets::SipHash128(std::array::from_fn(|domain| block(domain as u64))))
            }
        }
    }

    /// Digests `source`. Allocates nothing.
    #[inline]
    pub fn key(&self, source: impl KeySource) -> Key {
        source.to_key(self)
    }

    #[inline]
    fn digest(&self, domain: Domain, bytes: &[u8]) -> Key {
        Key(match &self.0 {
            Secrets::Xxh3(secrets) => xxh3(&secrets[domain as usize], bytes),
            Secrets::SipHash128(keys) => siphash(&keys[domain as usize], bytes),
        })
    }

    /// The same of a length that is known when this is compiled, and so with no look at it.
    #[inline]
    fn digest_fixed<const LENGTH: usize>(&self, domain: Domain, bytes: [u8; LENGTH]) -> Key {
        Key(match &self.0 {
            Secrets::Xxh3(secrets) => xxh3_128_with_secret_input(&bytes, &secrets[domain as usize]),
            Secrets::SipHash128(keys) => siphash(&keys[domain as usize], &bytes),
        })
    }

    fn tuple(&self, parts: &[Key]) -> Key {
        const MOST: usize = 8;
        let mut bytes = [0; 16 * MOST];
        for (place, part) in bytes.chunks_exact_mut(16).zip(parts) {
            place.copy_from_slice(&part.0.to_le_bytes());
        }
        self.digest(Domain::Tuple, &bytes[..16 * parts.len()])
    }
}

impl Default for KeyHasher {
    /// A hasher with the default digest and an empty secret: for a single process whose keys no attacker chooses.
    fn default() -> Self {
        Self::new(Digest::default(), &[])
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not reach a log.
        f.write_str(match self.0 {
            Secrets::Xxh3(_) => "KeyHasher(Xxh3)",
            Secrets::SipHash128(_) => "KeyHasher(SipHash128)",
        })
    }
}

// Compiled once, for it is long where the length is not known.
#[inline(never)]
fn xxh3(secret: &Xxh3Secret, bytes: &[u8]) -> u128 {
    xxh3_128_with_secret_input(bytes, secret)
}

// Kept out of the way of the other digest.
#[inline(never)]
fn siphash(key: &[u8; 16], bytes: &[u8]) -> u128 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(bytes);
    hasher.finish128().as_u128()
}

/// What a [`Key`] can be made from.
///
/// Strings and byte strings of the same bytes are the same key. An IPv4 address and its IPv4-mapped IPv6 form
/// are the same key. Integers are one kind, whatever their width. A tuple of sources is a key of its own kind, and
/// so is `()`, the one key of a limit that everybody shares. A [`Key`] stands for itself.
///
/// ```
/// use ratemesh::KeyHasher;
///
/// let hasher = KeyHasher::default();
/// assert_eq!(hasher.key("alice"), hasher.key(String::from("alice")));
/// assert_ne!(hasher.key(("a", "bc")), hasher.key(("ab", "c")));
/// ```
pub trait KeySource {
    /// Digests this under the hasher's secret.
    fn to_key(&self, hasher: &KeyHasher) -> Key;

    /// The address that this is, if it is one: a limit's lists of networks apply to it.
    #[inline]
    fn address(&self) -> Option<IpAddr> {
        None
    }
}

impl KeySource for Key {
    #[inline]
    fn to_key(&self, _: &KeyHasher) -> Key {
        *self
    }
}

impl<T: KeySource + ?Sized> KeySource for &T {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        (**self).to_key(hasher)
    }

    #[inline]
    fn address(&self) -> Option<IpAddr> {
        (**self).address()
    }
}

impl KeySource for [u8] {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        hasher.digest(Domain::Bytes, self)
    }
}

impl<const N: usize> KeySource for [u8; N] {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        hasher.digest(Domain::Bytes, self)
    }
}

impl KeySource for Vec<u8> {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        hasher.digest(Domain::Bytes, self)
    }
}

impl KeySource for str {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        hasher.digest(Domain::Bytes, self.as_bytes())
    }
}

impl KeySource for String {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        hasher.digest(Domain::Bytes, self.as_bytes())
    }
}

impl KeySource for IpAddr {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        match self {
            Self::V4(address) => address.to_key(hasher),
            Self::V6(address) => address.to_key(hasher),
        }
    }

    #[inline]
    fn address(&self) -> Option<IpAddr> {
        Some(*self)
    }
}

impl KeySource for Ipv4Addr {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        hasher.digest_fixed(Domain::Address, self.octets())
    }

    #[inline]
    fn address(&self) -> Option<IpAddr> {
        Some(IpAddr::V4(*self))
    }
}

impl KeySource for Ipv6Addr {
    #[inline]
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        match ipv4_mapped(self.to_bits()) {
            Some(address) => address.to_key(hasher),
            None => hasher.digest_fixed(Domain::Address, self.octets()),
        }
    }

    #[inline]
    fn address(&self) -> Option<IpAddr> {
        Some(IpAddr::V6(*self))
    }
}

/// The IPv4 address that these bits of an IPv6 address are mapped from, if they are.
#[inline]
pub(crate) fn ipv4_mapped(bits: u128) -> Option<Ipv4Addr> {
    const MAPPED: u128 = 0xffff;
    (bits >> 32 == MAPPED).then(|| Ipv4Addr::from_bits(bits as u32))
}

macro_rules! integers {
    ($wide:ty: $($int:ty),*) => {$(
        impl KeySource for $int {
            #[inline]
            fn to_key(&self, hasher: &KeyHasher) -> Key {
                hasher.digest(Domain::Integer, &<$wide>::from(*self).to_le_bytes())
            }
        }
    )*};
}

integers!(u128: u8, u16, u32, u64, u128);

impl KeySource for () {
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        hasher.tuple(&[])
    }
}

macro_rules! tuples {
    ($(($($part:ident),*);)*) => {$(
        impl<$($part: KeySource),*> KeySource for ($($part,)*) {
            #[inline]
            fn to_key(&self, hasher: &KeyHasher) -> Key {
                #[allow(non_snake_case)]
                let ($($part,)*) = self;
                hasher.tuple(&[$($part.to_key(hasher)),*])
            }
        }
    )*};
}

tuples! {
    (A);
    (A, B);
    (A, B, C);
    (A, B, C, D);
    (A, B, C, D, E);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashers() -> [KeyHasher; 2] {
        [KeyHasher::new(Digest::Xxh3, b"secret"), KeyHasher::new(Digest::SipHash128, b"secret")]
    }

    #[test]
    fn kinds_and_shapes_are_not_confused() {
        for hasher in hashers() {
            let keys = [
                hasher.key(""),
                hasher.key("a"),
                hasher.key(("a",)),
                hasher.key((("a",),)),
                hasher.key(("a", "bc")),
                hasher.key(("ab", "c")),
                hasher.key(("", "abc")),
                hasher.key("abc"),
                hasher.key(("a", "b", "c")),
                hasher.key((("a", "b"), "c")),
                hasher.key(("a", ("b", "c"))),
                hasher.key(()),
                hasher.key([10_u8, 0, 0, 1]),
                hasher.key(Ipv4Addr::new(10, 0, 0, 1)),
                hasher.key(Ipv6Addr::LOCALHOST),
                hasher.key(1_u64),
                hasher.key(1_u64.to_le_bytes()),
                hasher.key(1_u128.to_le_bytes()),
            ];
            let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
            assert_eq!(distinct.len(), keys.len());
        }
    }

    #[test]
    fn the_same_thing_is_the_same_key_however_it_is_held() {
        for hasher in hashers() {
            assert_eq!(hasher.key("abc"), hasher.key(b"abc"));
            assert_eq!(hasher.key("abc"), hasher.key(vec![b'a', b'b', b'c']));
            assert_eq!(hasher.key(7_u8), hasher.key(7_u64));
            let address = Ipv4Addr::new(192, 0, 2, 1);
            assert_eq!(hasher.key(address), hasher.key(address.to_ipv6_mapped()));
            assert_eq!(hasher.key(address), hasher.key(IpAddr::V6(address.to_ipv6_mapped())));
            assert_eq!(hasher.key(address), hasher.key(IpAddr::V4(address)));
            assert_eq!(hasher.key(Ipv6Addr::LOCALHOST), hasher.key(IpAddr::V6(Ipv6Addr::LOCALHOST)));
            assert_eq!(hasher.key(hasher.key("abc")), hasher.key("abc"));
        }
    }

    #[test]
    fn the_digest_is_fixed_for_all_builds() {
        // Nodes of different builds must agree on these, so a change here is a change of the wire format.
        let [xxh3, siphash] = hashers();
        assert_eq!(format!("{:?}", xxh3.key("alice")), XXH3_ALICE);
        assert_eq!(format!("{:?}", siphash.key("alice")), SIPHASH_ALICE);
        let ipv4 = Ipv4Addr::new(192, 0, 2, 1);
        let ipv6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        for (hasher, [digest_of_ipv4, digest_of_ipv6]) in
            [(xxh3, XXH3_ADDRESSES), (siphash, SIPHASH_ADDRESSES)]
        {
            assert_eq!(hasher.key(ipv4).digest(), digest_of_ipv4);
            assert_eq!(hasher.key(ipv6).digest(), digest_of_ipv6);
        }
    }

    const XXH3_ALICE: &str = "Key(e5412c6a3346968e13b943a6aaafb061)";
    const SIPHASH_ALICE: &str = "Key(6ff10c718c500a401e015bf1bf320e75)";

    const XXH3_ADDRESSES: [u128; 2] =
        [0x0edd_2eca_62b1_56b1_fad9_2bd7_a224_1f8f, 0x047c_1864_a290_4c35_33ef_14b4_51ba_b15c];
    const SIPHASH_ADDRESSES: [u128; 2] =
        [0x0529_1110_393c_b250_e348_065a_32f7_1785, 0xec6e_db99_63ed_9c78_282b_5589_9982_c3a3];

    #[test]
    fn secrets_part_clusters_and_stay_out_of_debug_output() {
        let one = KeyHasher::new(Digest::Xxh3, b"hunter2");
        let other = KeyHasher::new(Digest::Xxh3, b"hunter3");
        assert_ne!(one.key("alice"), other.key("alice"));
        assert_eq!(format!("{one:?}"), "KeyHasher(Xxh3)");
    }
}
