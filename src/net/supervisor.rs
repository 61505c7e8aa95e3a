//! Starts the network's tasks, and starts them anew should one of them fail.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::Duration,
};

use quinn::Endpoint;
use tokio::{
    sync::{Notify, mpsc},
    task::{Id, JoinError, JoinSet},
    time::{sleep, timeout},
};

use super::{
    Net, Run,
    accept::accept,
    dial::{Backoff, dial, knock, random},
    driver::{Driver, lock},
    link::{LinkEvent, MAX_EVENTS_PER_PEER},
    refusal::Farewell,
};
use crate::{
    clock::Clock,
    gossip::{Gossip, GossipConfig},
    node::Incarnation,
    table::{Table, marks::Wake},
};

/// How long the closing of the last connections may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// What a gossip state machine is made from, at the start and again after a panic.
pub(crate) struct Engine {
    pub(crate) config: GossipConfig,
    pub(crate) tables: Vec<Arc<Table>>,
    pub(crate) clock: Clock,
    /// Wakes the driver when a table cannot wait for the next heartbeat.
    pub(crate) wake: Arc<Notify>,
}

impl Engine {
    /// A state machine that has heard nothing yet, under an incarnation of its own.
    pub(crate) fn gossip(&self) -> Gossip {
        let config = GossipConfig { incarnation: Incarnation::new(random() as u32), ..self.config.clone() };
        let wake = self.wake.clone();
        let wake: Wake = Arc::new(move || wake.notify_one());
        Gossip::new(config, self.tables.clone(), random(), &wake, self.clock.precise())
    }
}

/// A node's network and its gossip.
pub(crate) struct Supervisor {
    pub(crate) net: Arc<Net>,
    pub(crate) engine: Engine,
    pub(crate) gossip: Arc<Mutex<Gossip>>,
}

/// Why a run ended although nobody told the node to stop.
enum Trouble {
    Panic(String),
    Endpoint,
}

impl Supervisor {
    /// Keeps the network running until the node is told to stop. Limiters go on by themselves meanwhile, whatever
    /// happens here.
    pub(crate) async fn supervise(self, endpoint: Endpoint) {
        let mut endpoint = Closing(endpoint);
        let mut backoff = Backoff::new();
        while let Err(trouble) = self.run(&endpoint.0).await {
            self.net.hang_up(Farewell::Restarted);
            let wait = backoff.next();
            match trouble {
                Trouble::Panic(text) => {
                    tracing::error!(%text, ?wait, "the gossip panicked, and is started anew; limits go on locally");
                }
                Trouble::Endpoint => {
                    tracing::error!(?wait, "the socket failed, and is bound anew; limits go on locally");
                    drop(endpoint);
                    endpoint = Closing(self.reopen(&mut backoff).await);
                }
            }
            self.net.count_restart();
            self.renew_gossip();
            sleep(wait).await;
        }
        endpoint.0.close(Farewell::Stopped.code(), Farewell::Stopped.text().as_bytes());
        let _ = timeout(CLOSE_TIMEOUT, endpoint.0.wait_idle()).await;
    }

    async fn run(&self, endpoint: &Endpoint) -> Result<(), Trouble> {
        let Links { mut tasks, listener, inbox } = Links::start(&self.net, endpoint);
        let (net, gossip, wake) = (self.net.clone(), self.gossip.clone(), self.engine.wake.clone());
        tasks.spawn(Driver { net, gossip, inbox, wake }.drive());
        let outcome = match tasks.join_next_with_id().await {
            Some(Err(error)) => Err(Trouble::Panic(panic_text(error))),
            Some(Ok((task, ()))) if task == listener => Err(Trouble::Endpoint),
            // The driver is the only other one that ends.
            Some(Ok(_)) | None => Ok(()),
        };
        tasks.shutdown().await;
        outcome
    }

    async fn reopen(&self, backoff: &mut Backoff) -> Endpoint {
        loop {
            sleep(backoff.next()).await;
            match self.net.bind() {
                Ok(endpoint) => return endpoint,
                Err(error) => {
                    tracing::error!(%error, address = %self.net.local_addr, "the socket cannot be bound")
                }
            }
        }
    }

    fn renew_gossip(&self) {
        match catch_unwind(AssertUnwindSafe(|| self.engine.gossip())) {
            Ok(gossip) => *lock(&self.gossip) = gossip,
            Err(panic) => {
                let text = text_of(panic.as_ref());
                tracing::error!(text, "the gossip panicked at its start; the old one is driven on");
            }
        }
    }
}

/// The tasks that dial and listen, and where what arrives comes out.
pub(crate) struct Links {
    pub(crate) tasks: JoinSet<()>,
    /// Which of the tasks listens.
    listener: Id,
    pub(crate) inbox: mpsc::Receiver<LinkEvent>,
}

impl Links {
    pub(crate) fn start(net: &Arc<Net>, endpoint: &Endpoint) -> Self {
        let capacity = net.routes.len().max(1) * MAX_EVENTS_PER_PEER;
        let (sender, inbox) = mpsc::channel(capacity);
        let run = Run { net: net.clone(), endpoint: endpoint.clone(), inbox: sender };
        let mut tasks = JoinSet::new();
        for route in &net.routes {
            match route.node > net.node {
                true => tasks.spawn(dial(run.clone(), route.clone())),
                false => tasks.spawn(knock(run.clone(), route.clone())),
            };
        }
        let listener = tasks.spawn(accept(run)).id();
        Self { tasks, listener, inbox }
    }
}

/// Closes the endpoint when the supervisor is dropped, so that peers need not wait for silence.
struct Closing(Endpoint);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close(Farewell::Stopped.code(), Farewell::Stopped.text().as_bytes());
    }
}

fn panic_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => text_of(panic.as_ref()).to_owned(),
        Err(error) => error.to_string(),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
