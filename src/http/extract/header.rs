//! Keys that clients send in header fields.

use http::{HeaderName, header::AUTHORIZATION};

use super::{KeyExtractor, Missing, MissingKey, forwarded::trim};
use crate::{
    http::RequestHead,
    key::{Key, KeyHasher},
};

/// The value of a header field, such as an API key.
///
/// A client that may write anything here gets a new key with every new value. Verify the value in an outer layer
/// first, or limit by the client's address as well.
///
/// Absent, empty and repeated fields are missing keys: which of several lines the application reads, this cannot
/// know.
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// Counts by the field of this name.
    pub fn new(name: HeaderName) -> Self {
        Self(name)
    }
}

impl KeyExtractor for Header {
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        let value = only_value(request, &self.0).filter(|value| !value.is_empty());
        value.map(|value| hasher.key(value)).ok_or_else(|| MissingKey(Missing::Header(self.0.clone())))
    }
}

/// The token of `Authorization: Bearer <token>`, whatever the case of the scheme.
///
/// The token is digested at once; neither it nor its digest is logged or sent to clients. What [`Header`] says
/// about unverified values holds here too.
#[derive(Clone, Copy, Debug)]
pub struct BearerToken;

impl KeyExtractor for BearerToken {
    fn key(&self, request: &RequestHead<'_>, hasher: &KeyHasher) -> Result<Key, MissingKey> {
        let token = only_value(request, &AUTHORIZATION).and_then(bearer_token);
        token.map(|token| hasher.key(token)).ok_or(MissingKey(Missing::BearerToken))
    }
}

fn bearer_token(credentials: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = credentials.split_at_checked(b"bearer".len())?;
    if !scheme.eq_ignore_ascii_case(b"bearer")
        || !rest.first().is_some_and(|byte| matches!(byte, b' ' | b'\t'))
    {
        return None;
    }
    Some(trim(rest)).filter(|token| !token.is_empty())
}

/// The field's value without the white space around it, unless there are several or none.
fn only_value<'a>(request: &RequestHead<'a>, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = request.headers().get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(trim(value.as_bytes())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, StatusCode};

    fn key(extractor: impl KeyExtractor, fields: &[(&str, &str)]) -> Result<Key, MissingKey> {
        let mut request = Request::get("/");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        extractor.key(&RequestHead::from(&request), &KeyHasher::default())
    }

    fn api_key() -> Header {
        Header::new(HeaderName::from_static("x-api-key"))
    }

    #[test]
    fn a_header_is_its_trimmed_value() {
        let expected = KeyHasher::default().key("k1");
        assert_eq!(key(api_key(), &[("x-api-key", "k1")]), Ok(expected));
        assert_eq!(key(api_key(), &[("X-Api-Key", " k1\t")]), Ok(expected));
        assert_ne!(key(api_key(), &[("x-api-key", "K1")]), Ok(expected));
    }

    #[test]
    fn absent_empty_and_repeated_headers_are_missing() {
        let cases: [&[(&str, &str)]; 4] =
            [&[], &[("x-api-key", "")], &[("x-api-key", "  ")], &[("x-api-key", "k1"), ("x-api-key", "k2")]];
        for fields in cases {
            let missing = key(api_key(), fields).unwrap_err();
            assert_eq!(missing.status(), StatusCode::BAD_REQUEST);
            assert!(missing.to_string().contains("x-api-key"));
        }
    }

    #[test]
    fn the_bearer_scheme_has_no_case() {
        let expected = KeyHasher::default().key("t.1/=");
        for value in ["Bearer t.1/=", "bearer t.1/=", "BEARER   t.1/=", "bEaReR\tt.1/= "] {
            assert_eq!(key(BearerToken, &[("authorization", value)]), Ok(expected), "{value}");
        }
    }

    #[test]
    fn other_credentials_are_no_bearer_token() {
        for value in ["", "Bearer", "Bearer ", "Bearer\t ", "Basic dTpw", "Bearert1", "t1", "Bear er t1"] {
            assert!(key(BearerToken, &[("authorization", value)]).is_err(), "{value}");
        }
        let repeated = [("authorization", "Bearer t1"), ("authorization", "Bearer t1")];
        assert!(key(BearerToken, &repeated).is_err());
    }
}
