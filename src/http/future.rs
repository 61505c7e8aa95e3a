//! The response to come.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use super::{InFlight, ResponseBody, settings::Settings, settle::Reservation};

pin_project! {
    /// The response of a service behind limits, or their refusal.
    ///
    /// Dropped before the response is there, it leaves spent what the request has spent under a limit that counts
    /// failures or successes, and gives back what is counted in flight ([`Count`](super::Count)).
    pub struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Free { #[pin] inner: F },
        Limited {
            #[pin]
            inner: F,
            reservation: Reservation,
            in_flight: Option<InFlight>,
        },
        Refused { response: Option<Box<Response<Bytes>>> },
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn free(inner: F) -> Self {
        Self { state: State::Free { inner } }
    }

    pub(super) fn limited(inner: F, reservation: Reservation, in_flight: Option<InFlight>) -> Self {
        Self { state: State::Limited { inner, reservation, in_flight } }
    }

    pub(super) fn refused(response: Box<Response<Bytes>>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body<Data: From<Bytes>>,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Free { inner } => match ready!(inner.poll(cx)) {
                Ok(response) => Poll::Ready(Ok(response.map(ResponseBody::service))),
                Err(error) => Poll::Ready(Err(error)),
            },
            StateProj::Limited { inner, reservation, in_flight } => {
                let mut response = match ready!(reservation.handle(|| inner.poll(cx))) {
                    Ok(response) => response,
                    Err(error) => {
                        reservation.fail();
                        return Poll::Ready(Err(error));
                    }
                };
                if let Some(limited) = reservation.respond(&response) {
                    Settings::finish(&mut response, limited);
                }
                Poll::Ready(Ok(match in_flight.take() {
                    Some(in_flight) => response.map(|body| ResponseBody::held(body, in_flight)),
                    None => response.map(ResponseBody::service),
                }))
            }
            StateProj::Refused { response } => {
                let response = response.take().expect("a future is not polled after it is ready");
                Poll::Ready(Ok(response.map(ResponseBody::refusal)))
            }
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
