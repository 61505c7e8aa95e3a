//! Key extractors: what of a request its limit is counted by.
//!
//! An extractor digests what it finds at once, so that a credential never leaves the call. A tuple of extractors
//! gives the key that the same tuple of values would give to the limiter: `(ClientIp::new(), Header::new(name))`
//! and `limiter.check((address, "value"))` meet in one key.
//!
//! What is missing or empty is [`MissingKey`], never a key that strangers would share.

mod address;
mod forwarded;
mod header;

pub use address::{ClientIp, ForwardedField, NetworkError, Peer, PeerAddr, TrustedProxies};
pub use header::{BearerToken, Header};

use std::{any::type_name, borrow::Cow, fmt, marker::PhantomData, net::IpAddr};

use http::{HeaderName, StatusCode};

use crate::{
    http::RequestHead,
    key::{Key, KeyHasher, KeySource},
};

/// Finds what a request is limited by.
pub trait KeyExtractor: Send + Sync {
    /// Digests what the request is limited by.
    ///
    /// # Errors
    /// [`MissingKey`] where the request has nothing to be told by, or has it empty; nothing has been spent.
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey>;

    /// The same, with the address of the client where the key is of an address: the limit's lists of networks apply to it.
    ///
    /// Unless implemented, there is none.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    fn key_and_address(
        &self,
        request: &RequestHead<'_>,
        hasher: &KeyHasher,
    ) -> Result<(Key, Option<IpAddr>), MissingKey> {
        self.key(request, hasher).map(|key| (key, None))
    }

    /// Falls back to `other` where this finds nothing.
    ///
    /// A client chooses which of the two it is limited by, so the fallback should be the stricter one.
    fn or<E: KeyExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or { preferred: self, fallback: other }
    }
}

/// The request has nothing that its limit could be counted by.
///
/// It names what is missing, and never holds a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKey(Missing);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Missing {
    Address,
    BearerToken,
    Header(HeaderName),
    Extension(&'static str),
    Other(Cow<'static, str>),
}

impl MissingKey {
    /// A request without `what`, for extractors of one's own; clients are shown it.
    pub fn new(what: impl Into<Cow<'static, str>>) -> Self {
        Self(Missing::Other(what.into()))
    }

    /// The status that suits it: 401 for a bearer token, 400 for another part of the request, and 500 for an
    /// address or an extension, which only the server can have left out.
    pub fn status(&self) -> StatusCode {
        match self.0 {
            Missing::Address | Missing::Extension(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Missing::BearerToken => StatusCode::UNAUTHORIZED,
            Missing::Header(_) | Missing::Other(_) => StatusCode::BAD_REQUEST,
        }
    }
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Missing::Address => f.write_str("a client address"),
            Missing::BearerToken => f.write_str("one Authorization field with a bearer token"),
            Missing::Header(name) => write!(f, "one {name} field that is not empty"),
            Missing::Extension(name) => write!(f, "an extension of type {name}"),
            Missing::Other(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for MissingKey {}

/// One key for every request: the limit is of the service as a whole.
impl KeyExtractor for () {
    fn key(&self, _: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        Ok(hasher.key(()))
    }
}

macro_rules! tuples {
    ($(($($part:ident),*);)*) => {$(
        impl<$($part: KeyExtractor),*> KeyExtractor for ($($part,)*) {
            fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
                #[allow(non_snake_case)]
                let ($($part,)*) = self;
                Ok(hasher.key(($($part.key(request, hasher)?,)*)))
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

/// The request's method.
#[derive(Clone, Copy, Debug)]
pub struct Method;

impl KeyExtractor for Method {
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        Ok(hasher.key(request.method().as_str()))
    }
}

/// The request's path as it was sent, without the query.
///
/// `/a`, `//a` and `/%61` are different keys, and every resource has its own. Where the router leaves the route
/// that matched in an extension, as axum does, [`extension`] counts by the route instead.
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl KeyExtractor for Path {
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        Ok(hasher.key(request.uri().path()))
    }
}

/// One extractor, or another where it finds nothing; made by [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    preferred: A,
    fallback: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        self.preferred.key(request, hasher).or_else(|_| self.fallback.key(request, hasher))
    }

    fn key_and_address(
        &self,
        request: &RequestHead<'_>,
        hasher: &KeyHasher,
    ) -> Result<(Key, Option<IpAddr>), MissingKey> {
        let preferred = self.preferred.key_and_address(request, hasher);
        preferred.or_else(|_| self.fallback.key_and_address(request, hasher))
    }
}

/// Counts by what `find` gives; `None`, and an empty string, are a missing key.
///
/// ```
/// use ratemesh::http::{RequestHead, key_fn};
///
/// let by_host = key_fn(|request: &RequestHead<'_>| request.uri().host().map(str::to_ascii_lowercase));
/// ```
pub fn key_fn<F, K>(find: F) -> KeyFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync,
    K: KeySource,
{
    KeyFn(find)
}

/// An extractor from a closure; made by [`key_fn`].
#[derive(Clone, Copy)]
pub struct KeyFn<F>(F);

impl<F, K> KeyExtractor for KeyFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync,
    K: KeySource,
{
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        self.key_and_address(request, hasher).map(|(key, _)| key)
    }

    fn key_and_address(
        &self,
        request: &RequestHead<'_>,
        hasher: &KeyHasher,
    ) -> Result<(Key, Option<IpAddr>), MissingKey> {
        let found = (self.0)(request).map(|source| (hasher.key(&source), source.address()));
        found
            .filter(|(key, _)| !is_empty(*key, hasher))
            .ok_or(MissingKey::new("something to tell its sender by"))
    }
}

/// Counts by a part of an extension of type `T`, such as the user that an outer layer has authenticated.
///
/// With axum, `extension(MatchedPath::as_str)` counts by the route that matched, wherever the layer is applied
/// with `Router::layer` or `Router::route_layer`. Without the extension, or with an empty string in it, the key is
/// missing.
///
/// ```
/// use ratemesh::http::extension;
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let by_user = extension(|user: &User| &user.id);
/// ```
pub fn extension<T, K, F>(part: F) -> Extension<T, K, F>
where
    T: Send + Sync + 'static,
    K: KeySource + ?Sized,
    F: for<'a> Fn(&'a T) -> &'a K + Send + Sync,
{
    Extension { part, types: PhantomData }
}

/// An extractor from an extension; made by [`extension`].
pub struct Extension<T, K: ?Sized, F> {
    part: F,
    types: PhantomData<fn(&T) -> &K>,
}

impl<T, K, F> KeyExtractor for Extension<T, K, F>
where
    T: Send + Sync + 'static,
    K: KeySource + ?Sized,
    F: for<'a> Fn(&'a T) -> &'a K + Send + Sync,
{
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        self.key_and_address(request, hasher).map(|(key, _)| key)
    }

    fn key_and_address(
        &self,
        request: &RequestHead<'_>,
        hasher: &KeyHasher,
    ) -> Result<(Key, Option<IpAddr>), MissingKey> {
        let part = request.extensions().get::<T>().map(|value| (self.part)(value));
        let found = part.map(|part| (hasher.key(part), part.address()));
        found
            .filter(|(key, _)| !is_empty(*key, hasher))
            .ok_or(MissingKey(Missing::Extension(type_name::<T>())))
    }
}

/// Whether the key is that of an empty string, which everyone who leaves it empty would share.
fn is_empty(key: Key, hasher: &KeyHasher) -> bool {
    key == hasher.key("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[derive(Clone)]
    struct Route(&'static str);

    fn key(extractor: impl KeyExtractor, request: &Request<()>) -> Option<Key> {
        extractor.key(&RequestHead::from(request), &KeyHasher::default()).ok()
    }

    fn request() -> Request<()> {
        Request::get("https://example.com/a/b?c=d")
            .header("x-api-key", "k1")
            .header("authorization", "Bearer t1")
            .extension(Route("/a/{id}"))
            .body(())
            .unwrap()
    }

    #[test]
    fn extractors_give_the_keys_of_what_they_find() {
        let hasher = KeyHasher::default();
        let request = request();
        assert_eq!(key(Path, &request), Some(hasher.key("/a/b")));
        assert_eq!(key(Method, &request), Some(hasher.key("GET")));
        assert_eq!(key((), &request), Some(hasher.key(())));
        assert_eq!(key(extension(|route: &Route| route.0), &request), Some(hasher.key("/a/{id}")));
        assert_eq!(key(key_fn(|_: &RequestHead<'_>| Some(7_u64)), &request), Some(hasher.key(7_u64)));
    }

    #[test]
    fn a_tuple_is_the_key_of_the_tuple_of_values() {
        let hasher = KeyHasher::default();
        let request = request();
        let pair = (Header::new(HeaderName::from_static("x-api-key")), Path);
        assert_eq!(key(pair, &request), Some(hasher.key(("k1", "/a/b"))));
        let triple = (BearerToken, (Method, Path), ());
        assert_eq!(key(triple, &request), Some(hasher.key(("t1", ("GET", "/a/b"), ()))));
    }

    #[test]
    fn a_tuple_lacks_what_one_of_its_parts_lacks() {
        let request = Request::get("/").body(()).unwrap();
        let head = RequestHead::from(&request);
        let missing = (Path, BearerToken).key(&head, &KeyHasher::default()).unwrap_err();
        assert_eq!(missing.status(), StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn empty_values_are_missing() {
        let request = Request::get("/").extension(Route("")).body(()).unwrap();
        assert_eq!(key(extension(|route: &Route| route.0), &request), None);
        assert_eq!(key(key_fn(|_: &RequestHead<'_>| Some(String::new())), &request), None);
        assert_eq!(key(key_fn(|_: &RequestHead<'_>| None::<u64>), &request), None);
    }

    #[test]
    fn the_fallback_is_used_where_the_first_finds_nothing() {
        let hasher = KeyHasher::default();
        let anonymous = Request::get("/").body(()).unwrap();
        assert_eq!(key(BearerToken.or(Path), &anonymous), Some(hasher.key("/")));
        assert_eq!(key(BearerToken.or(Path), &request()), Some(hasher.key("t1")));
    }

    #[test]
    fn debug_output_shows_no_credentials() {
        let request = request();
        let shown = format!("{:?}", RequestHead::from(&request));
        assert!(!shown.contains("k1") && !shown.contains("t1") && !shown.contains("c=d"), "{shown}");
    }
}
