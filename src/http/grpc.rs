//! Refusals for gRPC clients: a response of headers only, which says `RESOURCE_EXHAUSTED` and when to retry.
//!
//! The details are a `google.rpc.Status` that holds a `google.rpc.RetryInfo`. Both are encoded by hand: three
//! nested messages of five fields do not need a protobuf library.

use std::{fmt::Write as _, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE};

use super::base64;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// Whether the request speaks gRPC or gRPC-Web, and in which content type it is to be answered.
pub(super) fn content_type(headers: &HeaderMap) -> Option<&'static str> {
    let (start, rest) = headers.get(CONTENT_TYPE)?.as_bytes().split_at_checked(b"application/grpc".len())?;
    if !start.eq_ignore_ascii_case(b"application/grpc") {
        return None;
    }
    match rest {
        [] | [b'+' | b';' | b' ', ..] => Some("application/grpc"),
        [b'-', web @ ..] => {
            let web = web.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'-').next()?;
            match web.to_ascii_lowercase().as_slice() {
                b"web" => Some("application/grpc-web+proto"),
                b"web-text" => Some("application/grpc-web-text+proto"),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A response of headers only. gRPC's code follows from the HTTP status that others would be answered with.
pub(super) fn response(
    content_type: &'static str,
    status: StatusCode,
    message: &str,
    retry_after: Option<Duration>,
) -> Response<Bytes> {
    let code = code(status);
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(GRPC_STATUS, u16::from(code).into());
    if let Ok(message) = HeaderValue::try_from(percent_encoded(message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    // A client that retries by itself goes by this, in milliseconds; below 0, it does not (gRPC proposal A6).
    let pushback =
        retry_after.map_or(-1, |wait| i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    headers.insert(GRPC_PUSHBACK, pushback.into());
    if let Some(wait) = retry_after {
        let mut details = String::new();
        base64::push(&mut details, &status_message(code, message, wait), base64::Padding::No);
        if let Ok(details) = HeaderValue::try_from(details) {
            headers.insert(GRPC_DETAILS, details);
        }
    }
    response
}

/// The nearest of gRPC's codes.
fn code(status: StatusCode) -> u8 {
    match status {
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::BAD_REQUEST => 3,
        StatusCode::UNAUTHORIZED => 16,
        StatusCode::FORBIDDEN => 7,
        StatusCode::INTERNAL_SERVER_ERROR => 13,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        _ => 2,
    }
}

fn percent_encoded(message: &str) -> String {
    message.bytes().fold(String::with_capacity(message.len()), |mut out, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}

/// `google.rpc.Status { code: 1, message: 2, details: 3 }`, with one `Any { type_url: 1, value: 2 }` that holds a
/// `RetryInfo { retry_delay: 1 }`, a `Duration { seconds: 1, nanos: 2 }`.
fn status_message(code: u8, message: &str, wait: Duration) -> Vec<u8> {
    let mut delay = Vec::new();
    push_integer(&mut delay, 1, wait.as_secs());
    push_integer(&mut delay, 2, wait.subsec_nanos().into());
    let mut retry_info = Vec::new();
    push_bytes(&mut retry_info, 1, &delay);
    let mut any = Vec::new();
    push_bytes(&mut any, 1, RETRY_INFO.as_bytes());
    push_bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    push_integer(&mut status, 1, code.into());
    push_bytes(&mut status, 2, message.as_bytes());
    push_bytes(&mut status, 3, &any);
    status
}

fn push_integer(out: &mut Vec<u8>, field: u8, value: u64) {
    // A field that holds its default is left out.
    if value > 0 {
        out.push(field << 3);
        push_varint(out, value);
    }
}

fn push_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    const LENGTH_DELIMITED: u8 = 2;
    out.push(field << 3 | LENGTH_DELIMITED);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered_in(content_type: &str) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::try_from(content_type).unwrap());
        super::content_type(&headers)
    }

    #[test]
    fn grpc_requests_are_told_by_their_content_type() {
        for value in
            ["application/grpc", "application/grpc+proto", "Application/gRPC;x=y", "application/grpc+json"]
        {
            assert_eq!(answered_in(value), Some("application/grpc"), "{value}");
        }
        assert_eq!(answered_in("application/grpc-web"), Some("application/grpc-web+proto"));
        assert_eq!(answered_in("application/grpc-web+proto"), Some("application/grpc-web+proto"));
        assert_eq!(answered_in("application/grpc-web-text"), Some("application/grpc-web-text+proto"));
        for value in
            ["", "application/json", "application/grpcx", "application/grpc-x", "text/application/grpc"]
        {
            assert_eq!(answered_in(value), None, "{value}");
        }
    }

    #[test]
    fn the_message_is_percent_encoded() {
        let response = response("application/grpc", StatusCode::TOO_MANY_REQUESTS, "100 % é\n", None);
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[GRPC_STATUS], "8");
        assert_eq!(response.headers()[GRPC_MESSAGE], "100 %25 %C3%A9%0A");
        assert!(!response.headers().contains_key(GRPC_DETAILS));
        assert_eq!(response.headers()[GRPC_PUSHBACK], "-1");
    }

    #[test]
    fn clients_that_retry_are_told_the_milliseconds() {
        for (wait, expected) in [
            (Duration::from_nanos(1), "1"),
            (Duration::from_millis(1_500), "1500"),
            (Duration::MAX, "2147483647"),
        ] {
            let response = response("application/grpc", StatusCode::TOO_MANY_REQUESTS, "", Some(wait));
            assert_eq!(response.headers()[GRPC_PUSHBACK], expected);
        }
    }

    #[test]
    fn the_details_hold_the_time_to_wait() {
        // What protoc encodes from the text form `code: 8 message: "no" details { [type.googleapis.com/
        // google.rpc.RetryInfo] { retry_delay { seconds: 300 nanos: 5 } } }`.
        let mut expected = vec![0x08, 8, 0x12, 2, b'n', b'o', 0x1a, 51, 0x0a, 40];
        expected.extend(RETRY_INFO.bytes());
        expected.extend([0x12, 7, 0x0a, 5, 0x08, 0xac, 0x02, 0x10, 5]);
        assert_eq!(RETRY_INFO.len(), 40);
        assert_eq!(status_message(8, "no", Duration::new(300, 5)), expected);
    }
}
