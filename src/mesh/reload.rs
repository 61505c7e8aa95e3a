//! Changing a node's configuration while it runs.

use std::{fmt, net::SocketAddr, sync::PoisonError};

use tokio::sync::{self, watch};

use super::{Mesh, gossip_config};
use crate::{
    bands::Bands,
    config::{Config, MAX_LIMITS},
    key::Digest,
    limit::{Limit, LimitError},
    limiter::Limiter,
    net::{Change, IdentityError},
};

/// Keys that are brought up to date before other tasks get their turn.
const KEYS_PER_STEP: u32 = 4_096;

/// Orders to start the network anew, one after the other.
pub(super) struct Reloads {
    orders: sync::Mutex<watch::Sender<u64>>,
    carried_out: watch::Receiver<u64>,
    fixed: Fixed,
}

impl Reloads {
    pub(super) fn new(orders: watch::Sender<u64>, carried_out: watch::Receiver<u64>, fixed: Fixed) -> Self {
        Self { orders: sync::Mutex::new(orders), carried_out, fixed }
    }
}

/// What stays as it is while a node runs.
#[derive(PartialEq, Eq)]
pub(super) struct Fixed {
    node: String,
    cluster: String,
    listen: SocketAddr,
    secret: Vec<u8>,
    digest: Digest,
}

impl Fixed {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            node: config.node.as_str().to_owned(),
            cluster: config.cluster.clone(),
            listen: config.listen,
            secret: config.secret.clone(),
            digest: config.digest,
        }
    }

    /// The first field in which another differs. To listen at `bound`, where the node does, is no difference.
    fn parts_from(&self, other: &Self, bound: SocketAddr) -> Option<&'static str> {
        let fields = [
            ("node.name", self.node != other.node),
            ("node.cluster", self.cluster != other.cluster),
            ("node.listen", ![self.listen, bound].contains(&other.listen)),
            ("keys.secret", self.secret != other.secret),
            ("keys.digest", self.digest != other.digest),
        ];
        fields.iter().find(|(_, differs)| *differs).map(|(field, _)| *field)
    }
}

/// Why a configuration was not taken over. The node goes on with the one that it has, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReloadError {
    /// This key of the configuration, such as `node.listen`, has to be as it was when the node started.
    Fixed(&'static str),
    /// A limit cannot become what the configuration says while it is enforced, and why.
    Limit(Box<LimitError>),
    /// The names and the certificates do not fit each other.
    Identity(IdentityError),
    /// The node has had too many limits since its start, four times as many as a configuration can have.
    TooManyLimits,
    /// The node has stopped.
    Stopped,
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(field) => {
                write!(f, "{field} differs from what the node was started with; it takes a restart to change")
            }
            Self::Limit(error) => error.fmt(f),
            Self::Identity(error) => error.fmt(f),
            Self::TooManyLimits => write!(
                f,
                "the node has had {} limits since its start; it takes a restart to have more",
                4 * MAX_LIMITS
            ),
            Self::Stopped => f.write_str("the node has stopped"),
        }
    }
}

impl std::error::Error for ReloadError {}

impl Mesh {
    /// Takes over another configuration: limits, keys' own quotas, allow and deny lists, peers, certificates, and the pace of
    /// the gossip. Nothing that was counted is lost.
    ///
    /// A limit of the same name goes on with what it has counted. Its new quota holds at once, on this node for all keys: what
    /// was missing to the former capacity is missing to the new one, as far as debts may go, so a lowered quota is not spent
    /// anew and a raised one gives at once what it gives more. On nodes that have not been told yet the former quota
    /// holds; each counts what all of them admit. What counts are kept by has to stay: the algorithm, the number of
    /// quotas, when windows begin and how long they are, `precision` and `max_keys`. Until the node is started anew, checks of a
    /// limit that was changed take a longer way.
    ///
    /// A limit that is not in the configuration any more is enforced by whoever still holds its limiter, for this node alone;
    /// one that is new is there as soon as this returns. A peer that is new is dialled, one that is gone is dropped.
    ///
    /// The node tells its peers what they have not heard, for at most a second, and is then connected to them anew, which
    /// takes a fraction of one. Checks go on meanwhile, by what was heard. Of limits that are new on this node it admits its part
    /// of the quota until peers have told what they know of them. Bans and overrides that were set at run time stay.
    ///
    /// What is called while another call is under way waits for its end.
    ///
    /// ```no_run
    /// # async fn on_hangup(mesh: &ratemesh::Mesh) {
    /// match ratemesh::Config::from_file("ratemesh.toml") {
    ///     Ok(config) => match mesh.reload(config).await {
    ///         Ok(()) => println!("reloaded"),
    ///         Err(error) => eprintln!("the former configuration stays: {error}"),
    ///     },
    ///     Err(error) => eprintln!("the former configuration stays: {error}"),
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says what cannot be taken over; then nothing has changed. A limit that has had too many different quotas since the start, those
    /// of single keys included that any node has set, cannot be changed any more.
    pub async fn reload(&self, config: Config) -> Result<(), ReloadError> {
        let orders = self.reloads.orders.lock().await;
        if self.supervisor.is_finished() {
            return Err(ReloadError::Stopped);
        }
        if let Some(field) = self.reloads.fixed.parts_from(&Fixed::of(&config), self.local_addr()) {
            return Err(ReloadError::Fixed(field));
        }
        let plans = self.plan(config.limits)?;
        let net = self.net.prepare(config.peers, &config.tls).map_err(ReloadError::Identity)?;
        // From here on nothing can fail.
        let limiters = plans.into_iter().map(|plan| self.carry_out(plan)).collect::<Vec<_>>();
        let tables: Vec<_> = limiters.iter().flat_map(|limiter| limiter.bands().tables().cloned()).collect();
        self.limiters.replace(limiters.into_iter());
        {
            let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            let peers = net.peers();
            let config = gossip_config(config.node, config.cluster, peers, &config.gossip);
            engine.next = Some(Change { config, tables: tables.clone(), net });
        }
        let order = *orders.borrow() + 1;
        orders.send_replace(order);
        for table in tables {
            let mut slot = Some(0);
            while let Some(next) = slot {
                slot = table.bring_up_to_date(next, KEYS_PER_STEP, self.clock.precise());
                tokio::task::yield_now().await;
            }
        }
        let done = self.reloads.carried_out.clone().wait_for(|done| *done >= order).await.is_ok();
        if done { Ok(()) } else { Err(ReloadError::Stopped) }
    }

    /// What each limit is to become; nothing is changed yet.
    fn plan(&self, limits: Vec<Limit>) -> Result<Vec<Plan<'_>>, ReloadError> {
        let plans = limits.into_iter().map(|limit| {
            let Some(current) = self.limiters.get(limit.name()) else {
                let former = self.limiters.former(limit.name());
                let former = former.filter(|former| former.bands().check_change(&limit).is_ok());
                return Ok(former.map_or_else(
                    || Plan::New(Box::new(limit.clone())),
                    |former| Plan::Change(former, Box::new(limit.clone())),
                ));
            };
            let fits = current.bands().check_change(&limit);
            fits.map(|()| Plan::Change(current, Box::new(limit)))
        });
        let plans = plans.collect::<Result<Vec<_>, _>>();
        let plans = plans.map_err(|error| ReloadError::Limit(Box::new(error)))?;
        let new = plans.iter().filter(|plan| matches!(plan, Plan::New(_))).count();
        if new > self.limiters.room() { Err(ReloadError::TooManyLimits) } else { Ok(plans) }
    }

    fn carry_out(&self, plan: Plan<'_>) -> Limiter {
        match plan {
            Plan::New(limit) => {
                Limiter::from_parts(Bands::new(*limit), self.clock.clone(), self.hasher.clone())
            }
            Plan::Change(limiter, limit) => {
                limiter.bands().change(&limit, &self.hasher, self.clock.precise());
                limiter.clone()
            }
        }
    }
}

/// What a limit of a new configuration takes.
enum Plan<'a> {
    New(Box<Limit>),
    Change(&'a Limiter, Box<Limit>),
}
