//! Response bodies: the service's, or the layer's own; and one that holds on to something until it ends.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::settle::InFlight;

pin_project! {
    /// A body that holds `guard` until it has ended or failed, or is dropped.
    ///
    /// For what must last as long as the response is being sent: a permit, a connection's slot, a timer.
    #[derive(Debug)]
    pub struct HoldBody<B, G> {
        #[pin]
        body: B,
        guard: Option<G>,
    }
}

impl<B, G> HoldBody<B, G> {
    /// Holds `guard` for the life of `body`.
    pub fn new(body: B, guard: G) -> Self {
        Self { body, guard: Some(guard) }
    }
}

impl<B: Body, G> Body for HoldBody<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        // A server need not poll again after a frame that it is told is the last.
        if !matches!(frame, Some(Ok(_))) || this.body.is_end_stream() {
            *this.guard = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pin_project! {
    /// The body of a response that has passed the layer: the service's own, or a refusal's.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

// A response is moved more often than it is made, and what is above 128 bytes by a call. So all but the service's own body is
// boxed, and nothing is added to a body that has a bit pattern to spare, as a boxed one has.
pin_project! {
    #[project = KindProj]
    #[derive(Debug)]
    enum Kind<B> {
        Service { #[pin] body: B },
        Other { other: Pin<Box<Other<B>>> },
    }
}

pin_project! {
    #[project = OtherProj]
    #[derive(Debug)]
    enum Other<B> {
        Held { #[pin] body: HoldBody<B, InFlight> },
        Refusal { bytes: Bytes },
    }
}

impl<B> ResponseBody<B> {
    #[inline]
    pub(super) fn service(body: B) -> Self {
        Self { kind: Kind::Service { body } }
    }

    pub(super) fn held(body: B, in_flight: InFlight) -> Self {
        Self::other(Other::Held { body: HoldBody::new(body, in_flight) })
    }

    pub(super) fn refusal(bytes: Bytes) -> Self {
        Self::other(Other::Refusal { bytes })
    }

    fn other(other: Other<B>) -> Self {
        Self { kind: Kind::Other { other: Box::pin(other) } }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data: From<Bytes>>,
{
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().kind.project() {
            KindProj::Service { body } => body.poll_frame(cx),
            KindProj::Other { other } => match other.as_mut().project() {
                OtherProj::Held { body } => body.poll_frame(cx),
                OtherProj::Refusal { bytes } => {
                    let bytes = std::mem::take(bytes);
                    Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes.into()))))
                }
            },
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Service { body } => body.is_end_stream(),
            Kind::Other { other } => match &**other {
                Other::Held { body } => body.is_end_stream(),
                Other::Refusal { bytes } => bytes.is_empty(),
            },
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Service { body } => body.size_hint(),
            Kind::Other { other } => match &**other {
                Other::Held { body } => body.size_hint(),
                Other::Refusal { bytes } => SizeHint::with_exact(bytes.len() as u64),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Empty, Full};
    use std::{convert::Infallible, sync::Arc};

    /// A body of these frames, which does not know its end before it is polled for it.
    fn frames(data: &'static [&'static str]) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        struct Frames(std::slice::Iter<'static, &'static str>);
        impl Body for Frames {
            type Data = Bytes;
            type Error = Infallible;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
                Poll::Ready(self.0.next().map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
            }
        }
        Frames(data.iter())
    }

    #[tokio::test]
    async fn the_guard_is_held_until_the_body_ends() {
        let guard = Arc::new(());
        let mut body = HoldBody::new(frames(&["a", "b"]), Arc::clone(&guard));
        assert!(body.frame().await.is_some());
        assert!(body.frame().await.is_some());
        assert_eq!(Arc::strong_count(&guard), 2);
        assert!(body.frame().await.is_none());
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[tokio::test]
    async fn the_guard_is_let_go_with_a_frame_known_to_be_the_last() {
        let guard = Arc::new(());
        let mut body = HoldBody::new(Full::new(Bytes::from_static(b"a")), Arc::clone(&guard));
        assert_eq!(Arc::strong_count(&guard), 2);
        assert!(body.frame().await.is_some());
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[tokio::test]
    async fn the_guard_is_let_go_when_the_body_is_dropped_halfway() {
        let guard = Arc::new(());
        let mut body = HoldBody::new(frames(&["a", "b"]), Arc::clone(&guard));
        assert!(body.frame().await.is_some());
        drop(body);
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[tokio::test]
    async fn the_guard_is_let_go_when_the_body_fails() {
        struct Broken;
        impl Body for Broken {
            type Data = Bytes;
            type Error = &'static str;
            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
                Poll::Ready(Some(Err("broken")))
            }
        }
        let guard = Arc::new(());
        let mut body = HoldBody::new(Broken, Arc::clone(&guard));
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()));
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[test]
    fn it_is_no_larger_than_a_boxed_body() {
        type Boxed = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;
        assert_eq!(size_of::<ResponseBody<Boxed>>(), size_of::<Boxed>());
    }

    #[tokio::test]
    async fn a_refusal_is_sent_in_one_frame() {
        let body = ResponseBody::<Empty<Bytes>>::refusal(Bytes::from_static(b"no"));
        assert_eq!(body.size_hint().exact(), Some(2));
        assert!(!body.is_end_stream());
        assert_eq!(body.collect().await.unwrap().to_bytes(), "no");
        assert!(ResponseBody::<Empty<Bytes>>::refusal(Bytes::new()).is_end_stream());
    }
}
