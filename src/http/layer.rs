//! The layer: what its users set.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Response, StatusCode};
use tower_layer::Layer;

use super::{Gate, HeaderFields, KeyExtractor, RateLimit, Refusal, RefusalBody, settings::Settings};
use crate::limiter::Limiter;

/// Lets requests through to a service as its limits allow, and answers the rest itself.
///
/// ```
/// use ratemesh::{Limit, Limiter, Quota, http::{ClientIp, Edition, HeaderFields, RateLimitLayer}};
///
/// let limiter = Limiter::new(Limit::token_bucket("api", Quota::per_minute(600)).burst(50).build()?);
/// // In axum, with `into_make_service_with_connect_info`: `ClientIp::new().peer(|info: &ConnectInfo<SocketAddr>| info.0)`.
/// // Elsewhere, put the peer's address into the request's extensions as a `PeerAddr`.
/// let layer = RateLimitLayer::new(limiter, ClientIp::new())
///     .header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
///
/// With several limits, a request passes all of them or spends nothing:
///
/// ```
/// use http::HeaderName;
/// use ratemesh::{Limit, Limiter, Quota, http::{ClientIp, Count, Gate, Header, RateLimitLayer}};
///
/// let by_address = Limiter::new(Limit::token_bucket("address", Quota::per_minute(60)).build()?);
/// let by_account = Limiter::new(Limit::token_bucket("account", Quota::per_hour(10)).build()?);
/// let account = Header::new(HeaderName::from_static("x-account"));
/// let layer = RateLimitLayer::new(by_address, ClientIp::new())
///     .and(Gate::new(by_account, account).count(Count::Failures));
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
#[derive(Clone)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct RateLimitLayer {
    settings: Arc<Settings>,
}

impl RateLimitLayer {
    /// A layer with one limit, which counts every request, at a cost of 1, by the key that is found in it.
    pub fn new(limiter: Limiter, key: impl KeyExtractor + 'static) -> Self {
        Gate::new(limiter, key).into()
    }

    /// Adds a limit, which is asked after the ones before it.
    pub fn and(self, gate: Gate) -> Self {
        self.set(|settings| settings.gates.push(gate))
    }

    /// Sets the header fields that responses carry; `Retry-After` on refusals unless set.
    pub fn header_fields(self, fields: HeaderFields) -> Self {
        self.set(|settings| settings.fields = fields)
    }

    /// Sets the status that refusals are answered with; 429 unless set. [`Gate::status`] has precedence.
    pub fn status(self, status: StatusCode) -> Self {
        self.set(|settings| settings.answer.status = status)
    }

    /// Sets the status that clients are answered with who are banned or denied, such as 403; that of other refusals unless
    /// set. [`Gate::status`] has precedence.
    pub fn ban_status(self, status: StatusCode) -> Self {
        self.set(|settings| settings.answer.ban_status = Some(status))
    }

    /// Sets what a refusal's body is written as; [`RefusalBody::Problem`] unless set.
    pub fn body(self, body: RefusalBody) -> Self {
        self.set(|settings| settings.answer.body = body)
    }

    /// Answers requests that are over a limit with a response of one's own. Header fields are added to it unless it
    /// has them. Requests without a key, and gRPC requests where [`grpc`](Self::grpc) is set, are answered as before.
    pub fn respond_with<F>(self, respond: F) -> Self
    where
        F: Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static,
    {
        self.set(|settings| settings.answer.respond = Some(Arc::new(respond)))
    }

    /// Sets whether gRPC requests are refused in gRPC's own way: with status `RESOURCE_EXHAUSTED` and the time to
    /// wait in a `RetryInfo` and in `grpc-retry-pushback-ms`; not unless set, since their HTTP status is then 200.
    ///
    /// A request is gRPC by its content type.
    pub fn grpc(self, grpc: bool) -> Self {
        self.set(|settings| settings.answer.grpc = grpc)
    }

    /// Calls `observe` on every refusal by a limit that is enforced, for metrics. It must be quick and not block.
    pub fn on_refusal(self, observe: impl Fn(&Refusal<'_>) + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.on_refusal = Some(Arc::new(observe)))
    }

    /// Sets whether handlers find a [`RateLimited`](super::RateLimited) among the request's extensions; they
    /// do not unless set.
    pub fn attach_to_request(self, attach: bool) -> Self {
        self.set(|settings| settings.attach.request = attach)
    }

    /// Sets whether outer layers find a [`RateLimited`](super::RateLimited) among the response's extensions;
    /// they do not unless set.
    pub fn attach_to_response(self, attach: bool) -> Self {
        self.set(|settings| settings.attach.response = attach)
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        change(settings);
        settings.derive();
        self
    }
}

impl From<Gate> for RateLimitLayer {
    fn from(gate: Gate) -> Self {
        Self { settings: Arc::new(Settings::new(gate)) }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.settings))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("gates", &self.settings.gates).finish_non_exhaustive()
    }
}
