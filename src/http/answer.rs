//! The response to a request that is refused.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, WWW_AUTHENTICATE},
};

use super::{LimitStatus, MissingKey, RateLimited, RequestHead, grpc, headers::retry_after_seconds};
use crate::decision::Refused;

/// The problem type of draft-ietf-httpapi-ratelimit-headers-10, section 5.1.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const QUOTA_EXCEEDED_TITLE: &str = "Request cannot be satisfied as assigned quota has been exceeded";

/// The problem type of section 5.3, for clients who are banned.
const ABNORMAL_USAGE: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
const ABNORMAL_USAGE_TITLE: &str = "Request not satisfied due to detection of abnormal request pattern";

/// What a refusal's body is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalBody {
    /// `application/problem+json` (RFC 9457), of the type `quota-exceeded`, or `abnormal-usage-detected` for who is banned, with
    /// the limit in `violated-policies`; of no type of its own (`about:blank`) for who is denied.
    #[default]
    Problem,
    /// `application/json` with `error`, `message`, `limit` and `retry_after`.
    Json,
    /// `text/plain`.
    Text,
    /// Nothing.
    Empty,
}

/// A request that a limit refused, for responses and metrics of one's own.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    pub(super) request: RequestHead<'a>,
    pub(super) limited: &'a RateLimited,
    pub(super) limit: LimitStatus<'a>,
    pub(super) status: StatusCode,
}

impl<'a> Refusal<'a> {
    /// The request.
    pub fn request(&self) -> &RequestHead<'a> {
        &self.request
    }

    /// The limit that refused it.
    pub fn limit(&self) -> LimitStatus<'a> {
        self.limit
    }

    /// Every limit that was asked, of which the one that refused is the last.
    pub fn limited(&self) -> &'a RateLimited {
        self.limited
    }

    /// The status that it is to be answered with.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Why it was refused.
    pub fn refused(&self) -> Refused {
        self.limit.refused().unwrap_or(Refused::Level)
    }

    /// The earliest time at which the request would pass, for a banned client the end of the ban; `None` where its cost is
    /// above what the limit ever holds, and for a client that is denied.
    pub fn retry_after(&self) -> Option<Duration> {
        self.limit.retry_after()
    }

    fn message(&self) -> String {
        let name = self.limit.limit().name();
        match (self.refused(), self.retry_after().map(retry_after_seconds)) {
            (Refused::Banned, Some(1)) => {
                format!("The limit \"{name}\" has banned this client. Try again in 1 second.")
            }
            (Refused::Banned, Some(seconds)) => {
                format!("The limit \"{name}\" has banned this client. Try again in {seconds} seconds.")
            }
            (Refused::Banned | Refused::Denied, _) => format!("The limit \"{name}\" denies this client."),
            (_, Some(1)) => format!("The limit \"{name}\" is exceeded. Try again in 1 second."),
            (_, Some(seconds)) => {
                format!("The limit \"{name}\" is exceeded. Try again in {seconds} seconds.")
            }
            (_, None) => format!(
                "The request costs {} units, and the limit \"{name}\" never holds more than {}.",
                self.limit.cost(),
                self.limit.quota(self.limit.band()).1
            ),
        }
    }
}

type Respond = dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync;

/// How a layer answers what it refuses.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// For clients who are banned or denied.
    pub(super) ban_status: Option<StatusCode>,
    pub(super) body: RefusalBody,
    pub(super) respond: Option<Arc<Respond>>,
    pub(super) grpc: bool,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            ban_status: None,
            body: RefusalBody::default(),
            respond: None,
            grpc: false,
        }
    }
}

impl Answer {
    /// The status that a refusal for this reason is answered with.
    pub(super) fn status_of(&self, refused: Option<Refused>) -> StatusCode {
        let kept_out = matches!(refused, Some(Refused::Banned | Refused::Denied));
        self.ban_status.filter(|_| kept_out).unwrap_or(self.status)
    }

    /// Answers a request that is over a limit.
    pub(super) fn refuse(&self, refusal: &Refusal<'_>) -> Response<Bytes> {
        let status = refusal.status;
        if let Some(content_type) = self.grpc_type(&refusal.request) {
            return grpc::response(content_type, status, &refusal.message(), refusal.retry_after());
        }
        if let Some(respond) = &self.respond {
            return respond(refusal);
        }
        let message = refusal.message();
        let limit = refusal.limit.limit().name();
        let retry_after = refusal.retry_after().map(retry_after_seconds);
        match self.body {
            RefusalBody::Problem => {
                let mut problem = Object::new();
                match refusal.refused() {
                    Refused::Banned => {
                        problem.string("type", ABNORMAL_USAGE).string("title", ABNORMAL_USAGE_TITLE)
                    }
                    Refused::Denied => {
                        let title = status.canonical_reason().unwrap_or("");
                        problem.string("type", "about:blank").string("title", title)
                    }
                    _ => problem.string("type", QUOTA_EXCEEDED).string("title", QUOTA_EXCEEDED_TITLE),
                };
                problem.number("status", status.as_u16().into()).string("detail", &message);
                match refusal.refused() {
                    // No quota has anything to do with it.
                    Refused::Denied => {}
                    Refused::Banned => {
                        problem.strings("violated-policies", refusal.limit.limit().name());
                    }
                    _ => {
                        problem.strings("violated-policies", &refusal.limit.policy());
                    }
                }
                if let Some(seconds) = retry_after {
                    problem.number("retry_after", seconds);
                }
                response(status, "application/problem+json", problem.finish())
            }
            RefusalBody::Json => {
                let mut object = Object::new();
                object.string("error", "rate_limited").string("message", &message).string("limit", limit);
                if let Some(seconds) = retry_after {
                    object.number("retry_after", seconds);
                }
                response(status, "application/json", object.finish())
            }
            RefusalBody::Text => response(status, "text/plain; charset=utf-8", message + "\n"),
            RefusalBody::Empty => empty(status),
        }
    }

    /// Answers a request that has no key. What the server left out is not told to its clients.
    pub(super) fn keyless(
        &self,
        request: &RequestHead<'_>,
        missing: &MissingKey,
        status: StatusCode,
    ) -> Response<Bytes> {
        let message = match status.is_server_error() {
            true => "The request cannot be counted.".to_owned(),
            false => format!("The request needs {missing}."),
        };
        if let Some(content_type) = self.grpc_type(request) {
            return grpc::response(content_type, status, &message, None);
        }
        let mut response = match self.body {
            RefusalBody::Problem => {
                let mut problem = Object::new();
                problem
                    .string("type", "about:blank")
                    .string("title", status.canonical_reason().unwrap_or(""));
                problem.number("status", status.as_u16().into()).string("detail", &message);
                response(status, "application/problem+json", problem.finish())
            }
            RefusalBody::Json => {
                let mut object = Object::new();
                object.string("error", "no_key").string("message", &message);
                response(status, "application/json", object.finish())
            }
            RefusalBody::Text => response(status, "text/plain; charset=utf-8", message + "\n"),
            RefusalBody::Empty => empty(status),
        };
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110, section 15.5.2: a 401 says how to authenticate.
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    fn grpc_type(&self, request: &RequestHead<'_>) -> Option<&'static str> {
        self.grpc.then(|| grpc::content_type(request.headers())).flatten()
    }
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

/// A JSON object being written.
struct Object(String);

impl Object {
    fn new() -> Self {
        Self(String::with_capacity(256))
    }

    fn string(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name);
        push_json_string(&mut self.0, value);
        self
    }

    fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.name(name);
        let _ = write!(self.0, "{value}");
        self
    }

    /// An array of one string.
    fn strings(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name);
        self.0.push('[');
        push_json_string(&mut self.0, value);
        self.0.push(']');
        self
    }

    fn name(&mut self, name: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        push_json_string(&mut self.0, name);
        self.0.push(':');
    }

    fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_escaped() {
        let mut object = Object::new();
        object.string("a\"b", "c\\d\n\u{1f}é\u{2028}").number("n", u64::MAX).strings("s", "");
        let parsed: serde_json::Value = serde_json::from_str(&object.finish()).unwrap();
        assert_eq!(parsed["a\"b"], "c\\d\n\u{1f}é\u{2028}");
        assert_eq!(parsed["n"], u64::MAX);
        assert_eq!(parsed["s"], serde_json::json!([""]));
    }
}
