//! What of a request decides: everything but its body.

use std::fmt;

use http::{Extensions, HeaderMap, Method, Request, Uri, request::Parts};

/// A borrowed view of a request without its body.
///
/// Extractors and the layer's closures are given this, so that none of them depends on the type of the body.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// The request's method.
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The request's target.
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// The request's header fields.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What outer layers and the server attached to the request.
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}

impl<'a, B> From<&'a Request<B>> for RequestHead<'a> {
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl<'a> From<&'a Parts> for RequestHead<'a> {
    fn from(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }
}

impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header fields and queries hold credentials, which must not reach a log.
        f.debug_struct("RequestHead")
            .field("method", self.method)
            .field("path", &self.uri.path())
            .finish_non_exhaustive()
    }
}
