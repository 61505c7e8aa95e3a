//! A service as a generator would write it, by hand: there is no `protoc` at build time.
//!
//! ```proto
//! package hello;
//! service Greeter { rpc Greet (Name) returns (Greeting); }
//! message Name { string name = 1; }
//! message Greeting { string text = 1; }
//! ```

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

use tonic::{
    Request, Response, Status,
    body::Body,
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// Who is greeted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Name {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// What is said.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Greeting {
    #[prost(string, tag = "1")]
    pub text: String,
}

/// Greets.
#[derive(Clone, Copy, Debug)]
pub struct Greeter;

/// The one method.
#[derive(Clone, Copy, Debug)]
struct Greet;

impl UnaryService<Name> for Greet {
    type Response = Greeting;
    type Future = Ready<Result<Response<Greeting>, Status>>;

    fn call(&mut self, request: Request<Name>) -> Self::Future {
        let name = request.into_inner().name;
        ready(match name.is_empty() {
            true => Err(Status::invalid_argument("nobody to greet")),
            false => Ok(Response::new(Greeting { text: format!("Hello, {name}.") })),
        })
    }
}

impl NamedService for Greeter {
    const NAME: &'static str = "hello.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/hello.Greeter/Greet" => {
                    let codec: ProstCodec<Greeting, Name> = ProstCodec::default();
                    Grpc::new(codec).unary(Greet, request).await
                }
                path => Status::unimplemented(format!("there is no {path}")).into_http(),
            })
        })
    }
}
