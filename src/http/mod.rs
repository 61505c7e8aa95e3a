//! A tower layer that answers HTTP requests over the limit.
//!
//! [`RateLimitLayer`] sits on any service of `http::Request<B>`: axum, hyper, tonic. For each request it finds a
//! [key](KeyExtractor), checks a [`Limiter`](crate::Limiter) for it, and either calls the service or answers in its
//! place. How one limit counts is set on a [`Gate`]; what responses look like, on the layer.
//!
//! The walk of a request: `service` hands its [head](RequestHead) to `admit`, which has each `gate` find a key and
//! check it, all or nothing. A refusal is written by `answer` and `headers`. Otherwise the service is called, `future`
//! waits for it, and `settle` gives back what does not count.
//!
//! `configs/recipes.toml` has limits for what follows, with figures to start from:
//!
//! | for | limit by | set |
//! |---|---|---|
//! | login | client and account; client | [`Count::Failures`] on both; a ban on the second, and [`RateLimitLayer::ban_status`] |
//! | registration | client | [`Count::Successes`] |
//! | password reset | account; client | all requests count |
//! | one-time code | account | [`Count::Failures`], and a ban |
//! | paid upstream | account; and `()`, the budget of the whole service | [`Gate::cost`] |
//! | heavy report | account | nothing: a [limit on concurrency](crate::Limit::concurrency) holds its permit until the response is sent |
//! | public API | account that a layer outside has verified, [`or`](KeyExtractor::or) else client | [`HeaderFields::rate_limit`] |
//! | WebSocket | client for handshakes and for connections; connection for each message | [`InFlight`], [`LimitStatus::key`] |
//! | crawler | client's /48 and /24, evenly | [`ClientIp::ipv6_prefix`], [`Gate::skip`] for those that are welcome |
//! | suspicious address | client | [`Count::Failures`] with [`Gate::failure_if`] on 401, 403 and 404, and a ban |
//!
//! What clients send is parsed in `extract` only. Nothing there can panic or grow, and no key or credential is logged
//! or sent on.

mod admit;
mod answer;
mod base64;
mod body;
mod extract;
mod few;
mod future;
mod gate;
mod grpc;
mod head;
mod headers;
mod layer;
mod limited;
mod log;
mod service;
mod settings;
mod settle;
#[cfg(test)]
mod tests;

pub use answer::{Refusal, RefusalBody};
pub use body::{HoldBody, ResponseBody};
pub use extract::{
    BearerToken, ClientIp, Extension, ForwardedField, Header, KeyExtractor, KeyFn, Method, MissingKey,
    NetworkError, Or, Path, Peer, PeerAddr, TrustedProxies, extension, key_fn,
};
pub use future::ResponseFuture;
pub use gate::{Count, Gate, OnMissingKey};
pub use head::RequestHead;
pub use headers::{Edition, HeaderFields, LegacyReset};
pub use layer::RateLimitLayer;
pub use limited::{LimitStatus, RateLimited};
pub use service::RateLimit;
pub use settle::InFlight;
