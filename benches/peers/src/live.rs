//! A fleet of three on loopback, in this process: each node's gossip in a thread of its own, so that its processor time
//! can be told from that of the checks.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ratemesh::{Config, Limit, Limiter, Mesh, NodeId, PeerState, config::TlsIdentity};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::{Failure, subjects::Plan};

/// Limits of each plan: as many as there are cases that want one.
const LIMITS_A_PLAN: usize = 12;
/// How long the nodes may take to hear each other.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes that hear each other.
pub struct Fleet {
    nodes: Vec<Node>,
    /// How many limits of each plan have been handed out.
    used: Mutex<Vec<(Plan, usize)>>,
}

struct Node {
    mesh: Option<Mesh>,
    /// The thread that its gossip runs in.
    thread: Option<JoinHandle<()>>,
    task: u32,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

/// What a node has sent so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    pub bytes: u64,
    pub messages: u64,
    /// Changes that a peer has not acknowledged; the largest number of any peer.
    pub behind: u64,
}

impl Fleet {
    /// Three nodes with limits of every plan for the cases.
    pub fn for_cases() -> Result<Self, Failure> {
        let mut limits = Vec::new();
        for plan in [Plan::Ample, Plan::Scarce, Plan::Fast, Plan::Full] {
            for number in 0..LIMITS_A_PLAN {
                limits.push(plan.limit_named(&format!("{}-{number}", plan.name()))?);
            }
        }
        Self::start(3, &limits)
    }

    /// So many nodes with these limits; returns when all hear each other.
    pub fn start(nodes: usize, limits: &[Limit]) -> Result<Self, Failure> {
        let sockets: Vec<UdpSocket> =
            (0..nodes).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
        let addresses: Vec<SocketAddr> =
            sockets.iter().map(UdpSocket::local_addr).collect::<Result<_, _>>()?;
        let authority = Authority::new()?;
        let mut fleet = Self { nodes: Vec::new(), used: Mutex::default() };
        for (index, socket) in sockets.into_iter().enumerate() {
            let mut config = Config::builder(name(index)?)
                .socket(socket)
                .secret("a secret for this run alone")
                .tls(authority.identity(name(index)?.as_str())?);
            for (peer, address) in addresses.iter().enumerate().filter(|(peer, _)| *peer != index) {
                config = config.peer(name(peer)?, address.to_string());
            }
            let config = limits.iter().fold(config, |config, limit| config.limit(limit.clone()));
            fleet.nodes.push(Node::start(config.build()?)?);
        }
        fleet.wait_until("all nodes hear each other", |fleet| {
            fleet.nodes.iter().filter_map(|node| node.mesh.as_ref()).all(|mesh| {
                let status = mesh.status().gossip;
                status.synced && status.peers.iter().all(|peer| peer.state == PeerState::Up)
            })
        })?;
        Ok(fleet)
    }

    /// Waits until this holds.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let start = Instant::now();
        while !holds(self) {
            if start.elapsed() > PATIENCE {
                return Err(format!("waited in vain until {what}").into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// A limiter of the first node that nobody else has had, so that its keys are new.
    pub fn limiter(&self, plan: Plan) -> Result<Limiter, Failure> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match used.iter_mut().find(|(of, _)| *of == plan) {
            Some((_, number)) => {
                *number += 1;
                *number
            }
            None => {
                used.push((plan, 0));
                0
            }
        };
        self.limiter_of(0, &format!("{}-{number}", plan.name()))
    }

    /// A node's limiter of this name.
    pub fn limiter_of(&self, node: usize, name: &str) -> Result<Limiter, Failure> {
        let mesh = self.nodes.get(node).and_then(|node| node.mesh.as_ref());
        mesh.and_then(|mesh| mesh.limiter(name)).ok_or_else(|| format!("no limit {name} is left").into())
    }

    /// What a node has sent to all its peers.
    pub fn sent(&self, node: usize) -> Sent {
        let Some(mesh) = self.nodes.get(node).and_then(|node| node.mesh.as_ref()) else {
            return Sent::default();
        };
        mesh.status().gossip.peers.iter().fold(Sent::default(), |sent, peer| Sent {
            bytes: sent.bytes + peer.bytes_sent,
            messages: sent.messages + peer.messages_sent,
            behind: sent.behind.max(peer.versions_behind),
        })
    }

    /// The processor time that a node's gossip has taken so far.
    pub fn processor_time(&self, node: usize) -> Duration {
        self.nodes.get(node).map_or(Duration::ZERO, |node| run_time(node.task).0)
    }
}

impl Node {
    fn start(config: Config) -> Result<Self, Failure> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let (ready, started) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(error.to_string()))),
            };
            runtime.block_on(async {
                let mesh = Mesh::start(config).await.map_err(|error| error.to_string());
                let _ = ready.send(mesh.map(|mesh| (mesh, this_task())));
                let _ = stopped.await;
            });
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let thread = thread::Builder::new().name(format!("gossip-{number}")).spawn(run)?;
        let (mesh, task) = started.recv()??;
        Ok(Self { mesh: Some(mesh), thread: Some(thread), task, stop: Some(stop) })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.mesh = None;
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The number by which the kernel knows this thread.
pub fn this_task() -> u32 {
    let link = fs::read_link("/proc/thread-self").unwrap_or_default();
    link.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// How long a thread of this process has run, and how long it was ready to but had no processor.
pub fn run_time(task: u32) -> (Duration, Duration) {
    let text = fs::read_to_string(format!("/proc/self/task/{task}/schedstat")).unwrap_or_default();
    let mut nanos = text.split_whitespace().map(|number| Duration::from_nanos(number.parse().unwrap_or(0)));
    (nanos.next().unwrap_or_default(), nanos.next().unwrap_or_default())
}

fn name(index: usize) -> Result<NodeId, Failure> {
    Ok(NodeId::new(&format!("node-{index}"))?)
}

/// What vouches for the nodes.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Result<Self, Failure> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    fn identity(&self, name: &str) -> Result<TlsIdentity, Failure> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let chain = params.signed_by(&key, &self.issuer)?.pem();
        Ok(TlsIdentity::from_pem(self.pem.as_bytes(), chain.as_bytes(), key.serialize_pem().as_bytes())?)
    }
}
