//! The client's address, also behind proxies.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, header::FORWARDED};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{KeyExtractor, Missing, MissingKey, forwarded};
use crate::{
    http::RequestHead,
    key::{Key, KeyHasher, ipv4_mapped},
};

/// An IPv6 client can be given this much of a network to itself, and so is limited as one.
const DEFAULT_IPV6_PREFIX: u8 = 64;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address that the connection came from, as an extension of the request.
///
/// Servers that leave no extension of their own can insert this one; [`ClientIp`] looks for it unless it is told
/// of another by [`ClientIp::peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Who is at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// An address.
    Address(IpAddr),
    /// Something without one, such as the other end of a unix socket.
    Unaddressed,
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address.ip())
    }
}

impl<T: Into<Self>> From<Option<T>> for Peer {
    fn from(address: Option<T>) -> Self {
        address.map_or(Self::Unaddressed, Into::into)
    }
}

/// The field in which the trusted proxies say whom they forward for.
///
/// Name the one that they write: a proxy passes on whatever a client puts into the others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardedField {
    /// `X-Forwarded-For`, to which each hop appends the address that it was reached from.
    XForwardedFor,
    /// `Forwarded` (RFC 7239), to which each hop appends an element with `for=`.
    Forwarded,
    /// A field that holds just the client's address, such as `CF-Connecting-IP` or `X-Real-IP`. The nearest proxy
    /// must overwrite what the client sends in it.
    Single(HeaderName),
}

/// Which machines in front of the service are believed.
#[derive(Clone, Debug)]
pub struct TrustedProxies(Trust);

#[derive(Clone, Debug)]
enum Trust {
    Networks(Arc<[IpNet]>),
    Hops(usize),
}

impl TrustedProxies {
    /// Proxies are believed that have an address in one of these networks: `10.0.0.0/8`, `2001:db8::/32`, or one
    /// address.
    ///
    /// # Errors
    /// Returns the first text that is neither a network nor an address.
    pub fn networks<I>(networks: I) -> Result<Self, NetworkError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let networks = networks.into_iter().map(|text| network(text.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self(Trust::Networks(networks)))
    }

    /// The nearest `count` hops are believed, whatever their addresses; the peer is the first of them.
    ///
    /// Every request must pass through all of them. Who can reach an inner hop directly can name any address.
    /// With 0, nobody is believed.
    pub fn hops(count: usize) -> Self {
        Self(Trust::Hops(count))
    }

    fn trust_peer(&self, peer: IpAddr) -> bool {
        match &self.0 {
            Trust::Networks(networks) => networks.iter().any(|network| network.contains(&peer)),
            Trust::Hops(count) => *count > 0,
        }
    }

    /// Walks from a trusted `peer` to the first hop that is not trusted, or to the last that can be told.
    fn walk(&self, peer: Option<IpAddr>, mut hops: impl Iterator<Item = Option<IpAddr>>) -> Option<IpAddr> {
        let mut nearest = peer;
        match &self.0 {
            Trust::Networks(networks) => {
                while let Some(Some(hop)) = hops.next() {
                    nearest = Some(hop);
                    if !networks.iter().any(|network| network.contains(&hop)) {
                        break;
                    }
                }
            }
            Trust::Hops(count) => {
                for hop in hops.take(*count).map_while(|hop| hop) {
                    nearest = Some(hop);
                }
            }
        }
        nearest
    }
}

/// A text that is neither a network nor an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError {
    text: String,
}

impl NetworkError {
    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" is no network; write it as 10.0.0.0/8 or 2001:db8::/32, or give one address",
            self.text
        )
    }
}

impl std::error::Error for NetworkError {}

fn network(text: &str) -> Result<IpNet, NetworkError> {
    let parsed = text.parse().or_else(|_| text.parse().map(|address: IpAddr| IpNet::from(address)));
    match parsed.map_err(|_| NetworkError { text: text.to_owned() })? {
        IpNet::V6(network) => Ok(unmapped(network)),
        network => Ok(network),
    }
}

/// The IPv4 network that an IPv4-mapped one stands for: addresses are made IPv4 before they are compared.
fn unmapped(network: Ipv6Net) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    let mapped = network.addr().to_ipv4_mapped().zip(network.prefix_len().checked_sub(MAPPED_BITS));
    let ipv4 = mapped.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok());
    ipv4.map_or(IpNet::V6(network), IpNet::V4)
}

/// The client's address.
///
/// On its own it is the address of the connection. Told of the proxies in front of the service, it reads the field
/// that they write from the right, past trusted hops only; the first address that is not trusted is the client's.
/// Whatever names no address ends the walk, and the last trusted hop then stands for the client.
///
/// IPv4-mapped addresses are IPv4. An IPv6 client is limited by its /64, in which it can choose addresses freely.
///
/// ```
/// use ratemesh::http::{ClientIp, ForwardedField, TrustedProxies};
///
/// let proxies = TrustedProxies::networks(["10.0.0.0/8", "2001:db8:1::/48"])?;
/// let client = ClientIp::new().behind(proxies, ForwardedField::XForwardedFor);
/// # Ok::<(), ratemesh::http::NetworkError>(())
/// ```
///
/// With axum, serve `into_make_service_with_connect_info::<SocketAddr>()` and say
/// `ClientIp::new().peer(|info: &ConnectInfo<SocketAddr>| info.0)`.
#[derive(Clone)]
pub struct ClientIp {
    peer: FindPeer,
    proxies: Option<(TrustedProxies, ForwardedField)>,
    trust_unaddressed: bool,
    /// The bits that tell clients apart.
    ipv4_mask: u32,
    ipv6_mask: u128,
}

/// Gives the peer's address, if it has one that is known, as the bits of an IPv6 address.
type FindPeer = Arc<dyn Fn(&Extensions) -> Option<u128> + Send + Sync>;

// An address goes as bits from the extension to the digest: nothing is asked of it twice on the way.
#[inline]
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[inline]
fn from_bits(bits: u128) -> IpAddr {
    ipv4_mapped(bits).map_or(IpAddr::V6(Ipv6Addr::from_bits(bits)), IpAddr::V4)
}

fn ipv4_mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0)
}

fn ipv6_mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0)
}

impl ClientIp {
    /// The address of the connection, as [`PeerAddr`] gives it.
    pub fn new() -> Self {
        let peer = |extensions: &Extensions| extensions.get().map(|PeerAddr(address)| bits(address.ip()));
        Self {
            peer: Arc::new(peer),
            proxies: None,
            trust_unaddressed: false,
            ipv4_mask: ipv4_mask(32),
            ipv6_mask: ipv6_mask(DEFAULT_IPV6_PREFIX),
        }
    }

    /// Takes the connection's address from an extension of type `T`.
    ///
    /// `address` gives a `SocketAddr`, an `IpAddr`, an `Option` of either (`None` is a peer without an address), or
    /// a [`Peer`].
    pub fn peer<T, P>(mut self, address: impl Fn(&T) -> P + Send + Sync + 'static) -> Self
    where
        T: Send + Sync + 'static,
        P: Into<Peer>,
    {
        self.peer = Arc::new(move |extensions| match extensions.get().map(|value| address(value).into()) {
            Some(Peer::Address(address)) => Some(bits(address)),
            Some(Peer::Unaddressed) | None => None,
        });
        self
    }

    /// Believes these proxies when they name a client in this field.
    pub fn behind(mut self, proxies: TrustedProxies, field: ForwardedField) -> Self {
        self.proxies = Some((proxies, field));
        self
    }

    /// Sets whether a peer without an address, such as a proxy on a unix socket, is a trusted proxy; it is not
    /// unless set. A request without the extension that holds the peer's address counts as one too.
    pub fn trust_unaddressed_peer(mut self, trust: bool) -> Self {
        self.trust_unaddressed = trust;
        self
    }

    /// Sets how many leading bits tell IPv6 clients apart; 64 unless set, and 128 at most.
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_mask = ipv6_mask(bits);
        self
    }

    /// Sets how many leading bits tell IPv4 clients apart; 32 unless set, which is the most.
    pub fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.ipv4_mask = ipv4_mask(bits);
        self
    }

    /// The client's address in full.
    ///
    /// # Errors
    /// [`MissingKey`] when the peer has no address and nobody who is trusted names one.
    pub fn address(&self, request: &RequestHead<'_>) -> Result<IpAddr, MissingKey> {
        self.address_bits(request).map(from_bits)
    }

    /// The address that stands for all the clients which are limited together with this one.
    ///
    /// # Errors
    /// As [`address`](Self::address).
    pub fn network(&self, request: &RequestHead<'_>) -> Result<IpAddr, MissingKey> {
        self.address_bits(request).map(|bits| self.network_as(bits, IpAddr::V4, IpAddr::V6))
    }

    #[inline]
    fn address_bits(&self, request: &RequestHead<'_>) -> Result<u128, MissingKey> {
        let peer = (self.peer)(request.extensions());
        let client = match &self.proxies {
            None => peer,
            Some((proxies, field)) => self.named(proxies, field, peer, request.headers()),
        };
        client.ok_or(MissingKey(Missing::Address))
    }

    /// Whom the peer names where it is a trusted proxy, or the peer itself.
    #[inline(never)]
    fn named(
        &self,
        proxies: &TrustedProxies,
        field: &ForwardedField,
        peer: Option<u128>,
        headers: &HeaderMap,
    ) -> Option<u128> {
        let peer = peer.map(from_bits);
        let trusted = peer.map_or(self.trust_unaddressed, |peer| proxies.trust_peer(peer));
        let client = if trusted { field.client(proxies, peer, headers) } else { peer };
        client.map(bits)
    }

    /// What one of the two makes of the address that is the same for all the clients which are limited together with this one.
    #[inline(always)]
    fn network_as<T>(
        &self,
        address: u128,
        ipv4: impl FnOnce(Ipv4Addr) -> T,
        ipv6: impl FnOnce(Ipv6Addr) -> T,
    ) -> T {
        match ipv4_mapped(address) {
            Some(address) => ipv4(Ipv4Addr::from_bits(address.to_bits() & self.ipv4_mask)),
            None => ipv6(Ipv6Addr::from_bits(address & self.ipv6_mask)),
        }
    }

    #[inline]
    fn key_of(&self, address: u128, hasher: &KeyHasher) -> Key {
        self.network_as(address, |ipv4| hasher.key(ipv4), |ipv6| hasher.key(ipv6))
    }
}

impl Default for ClientIp {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIp")
            .field("proxies", &self.proxies)
            .field("trust_unaddressed", &self.trust_unaddressed)
            .field("ipv4_prefix", &self.ipv4_mask.leading_ones())
            .field("ipv6_prefix", &self.ipv6_mask.leading_ones())
            .finish_non_exhaustive()
    }
}

impl KeyExtractor for ClientIp {
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        let address = self.address_bits(request)?;
        Ok(self.key_of(address, hasher))
    }

    /// Lists go by the address itself, not by the network that the client is limited by.
    fn key_and_address(
        &self,
        request: &RequestHead<'_>,
        hasher: &KeyHasher,
    ) -> Result<(Key, Option<IpAddr>), MissingKey> {
        let address = self.address_bits(request)?;
        Ok((self.key_of(address, hasher), Some(from_bits(address))))
    }
}

impl ForwardedField {
    /// Whom a trusted `peer` forwards for, or the peer itself.
    fn client(&self, proxies: &TrustedProxies, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => {
                proxies.walk(peer, forwarded::x_forwarded_for(headers.get_all(X_FORWARDED_FOR).iter()))
            }
            Self::Forwarded => proxies.walk(peer, forwarded::forwarded(headers.get_all(FORWARDED).iter())),
            Self::Single(name) => {
                let mut values = headers.get_all(name).iter();
                let only = values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes);
                only.map(forwarded::trim).and_then(forwarded::address).or(peer)
            }
        }
    }
}
