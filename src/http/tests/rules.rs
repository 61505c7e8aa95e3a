//! Clients who are banned, listed, or would be refused by a limit that is tried out.

use std::{net::SocketAddr, time::Duration};

use super::*;
use crate::{Override, Refused, http::PeerAddr};

fn built(builder: crate::LimitBuilder) -> Limiter {
    Limiter::with_clock(builder.build().unwrap(), ManualClock::new())
}

fn bucket(name: &str) -> crate::LimitBuilder {
    Limit::token_bucket(name, Quota::per_minute(2))
}

fn from(address: &str) -> Request<()> {
    let address: SocketAddr = address.parse().unwrap();
    Request::get("/200").extension(PeerAddr(address)).body(()).unwrap()
}

#[tokio::test]
async fn a_banned_client_is_told_for_how_long_with_the_status_that_is_set() {
    let limiter = built(bucket("api"));
    limiter.ban("mallory", Duration::from_secs(90)).unwrap();
    let response = call(&layer(&limiter), request("mallory", "/200")).await;
    assert_eq!(
        (response.status(), header(&response, "retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, "90".into())
    );
    let body = text(response).await;
    assert!(
        body.contains("has banned this client. Try again in 90 seconds.")
            && body.contains("abnormal-usage-detected"),
        "{body}"
    );

    let forbidding = layer(&limiter).ban_status(StatusCode::FORBIDDEN);
    let requests = [("mallory", "/200"), ("alice", "/200"), ("alice", "/200"), ("alice", "/200")];
    assert_eq!(statuses(&forbidding, &requests).await, [403, 200, 200, 429]);
    let gate = RateLimitLayer::from(gate(&limiter).status(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(statuses(&gate.ban_status(StatusCode::FORBIDDEN), &[("mallory", "/200")]).await, [503]);
    // Not even what costs nothing.
    let free = RateLimitLayer::from(super::gate(&limiter).cost(|_| 0)).ban_status(StatusCode::FORBIDDEN);
    assert_eq!(statuses(&free, &[("mallory", "/200"), ("alice", "/200")]).await, [403, 200]);
}

#[tokio::test]
async fn who_exceeds_a_limit_that_bans_is_answered_as_banned_at_once() {
    let limiter = built(bucket("api").ban_on_exceed(Duration::from_secs(3_600)));
    let layer = layer(&limiter).ban_status(StatusCode::FORBIDDEN);
    let requests = [("alice", "/200"); 4];
    assert_eq!(statuses(&layer, &requests).await, [200, 200, 403, 403]);
    assert_eq!(limiter.bans().len(), 1);
}

#[tokio::test]
async fn listed_networks_apply_to_the_clients_address() {
    let limiter = built(bucket("api").allow("10.0.0.0/8").deny("10.1.0.0/16").deny("2001:db8::7/128"));
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::new())
        .ban_status(StatusCode::FORBIDDEN)
        .header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
    for _ in 0..5 {
        assert_eq!(call(&layer, from("10.9.9.9:1")).await.status(), StatusCode::OK);
        let denied = call(&layer, from("10.1.2.3:1")).await;
        assert_eq!(
            (denied.status(), header(&denied, "retry-after")),
            (StatusCode::FORBIDDEN, "absent".into())
        );
        let body = text(denied).await;
        assert!(body.contains("denies this client") && body.contains("about:blank"), "{body}");
    }
    assert_eq!(limiter.live_keys(), 0);
    // The list goes by the address, and not by the /64 that it is limited by.
    assert_eq!(call(&layer, from("[2001:db8::7]:1")).await.status(), StatusCode::FORBIDDEN);
    assert_eq!(call(&layer, from("[2001:db8::8]:1")).await.status(), StatusCode::OK);
    let stranger = [(); 3].map(|()| from("192.0.2.1:1"));
    let mut answers = Vec::new();
    for request in stranger {
        answers.push(call(&layer, request).await.status().as_u16());
    }
    assert_eq!(answers, [200, 200, 429]);
    // By a function that gives an address, and where another extractor finds nothing.
    let by_function = key_fn(|request: &RequestHead<'_>| {
        request.extensions().get::<PeerAddr>().map(|_| std::net::IpAddr::from([10, 1, 2, 3]))
    });
    let layer = RateLimitLayer::new(limiter, user().or(by_function)).ban_status(StatusCode::FORBIDDEN);
    assert_eq!(call(&layer, from("192.0.2.1:1")).await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn what_is_exempt_is_not_given_back() {
    let limiter = built(bucket("api"));
    assert!(limiter.check("alice").is_allowed());
    limiter.set_override("alice", Override::Allow).unwrap();
    // A request that succeeds would have its unit given back.
    let failures = RateLimitLayer::from(gate(&limiter).count(Count::Failures));
    assert_eq!(statuses(&failures, &[("alice", "/200"), ("alice", "/500")]).await, [200, 500]);
    limiter.clear_override("alice").unwrap();
    assert_eq!(spent(&limiter, "alice"), 1);
}

#[tokio::test]
async fn a_limit_that_is_tried_out_is_to_the_layer_what_a_gate_that_is_tried_out_is() {
    let (limit, enforced) =
        (built(bucket("tried").shadow(true)), built(Limit::token_bucket("api", Quota::per_minute(6))));
    let by_gate = built(bucket("tried"));
    for tried in [gate(&limit), gate(&by_gate).shadow(true)] {
        assert!(tried.is_shadow());
        let layer = RateLimitLayer::from(tried)
            .and(gate(&enforced).count(Count::Failures))
            .header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
        let requests = [("alice", "/200"); 5];
        assert_eq!(statuses(&layer, &requests).await, [200; 5]);
        let response = call(&layer, request("alice", "/200")).await;
        assert!(!header(&response, "ratelimit").contains("tried"));
    }
    // Nothing was given back that had not been spent: both are exhausted, by two requests.
    assert_eq!((spent(&limit, "alice"), spent(&by_gate, "alice")), (2, 2));
    assert_eq!(limit.check("alice").would_have_been(), Some(Refused::Level));
    // One that is refused by an enforced limit gives back only what it had spent on the other.
    let full = built(bucket("full"));
    full.ban("alice", Duration::from_secs(5)).unwrap();
    let layer = RateLimitLayer::from(gate(&limit)).and(gate(&full));
    assert_eq!(statuses(&layer, &[("alice", "/200")]).await, [429]);
    assert_eq!(spent(&limit, "alice"), 2);
}
