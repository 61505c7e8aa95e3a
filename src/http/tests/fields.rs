//! The header fields of each kind of limit, read back by a parser of structured fields that is not ours.

use std::time::Duration;

use sfv::{BareItem, ListEntry, Parser};

use super::*;
use crate::{LimitBuilder, Override};

fn on(clock: &ManualClock, builder: LimitBuilder) -> Limiter {
    Limiter::with_clock(builder.build().unwrap(), clock.clone())
}

fn showing(limiter: &Limiter, edition: Edition) -> RateLimitLayer {
    layer(limiter).header_fields(HeaderFields::new().rate_limit(edition).legacy(LegacyReset::Seconds))
}

/// The items of a field, each as its name and the integers among its parameters.
fn items<B>(response: &Response<B>, field: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let field = header(response, field);
    let list = Parser::parse_list(field.as_bytes()).unwrap_or_else(|error| panic!("{field}: {error}"));
    let items = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => {
            let integer = |(name, value): (&String, &BareItem)| Some((name.to_string(), value.as_int()?));
            let name = item.bare_item.as_str().unwrap_or_else(|| panic!("{field}")).to_owned();
            (name, item.params.iter().filter_map(integer).collect())
        }
        ListEntry::InnerList(_) => panic!("{field}"),
    });
    items.collect()
}

fn item(name: &str, parameters: &[(&str, i64)]) -> (String, Vec<(String, i64)>) {
    (name.to_owned(), parameters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
}

async fn get(layer: &RateLimitLayer) -> Response<ResponseBody<Body>> {
    call(layer, request("a", "/")).await
}

#[tokio::test]
async fn each_quota_of_a_limit_has_a_policy() {
    let clock = ManualClock::new();
    let api = Limit::token_bucket("api", Quota::per_second(2)).and(Quota::per_hour(3));
    let (limiter, other) = (on(&clock, api), on(&clock, Limit::token_bucket("other", Quota::per_minute(60))));
    let layer = showing(&limiter, Edition::Draft10).and(gate(&other));
    let response = get(&layer).await;
    let policies = [
        item("api", &[("q", 2), ("w", 1)]),
        item("api~2", &[("q", 3), ("w", 3_600)]),
        item("other", &[("q", 60), ("w", 60)]),
    ];
    assert_eq!(items(&response, "ratelimit-policy"), policies);
    let standings = [
        item("api", &[("r", 1), ("t", 1)]),
        item("api~2", &[("r", 2), ("t", 1_200)]),
        item("other", &[("r", 59), ("t", 1)]),
    ];
    assert_eq!(items(&response, "ratelimit"), standings);
    // The fields that show one quota show the one with the least left.
    assert_eq!(
        (header(&response, "x-ratelimit-limit"), header(&response, "x-ratelimit-remaining")),
        ("2".into(), "1".into())
    );
    assert_eq!(get(&layer).await.status(), 200);

    let refused = get(&layer).await;
    assert_eq!(
        (refused.status(), header(&refused, "retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, "1".into())
    );
    // What was not asked after the refusal is not shown.
    assert_eq!(items(&refused, "ratelimit-policy"), policies[..2]);
    assert_eq!(
        items(&refused, "ratelimit"),
        [item("api", &[("r", 0), ("t", 1)]), item("api~2", &[("r", 1), ("t", 2_400)])]
    );
    assert!(text(refused).await.contains(r#""violated-policies":["api"]"#));

    clock.advance(Duration::from_secs(1));
    assert_eq!(get(&layer).await.status(), 200);
    let refused = get(&layer).await;
    assert_eq!(header(&refused, "retry-after"), "1199");
    assert_eq!(
        items(&refused, "ratelimit"),
        [item("api", &[("r", 1), ("t", 1)]), item("api~2", &[("r", 0), ("t", 1_199)])]
    );
    assert_eq!(
        (header(&refused, "x-ratelimit-limit"), header(&refused, "x-ratelimit-reset")),
        ("3".into(), "1199".into())
    );
    let body = text(refused).await;
    assert!(body.contains(r#""violated-policies":["api~2"]"#), "{body}");

    // Who is kept out whatever is left has exceeded no quota of the several.
    limiter.ban("a", Duration::from_secs(90)).unwrap();
    let body = text(get(&layer).await).await;
    assert!(body.contains(r#""violated-policies":["api"]"#), "{body}");
    limiter.set_override("a", Override::Deny).unwrap();
    let body = text(get(&layer).await).await;
    assert!(body.contains("about:blank") && !body.contains("violated-policies"), "{body}");
}

#[tokio::test]
async fn windows_say_when_they_have_more() {
    let clock = ManualClock::new();
    let fixed = on(&clock, Limit::fixed_window("fixed", Quota::per_minute(2)));
    let sliding = on(&clock, Limit::sliding_window("sliding", Quota::per_minute(2)));
    let leaky = on(&clock, Limit::leaky_bucket("leaky", Quota::per_minute(2)));
    // A clock set by hand begins with a minute.
    clock.advance(Duration::from_secs(12));
    for (limiter, name, first, wait) in
        [(&fixed, "fixed", (1, 48), 48), (&sliding, "sliding", (1, 60), 60), (&leaky, "leaky", (0, 30), 30)]
    {
        let layer = showing(limiter, Edition::Draft10);
        let response = get(&layer).await;
        assert_eq!(items(&response, "ratelimit-policy"), [item(name, &[("q", 2), ("w", 60)])]);
        let (remaining, standings) = (first.0, items(&response, "ratelimit"));
        assert_eq!(standings.len(), 1);
        assert_eq!((&*standings[0].0, standings[0].1[0].1), (name, remaining));
        // Whatever comes back in whole sub-windows may come back one later.
        assert!((first.1..=first.1 + 6).contains(&standings[0].1[1].1), "{standings:?}");
        let refused = async {
            loop {
                let response = get(&layer).await;
                if response.status() == StatusCode::TOO_MANY_REQUESTS {
                    return response;
                }
            }
        };
        let refused = refused.await;
        let retry_after: i64 = header(&refused, "retry-after").parse().unwrap();
        assert!((wait..=wait + 6).contains(&retry_after), "{name}: {retry_after}");
        assert_eq!(items(&refused, "ratelimit"), [item(name, &[("r", 0), ("t", retry_after)])]);
    }
}

#[tokio::test]
async fn nobody_knows_when_a_permit_comes_back() {
    let limiter = on(&ManualClock::new(), Limit::concurrency("reports", 1));
    let layer = showing(&limiter, Edition::Draft10);
    let held = get(&layer).await;
    assert_eq!(header(&held, "ratelimit-policy"), r#""reports";q=1;qu="concurrent-requests""#);
    assert_eq!(items(&held, "ratelimit-policy"), [item("reports", &[("q", 1)])]);
    assert_eq!(items(&held, "ratelimit"), [item("reports", &[("r", 0)])]);
    let refused = get(&layer).await;
    assert_eq!(
        (refused.status(), header(&refused, "retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, "1".into())
    );
    assert_eq!(items(&refused, "ratelimit"), [item("reports", &[("r", 0)])]);
    assert!(text(refused).await.contains("Try again in 1 second."));

    // Older fields have no way to leave the time out.
    for edition in [Edition::Draft6, Edition::Draft7] {
        let refused = get(&showing(&limiter, edition)).await;
        assert_eq!(header(&refused, "ratelimit-policy"), "1");
        match edition {
            Edition::Draft6 => assert_eq!(header(&refused, "ratelimit-reset"), "1"),
            _ => assert_eq!(header(&refused, "ratelimit"), "limit=1, remaining=0, reset=1"),
        }
        assert_eq!(header(&refused, "x-ratelimit-reset"), "1");
    }
    drop(held);
    let response = get(&showing(&limiter, Edition::Draft7)).await;
    assert_eq!(header(&response, "ratelimit"), "limit=1, remaining=0, reset=1");
    drop(response);

    // With a cost above all permits, there is no time at which it would pass.
    let dear = RateLimitLayer::from(gate(&limiter).cost(|_| 2));
    assert_eq!(header(&get(&dear).await, "retry-after"), "absent");
}

#[tokio::test]
async fn who_is_kept_out_is_told_until_when_if_anybody_knows() {
    let limiter = on(&ManualClock::new(), Limit::token_bucket("api", Quota::per_minute(5)));
    limiter.ban("a", Duration::from_secs(90)).unwrap();
    let banned = get(&showing(&limiter, Edition::Draft10)).await;
    assert_eq!(header(&banned, "retry-after"), "90");
    assert_eq!(items(&banned, "ratelimit"), [item("api", &[("r", 0), ("t", 90)])]);
    assert_eq!(
        (header(&banned, "x-ratelimit-remaining"), header(&banned, "x-ratelimit-reset")),
        ("0".into(), "90".into())
    );

    limiter.set_override("a", Override::Deny).unwrap();
    let denied = get(&showing(&limiter, Edition::Draft10)).await;
    assert_eq!(
        (denied.status(), header(&denied, "retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, "absent".into())
    );
    assert_eq!(items(&denied, "ratelimit-policy"), [item("api", &[("q", 5), ("w", 60)])]);
    assert_eq!(items(&denied, "ratelimit"), [item("api", &[("r", 0)])]);
    for edition in [Edition::Draft6, Edition::Draft7] {
        let denied = get(&showing(&limiter, edition)).await;
        assert_eq!(header(&denied, "ratelimit-policy"), "5;w=60");
        for field in
            ["ratelimit", "ratelimit-limit", "ratelimit-reset", "x-ratelimit-reset", "x-ratelimit-limit"]
        {
            assert_eq!(header(&denied, field), "absent");
        }
    }

    limiter.set_override("a", Override::Allow).unwrap();
    limiter.unban("a").unwrap();
    let exempt = get(&showing(&limiter, Edition::Draft10)).await;
    assert_eq!(items(&exempt, "ratelimit"), [item("api", &[("r", 5), ("t", 0)])]);
}

#[tokio::test]
async fn what_is_given_back_is_shown_on_each_quota() {
    let clock = ManualClock::new();
    let limiter = on(&clock, Limit::fixed_window("logins", Quota::per_minute(2)).and(Quota::per_hour(5)));
    let layer = RateLimitLayer::from(gate(&limiter).count(Count::Failures))
        .header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
    let failed = call(&layer, request("a", "/401")).await;
    let remaining = |response: &Response<_>| {
        items(response, "ratelimit").into_iter().map(|(_, parameters)| parameters[0].1).collect::<Vec<_>>()
    };
    assert_eq!(remaining(&failed), [1, 4]);
    assert_eq!(remaining(&call(&layer, request("a", "/200")).await), [1, 4]);
}

#[tokio::test]
async fn a_key_with_its_own_quota_is_told_that_one_and_no_other() {
    let clock = ManualClock::new();
    let api = Limit::token_bucket("api", Quota::per_second(2)).and(Quota::per_hour(3));
    let limiter = on(&clock, api);
    let own = Override::Quota { quota: Quota::per_minute(600), burst: 50 };
    limiter.set_override("a", own).unwrap();
    for edition in [Edition::Draft10, Edition::Draft7] {
        let layer = showing(&limiter, edition);
        let response = get(&layer).await;
        let remaining = limiter.peek("a").remaining();
        assert_eq!(header(&response, "x-ratelimit-remaining"), remaining.to_string());
        if edition == Edition::Draft10 {
            assert_eq!(items(&response, "ratelimit-policy"), [item("api", &[("q", 600), ("w", 60)])]);
            assert_eq!(items(&response, "ratelimit").len(), 1);
        }
        // Others are told what all have.
        let other = call(&layer, request("b", "/")).await;
        let policies = header(&other, "ratelimit-policy");
        assert!(policies.contains("3600") && !policies.contains("600;w=60"), "{policies}");
    }
    let refusals = RateLimitLayer::from(gate(&limiter).cost(|_| 60));
    let never = text(call(&refusals, request("a", "/")).await).await;
    assert!(never.contains("never holds more than 50"), "{never}");
    let never = text(call(&refusals, request("b", "/")).await).await;
    assert!(!never.contains("than 50"), "{never}");
}

#[tokio::test]
async fn a_network_that_is_listed_later_is_found_by_a_layer_that_was_made_before() {
    use crate::http::{ClientIp, PeerAddr};
    let limiter = on(&ManualClock::new(), Limit::token_bucket("api", Quota::per_minute(1)));
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::new());
    let ask = || {
        let mut request = request("a", "/");
        request.extensions_mut().insert(PeerAddr(std::net::SocketAddr::from(([10, 1, 2, 3], 80))));
        call(&layer, request)
    };
    assert_eq!(ask().await.status(), 200);
    assert_eq!(ask().await.status(), 429);
    let listed = Limit::token_bucket("api", Quota::per_minute(1)).allow("10.0.0.0/8").build().unwrap();
    let now = limiter.clock().precise();
    limiter.bands().change(&listed, limiter.hasher(), now);
    assert_eq!(ask().await.status(), 200);
}
