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
        Called {
            #[pin]
            inner: F,
            reservation: Option<Reservation>,
            in_flight: Option<InFlight>,
        },
        Refused { response: Option<Box<Response<Bytes>>> },
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn free(inner: F) -> Self {
        Self { state: State::Called { inner, reservation: None, in_flight: None } }
    }

    pub(super) fn limited(inner: F, reservation: Reservation, in_flight: Option<InFlight>) -> Self {
        Self { state: State::Called { inner, reservation: Some(reservation), in_flight } }
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
            StateProj::Called { inner, reservation, in_flight } => {
                let Some(settling) = reservation else {
                    let unchanged =
                        |response: Response<B>| response.map(|body| ResponseBody::service(body, None));
                    return inner.poll(cx).map_ok(unchanged);
                };
                let result = ready!(settling.handle(|| inner.poll(cx)));
                let mut response = match result {
                    Ok(response) => response,
                    Err(error) => {
                        settling.fail();
                        return Poll::Ready(Err(error));
                    }
                };
                if let Some(limited) = settling.respond(&response) {
                    Settings::finish(&mut response, limited);
                }
                let in_flight = in_flight.take();
                Poll::Ready(Ok(response.map(|body| ResponseBody::service(body, in_flight))))
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
