//! Calls over HTTP/2, by tonic's own client, whose own types read the refusals.

use super::*;
use greeter::{Greeting, Name};
use http::uri::PathAndQuery;
use tonic::{Code, Request, Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt as _;

async fn start() -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener));
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

async fn greet(channel: &Channel, name: &str) -> Result<String, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec: ProstCodec<Name, Greeting> = ProstCodec::default();
    let path = PathAndQuery::from_static("/hello.Greeter/Greet");
    let answer = client.unary(Request::new(Name { name: name.to_owned() }), path, codec).await;
    answer.map(|greeting| greeting.into_inner().text)
}

#[tokio::test]
async fn who_calls_too_often_is_told_when_to_call_again() {
    let channel = start().await;
    for _ in 0..5 {
        assert_eq!(greet(&channel, "Ada").await.unwrap(), "Hello, Ada.");
    }
    let refused = greet(&channel, "Ada").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().starts_with("The limit \"calls\" is exceeded."), "{}", refused.message());
    let wait = refused.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert!((Duration::from_secs(10)..=Duration::from_secs(20)).contains(&wait), "{wait:?}");
    let stated =
        |name: &str| -> u64 { refused.metadata().get(name).unwrap().to_str().unwrap().parse().unwrap() };
    // In whole seconds, and in milliseconds, rounded up.
    let early = Duration::from_micros(10);
    assert!(
        (wait - early..wait + Duration::from_secs(1)).contains(&Duration::from_secs(stated("retry-after")))
    );
    assert_eq!(stated("grpc-retry-pushback-ms"), u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap());
}

#[tokio::test]
async fn failed_calls_are_counted_by_their_status() {
    let channel = start().await;
    assert_eq!(greet(&channel, "Ada").await.unwrap(), "Hello, Ada.");
    for _ in 0..3 {
        assert_eq!(greet(&channel, "").await.unwrap_err().code(), Code::InvalidArgument);
    }
    let refused = greet(&channel, "Ada").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().starts_with("The limit \"failed-calls\" is exceeded."),
        "{}",
        refused.message()
    );
}
