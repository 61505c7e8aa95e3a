//! Starts the network's tasks, and starts them anew should one of them fail.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use quinn::Endpoint;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{Id, JoinError, JoinSet},
    time::{sleep, timeout},
};

use super::{
    Mode, Net, Next, Run,
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
    /// What it is to go on with from the next start on.
    pub(crate) next: Option<Change>,
}

/// Other peers, limits or paces, which the network starts anew with.
pub(crate) struct Change {
    pub(crate) config: GossipConfig,
    pub(crate) tables: Vec<Arc<Table>>,
    pub(crate) net: Next,
}

impl Engine {
    /// A state machine that has heard nothing yet, under an incarnation of its own.
    pub(crate) fn gossip(&self) -> Gossip {
        let config = GossipConfig { incarnation: Incarnation::new(random() as u32), ..self.config.clone() };
        Gossip::new(config, self.tables.clone(), random(), &self.wake(), self.clock.precise())
    }

    /// Takes over what there is to go on with; returns whether there was anything.
    fn take_next(&mut self, net: &Net) -> bool {
        let Some(next) = self.next.take() else { return false };
        net.go_on_with(next.net);
        (self.config, self.tables) = (next.config, next.tables);
        true
    }

    fn wake(&self) -> Wake {
        let wake = self.wake.clone();
        Arc::new(move || wake.notify_one())
    }
}

/// A node's network and its gossip.
pub(crate) struct Supervisor {
    pub(crate) net: Arc<Net>,
    pub(crate) engine: Arc<Mutex<Engine>>,
    pub(crate) gossip: Arc<Mutex<Gossip>>,
    /// Which order to start anew has been carried out.
    pub(crate) reloaded: watch::Sender<u64>,
}

/// How a run ended that nobody had to end.
enum End {
    Stopped,
    Reloading,
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
        // Which order to start anew has been carried out; one that comes meanwhile is found by the next run.
        let mut order = 0;
        loop {
            let trouble = match self.run(&endpoint.0, order).await {
                Ok(End::Stopped) => break,
                Ok(End::Reloading) => {
                    order = self.reload();
                    continue;
                }
                Err(trouble) => trouble,
            };
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
            order = self.renew_gossip();
            sleep(wait).await;
        }
        endpoint.0.close(Farewell::Stopped.code(), Farewell::Stopped.text().as_bytes());
        let _ = timeout(CLOSE_TIMEOUT, endpoint.0.wait_idle()).await;
    }

    async fn run(&self, endpoint: &Endpoint, reloads: u64) -> Result<End, Trouble> {
        let Links { mut tasks, listener, inbox } = Links::start(&self.net, endpoint);
        let (net, gossip, wake) = (self.net.clone(), self.gossip.clone(), self.engine().wake.clone());
        tasks.spawn(Driver { net, gossip, inbox, wake, reloads }.drive());
        let outcome = match tasks.join_next_with_id().await {
            Some(Err(error)) => Err(Trouble::Panic(panic_text(error))),
            Some(Ok((task, ()))) if task == listener => Err(Trouble::Endpoint),
            // The driver is the only other one that ends.
            Some(Ok(_)) | None if *self.net.mode.borrow() == Mode::Stopping => Ok(End::Stopped),
            Some(Ok(_)) | None => Ok(End::Reloading),
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

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with other peers and limits, over connections that are made anew.
    fn reload(&self) -> u64 {
        // What there is to go on with is put there before the order to do so is given.
        let order = self.net.reloads();
        self.net.hang_up(Farewell::Reloaded);
        let mut engine = self.engine();
        if engine.take_next(&self.net) {
            let (config, tables) = (engine.config.clone(), engine.tables.clone());
            let reload = || lock(&self.gossip).reload(config, tables, &engine.wake(), engine.clock.precise());
            if let Err(panic) = catch_unwind(AssertUnwindSafe(reload)) {
                let text = text_of(panic.as_ref());
                tracing::error!(text, "the gossip panicked while it was changed, and is started anew");
                drop(engine);
                return self.renew_gossip();
            }
        }
        self.reloaded.send_replace(order);
        tracing::info!(node = %self.net.node, "the node goes on with another configuration");
        order
    }

    /// Starts the gossip anew, with what there is to go on with; returns the order that this carries out.
    fn renew_gossip(&self) -> u64 {
        let order = self.net.reloads();
        let mut engine = self.engine();
        engine.take_next(&self.net);
        match catch_unwind(AssertUnwindSafe(|| engine.gossip())) {
            Ok(gossip) => *lock(&self.gossip) = gossip,
            Err(panic) => {
                let text = text_of(panic.as_ref());
                tracing::error!(text, "the gossip panicked at its start; the old one is driven on");
            }
        }
        self.reloaded.send_replace(order);
        order
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
        let routes = net.routes();
        let capacity = routes.len().max(1) * MAX_EVENTS_PER_PEER;
        let (sender, inbox) = mpsc::channel(capacity);
        let run = Run { net: net.clone(), endpoint: endpoint.clone(), inbox: sender };
        let mut tasks = JoinSet::new();
        for route in routes.iter() {
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
