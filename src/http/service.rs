//! The service that a layer makes of another.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    InFlight, RequestHead, ResponseBody, ResponseFuture,
    settings::{Passage, Settings},
    settle::Reservation,
};

/// A service behind limits; made by [`RateLimitLayer`](super::RateLimitLayer).
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body<Data: From<Bytes>>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        match self.settings.pass(&RequestHead::from(&request)) {
            Passage::Free => ResponseFuture::free(self.inner.call(request)),
            Passage::Limited(limited) => {
                let in_flight = InFlight::of(&limited);
                if let Some(in_flight) = &in_flight {
                    request.extensions_mut().insert(in_flight.clone());
                }
                if self.settings.attach.request {
                    request.extensions_mut().insert(limited.clone());
                }
                let mut reservation = Reservation::new(limited);
                let inner = reservation.handle(|| self.inner.call(request));
                ResponseFuture::limited(inner, reservation, in_flight)
            }
            Passage::Refused(response) => ResponseFuture::refused(response),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("gates", &self.settings.gates)
            .finish_non_exhaustive()
    }
}
