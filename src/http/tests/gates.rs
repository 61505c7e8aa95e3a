//! Who is let through.

use super::*;

#[tokio::test]
async fn each_key_has_its_own_quota() {
    let limiter = limiter("api", 2);
    let layer = layer(&limiter);
    let requests = [("a", "/"), ("a", "/"), ("a", "/"), ("b", "/"), ("a", "/")];
    assert_eq!(statuses(&layer, &requests).await, [200, 200, 429, 200, 429]);
    assert_eq!((spent(&limiter, "a"), spent(&limiter, "b")), (2, 1));
}

#[tokio::test]
async fn all_limits_must_allow_or_nothing_is_spent() {
    let (wide, narrow, last) = (limiter("wide", 10), limiter("narrow", 1), limiter("last", 10));
    let layer = layer(&wide)
        .and(gate(&narrow))
        .and(gate(&last))
        .header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
    let response = call(&layer, request("a", "/")).await;
    assert_eq!(header(&response, "ratelimit"), r#""wide";r=9;t=6, "narrow";r=0;t=60, "last";r=9;t=6"#);
    let policies = r#""wide";q=10;w=60, "narrow";q=1;w=60, "last";q=10;w=60"#;
    assert_eq!(header(&response, "ratelimit-policy"), policies);

    let response = call(&layer, request("a", "/")).await;
    assert_eq!(response.status(), 429);
    assert_eq!(header(&response, "ratelimit"), r#""wide";r=9;t=6, "narrow";r=0;t=60"#);
    assert_eq!(header(&response, "ratelimit-policy"), r#""wide";q=10;w=60, "narrow";q=1;w=60"#);
    assert_eq!((spent(&wide, "a"), spent(&narrow, "a"), spent(&last, "a")), (1, 1, 1));
    assert!(text(response).await.contains("narrow"));
}

#[tokio::test]
async fn requests_cost_what_the_gate_says() {
    let limiter = limiter("api", 10);
    let priced = gate(&limiter).cost(|request| request.uri().query().map_or(1, |cost| cost.parse().unwrap()));
    let layer = RateLimitLayer::from(priced);
    let requests = [("a", "/?7"), ("a", "/?4"), ("a", "/"), ("a", "/?2"), ("a", "/?0"), ("a", "/")];
    assert_eq!(statuses(&layer, &requests).await, [200, 429, 200, 200, 200, 429]);
    assert_eq!(spent(&limiter, "a"), 10);
}

#[tokio::test]
async fn a_cost_that_can_never_pass_has_no_time_to_retry_at() {
    let limiter = limiter("api", 10);
    let layer = RateLimitLayer::from(gate(&limiter).cost(|_| 11));
    let response = call(&layer, request("a", "/")).await;
    assert_eq!(response.status(), 429);
    assert_eq!(header(&response, "retry-after"), "absent");
    assert!(text(response).await.contains("never holds more than 10"));
    assert_eq!(spent(&limiter, "a"), 0);
}

#[tokio::test]
async fn skipped_requests_are_not_limited() {
    let limiter = limiter("api", 1);
    let layer = RateLimitLayer::from(gate(&limiter).skip(|request| request.uri().path() == "/health"));
    let requests = [("a", "/health"), ("a", "/"), ("a", "/"), ("a", "/health")];
    assert_eq!(statuses(&layer, &requests).await, [200, 200, 429, 200]);
    assert_eq!(spent(&limiter, "a"), 1);
}

#[tokio::test]
async fn requests_without_a_key_are_refused_unless_told_otherwise() {
    let limiter = limiter("api", 1);
    let anonymous = || Request::get("/").body(()).unwrap();
    let response = call(&layer(&limiter), anonymous()).await;
    assert_eq!((response.status().as_u16(), header(&response, "retry-after").as_str()), (400, "absent"));
    assert!(text(response).await.contains("x-user"));
    assert_eq!(call(&layer(&limiter), request("", "/")).await.status(), 400);

    let with = |then| RateLimitLayer::from(gate(&limiter).on_missing_key(then));
    let rejecting = with(OnMissingKey::Reject(StatusCode::FORBIDDEN));
    assert_eq!(call(&rejecting, anonymous()).await.status(), 403);
    let skipping = with(OnMissingKey::Skip);
    assert_eq!(call(&skipping, anonymous()).await.status(), 200);
    assert_eq!(limiter.live_keys(), 0);

    let sharing = with(OnMissingKey::Shared("anonymous"));
    assert_eq!(call(&sharing, anonymous()).await.status(), 200);
    assert_eq!(call(&sharing, anonymous()).await.status(), 429);
    assert_eq!(call(&sharing, request("anonymous", "/")).await.status(), 200);
    assert_eq!(call(&with(OnMissingKey::Shared("other")), anonymous()).await.status(), 200);
}

#[tokio::test]
async fn a_missing_key_spends_nothing_at_other_gates() {
    let (first, second) = (limiter("first", 5), limiter("second", 5));
    let layer = layer(&first).and(Gate::new(second.clone(), BearerToken));
    let response = call(&layer, request("a", "/")).await;
    assert_eq!((response.status().as_u16(), header(&response, "www-authenticate").as_str()), (401, "Bearer"));
    assert_eq!(first.live_keys() + second.live_keys(), 0);
}

#[tokio::test]
async fn what_the_server_left_out_is_not_told_to_clients() {
    let layer = RateLimitLayer::new(limiter("api", 1), ClientIp::new());
    let response = call(&layer, request("a", "/")).await;
    assert_eq!(response.status(), 500);
    assert!(!text(response).await.contains("address"));
}

#[tokio::test]
async fn a_shadow_limit_counts_but_neither_refuses_nor_shows() {
    let (shadow, real) = (limiter("shadow", 1), limiter("real", 3));
    let layer = RateLimitLayer::from(gate(&shadow).shadow(true))
        .and(gate(&real))
        .attach_to_response(true)
        .header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
    for left in [2, 1, 0] {
        let response = call(&layer, request("a", "/")).await;
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "ratelimit"), format!(r#""real";r={left};t={}"#, 20 * (3 - left)));
        assert_eq!(header(&response, "ratelimit-policy"), r#""real";q=3;w=60"#);
        let limited = response.extensions().get::<RateLimited>().unwrap();
        assert_eq!(limited.limit("shadow").unwrap().is_allowed(), left == 2);
        assert_eq!(limited.limit("shadow").unwrap().retry_after().is_some(), left != 2);
    }
    assert_eq!(call(&layer, request("a", "/")).await.status(), 429);
    assert_eq!((spent(&shadow, "a"), spent(&real, "a")), (1, 3));
    let keyless = RateLimitLayer::from(gate(&shadow).shadow(true));
    assert_eq!(call(&keyless, request("", "/")).await.status(), 200);
    assert_eq!(call(&keyless, request("a", "/")).await.status(), 200);
}
