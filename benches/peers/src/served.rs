//! A service behind a layer: what the layer adds to one call.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use axum::body::Body;
use governor::middleware::NoOpMiddleware;
use http::{Request, Response};
use ratemesh::{
    Limiter,
    http::{ClientIp, RateLimit, RateLimitLayer},
};
use tower::{Layer as _, Service};
use tower_governor::{
    GovernorError, GovernorLayer,
    governor::{Governor, GovernorConfigBuilder},
    key_extractor::KeyExtractor,
};

use crate::{Failure, subjects::Subject};

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), 40_000);

/// A service that answers at once.
#[derive(Clone, Copy)]
pub struct Bare;

impl Service<Request<()>> for Bare {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Body::from("served"))))
    }
}

/// A service that is called once a check, by one client.
pub struct Served<S>(Mutex<S>);

impl Served<Bare> {
    pub fn bare() -> Self {
        Self(Mutex::new(Bare))
    }
}

impl Served<RateLimit<Bare>> {
    /// Behind ratemesh's layer, which counts by the client's address.
    pub fn limited(limiter: Limiter) -> Self {
        let by_peer = ClientIp::new().peer(|address: &SocketAddr| *address);
        Self(Mutex::new(RateLimitLayer::new(limiter, by_peer).layer(Bare)))
    }
}

/// The address of the connection, where ratemesh's layer finds it too.
#[derive(Clone, Debug)]
pub struct ByPeer;

impl KeyExtractor for ByPeer {
    type Key = IpAddr;

    fn extract<T>(&self, request: &Request<T>) -> Result<IpAddr, GovernorError> {
        request.extensions().get().map(SocketAddr::ip).ok_or(GovernorError::UnableToExtractKey)
    }
}

impl Served<Governor<ByPeer, NoOpMiddleware<governor::clock::QuantaInstant>, Bare, Body>> {
    /// Behind tower_governor's layer, which counts by the client's address.
    pub fn governed(period: std::time::Duration, burst: u32) -> Result<Self, Failure> {
        let mut builder = GovernorConfigBuilder::default();
        let config = builder.period(period).burst_size(burst).key_extractor(ByPeer).finish();
        let config = config.ok_or("tower_governor takes no such quota")?;
        Ok(Self(Mutex::new(GovernorLayer::new(config).layer(Bare))))
    }
}

impl<S, B> Subject<String> for Served<S>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Send,
{
    #[inline]
    fn admits(&self, _: &String) -> bool {
        let mut request = Request::new(());
        request.extensions_mut().insert(CLIENT);
        let mut service = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut context = Context::from_waker(Waker::noop());
        if service.poll_ready(&mut context).is_pending() {
            return false;
        }
        let response = pin!(service.call(request));
        // Whoever calls reads the status only; the body is dropped as it came.
        matches!(response.poll(&mut context), Poll::Ready(Ok(response)) if response.status().is_success())
    }
}
