//! The fields, read back by a parser of structured fields that is not ours.

use super::*;
use sfv::{BareItem, Item, ListEntry, Parser, SerializeValue};

fn shown() -> Shown<'static> {
    Shown {
        name: "api",
        band: 0,
        quota: Quota::per_minute(100),
        capacity: 100,
        remaining: 50,
        reset_after: Some(Duration::from_millis(29_001)),
        refused: false,
        retry_after: None,
        unit: None,
        partition_key: None,
    }
}

fn refused() -> Shown<'static> {
    let retry_after = Some(Duration::from_millis(1_001));
    Shown {
        name: "burst",
        remaining: 0,
        refused: true,
        retry_after,
        quota: Quota::per_second(5),
        capacity: 5,
        ..shown()
    }
}

fn now() -> WallTime {
    WallTime::from_unix_nanos(1_700_000_000 * NANOS)
}

fn written(fields: HeaderFields, limits: &[Shown<'_>]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    fields.write(&mut headers, limits, None, now);
    headers
}

fn value(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap().to_owned()
}

fn items(field: &str) -> Vec<Item> {
    let list = Parser::parse_list(field.as_bytes()).unwrap_or_else(|error| panic!("{field}: {error}"));
    let items = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("{field}"),
    });
    items.collect()
}

fn name(item: &Item) -> String {
    item.bare_item.as_str().unwrap().to_owned()
}

fn integer(item: &Item, parameter: &str) -> Option<i64> {
    item.params.get(parameter).and_then(BareItem::as_int)
}

#[test]
fn draft_10_lists_every_limit() {
    let fields = HeaderFields::new().rate_limit(Edition::Draft10);
    let headers = written(fields, &[shown(), refused()]);

    let policies = items(&value(&headers, "ratelimit-policy"));
    assert_eq!(policies.iter().map(name).collect::<Vec<_>>(), ["api", "burst"]);
    assert_eq!((integer(&policies[0], "q"), integer(&policies[0], "w")), (Some(100), Some(60)));
    assert_eq!((integer(&policies[1], "q"), integer(&policies[1], "w")), (Some(5), Some(1)));

    let standings = items(&value(&headers, "ratelimit"));
    assert_eq!(standings.iter().map(name).collect::<Vec<_>>(), ["api", "burst"]);
    assert_eq!((integer(&standings[0], "r"), integer(&standings[0], "t")), (Some(50), Some(30)));
    assert_eq!((integer(&standings[1], "r"), integer(&standings[1], "t")), (Some(0), Some(2)));
    assert_eq!(value(&headers, "retry-after"), "2");
}

#[test]
fn draft_10_is_written_in_canonical_form() {
    let headers = written(HeaderFields::new().rate_limit(Edition::Draft10), &[shown()]);
    for (field, expected) in [("ratelimit-policy", "\"api\";q=100;w=60"), ("ratelimit", "\"api\";r=50;t=30")]
    {
        let field = value(&headers, field);
        assert_eq!(field, expected);
        assert_eq!(Parser::parse_list(field.as_bytes()).unwrap().serialize_value().unwrap(), expected);
    }
}

#[test]
fn units_and_partition_keys_are_shown_where_there_are_any() {
    let key: Vec<u8> = (0..=255).collect();
    let limit = Shown { unit: Some("content-bytes"), partition_key: Some(&key), ..shown() };
    let headers = written(HeaderFields::new().rate_limit(Edition::Draft10), &[limit]);
    let policy = &items(&value(&headers, "ratelimit-policy"))[0];
    assert_eq!(policy.params.get("qu").and_then(BareItem::as_str), Some("content-bytes"));
    assert_eq!(policy.params.get("pk").and_then(BareItem::as_byte_seq), Some(&key));
    let standing = &items(&value(&headers, "ratelimit"))[0];
    assert_eq!(standing.params.get("pk").and_then(BareItem::as_byte_seq), Some(&key));
}

#[test]
fn odd_names_are_escaped() {
    for (odd, read_back) in [
        ("a\"b\\c", "a\"b\\c"),
        ("a;q=1, \"b\"", "a;q=1, \"b\""),
        ("naïve\r\nX: y", "na%C3%AFve%0D%0AX: y"),
        ("", ""),
    ] {
        let headers =
            written(HeaderFields::new().rate_limit(Edition::Draft10), &[Shown { name: odd, ..shown() }]);
        let standings = items(&value(&headers, "ratelimit"));
        assert_eq!(standings.len(), 1);
        assert_eq!(name(&standings[0]), read_back);
    }
}

#[test]
fn numbers_stay_within_what_the_syntax_allows() {
    let limit = Shown {
        remaining: u64::MAX,
        reset_after: Some(Duration::MAX),
        quota: Quota::per_second(u64::MAX),
        ..shown()
    };
    for edition in [Edition::Draft10, Edition::Draft7, Edition::Draft6] {
        written(HeaderFields::new().rate_limit(edition).legacy(LegacyReset::Epoch), &[limit]);
    }
    let headers = written(HeaderFields::new().rate_limit(Edition::Draft10), &[limit]);
    let standing = &items(&value(&headers, "ratelimit"))[0];
    assert_eq!(integer(standing, "r"), Some(MAX_INTEGER as i64));
    assert_eq!(integer(standing, "t"), Some(MAX_INTEGER as i64));
}

#[test]
fn windows_are_shown_in_whole_seconds() {
    for (quota, expected) in [
        (Quota::new(5, Duration::from_millis(500)), "10;w=1;burst=100"),
        (Quota::new(3, Duration::from_millis(1_500)), "4;w=2;burst=100"),
        (Quota::new(1, Duration::from_secs(86_400)), "1;w=86400;burst=100"),
        (Quota::per_minute(100), "100;w=60"),
    ] {
        let headers = written(HeaderFields::new().rate_limit(Edition::Draft6), &[Shown { quota, ..shown() }]);
        assert_eq!(value(&headers, "ratelimit-policy"), expected);
    }
}

#[test]
fn draft_7_combines_the_tightest_limit() {
    let fields = HeaderFields::new().rate_limit(Edition::Draft7);
    let other = Shown { name: "other", remaining: 51, ..shown() };
    let headers = written(fields, &[other, shown()]);
    let standing = Parser::parse_dictionary(value(&headers, "ratelimit").as_bytes()).unwrap();
    let number = |key: &str| match &standing[key] {
        ListEntry::Item(item) => item.bare_item.as_int().unwrap(),
        ListEntry::InnerList(_) => panic!("{key}"),
    };
    assert_eq!((number("limit"), number("remaining"), number("reset")), (100, 50, 30));
    let policies = items(&value(&headers, "ratelimit-policy"));
    assert_eq!(policies.len(), 2);
    assert_eq!(policies[0].bare_item.as_int(), Some(100));
    assert_eq!(integer(&policies[0], "w"), Some(60));

    let headers = written(fields, &[shown(), refused()]);
    assert_eq!(value(&headers, "ratelimit"), "limit=5, remaining=0, reset=2");
}

#[test]
fn draft_6_and_legacy_fields_are_plain_numbers() {
    let headers = written(HeaderFields::new().rate_limit(Edition::Draft6), &[shown()]);
    assert_eq!(value(&headers, "ratelimit-limit"), "100");
    assert_eq!(value(&headers, "ratelimit-remaining"), "50");
    assert_eq!(value(&headers, "ratelimit-reset"), "30");
    assert_eq!(value(&headers, "ratelimit-policy"), "100;w=60");
    assert!(!headers.contains_key("ratelimit"));

    let headers = written(HeaderFields::new().legacy(LegacyReset::Seconds), &[shown()]);
    assert_eq!(value(&headers, "x-ratelimit-limit"), "100");
    assert_eq!(value(&headers, "x-ratelimit-remaining"), "50");
    assert_eq!(value(&headers, "x-ratelimit-reset"), "30");
    assert_eq!(headers.len(), 3);

    let headers = written(HeaderFields::new().legacy(LegacyReset::Epoch), &[shown()]);
    assert_eq!(value(&headers, "x-ratelimit-reset"), "1700000030");
}

#[test]
fn fields_are_written_only_when_asked_for() {
    assert!(written(HeaderFields::new(), &[shown()]).is_empty());
    assert!(written(HeaderFields::new().rate_limit(Edition::Draft10), &[]).is_empty());
    let headers = written(HeaderFields::new(), &[refused()]);
    assert_eq!(headers.len(), 1);
    assert!(written(HeaderFields::new().retry_after(false), &[refused()]).is_empty());
}

#[test]
fn retry_after_is_rounded_up_and_never_zero() {
    for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_999, 60)] {
        assert_eq!(retry_after_seconds(Duration::from_millis(millis)), seconds);
    }
    assert_eq!(retry_after_seconds(Duration::MAX), u64::MAX);
    // What is over by rounding alone does not cost the client another second.
    assert_eq!(retry_after_seconds(Duration::new(10, 1)), 10);
    assert_eq!(retry_after_seconds(Duration::new(10, 10_001)), 11);
}

#[test]
fn a_refusal_that_no_time_heals_has_no_retry_after() {
    let headers = written(HeaderFields::new(), &[Shown { retry_after: None, ..refused() }]);
    assert!(headers.is_empty());
}

#[test]
fn what_the_application_set_stays() {
    let all = HeaderFields::new().rate_limit(Edition::Draft10).legacy(LegacyReset::Seconds);
    for (set, absent) in [
        ("retry-after", "retry-after"),
        ("ratelimit", "ratelimit-policy"),
        ("ratelimit-policy", "ratelimit"),
        ("x-ratelimit-reset", "x-ratelimit-limit"),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(set), HeaderValue::from_static("mine"));
        all.write(&mut headers, &[refused()], None, now);
        assert_eq!(value(&headers, set), "mine");
        assert_eq!(headers.get_all(set).iter().count(), 1);
        assert!(set == absent || !headers.contains_key(absent), "{set}");
    }
}
