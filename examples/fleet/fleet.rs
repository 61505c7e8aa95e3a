//! The processes: starts them, kills one, cuts one off, and asks them how they are.

use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    time::{Instant, sleep, timeout},
};

use crate::{
    certificates::{Authority, Identity},
    load::Client,
    node::{Addresses, Orders, Peers, Status},
};

/// Nothing at the start takes as long, on whatever machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STATUS_TIMEOUT: Duration = Duration::from_millis(400);

/// The limit that the nodes are started with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) per_second: u64,
    pub(crate) burst: u64,
    /// Whether unreachable nodes are taken to be spending their share.
    pub(crate) share: bool,
}

/// A running process. It is killed when this is dropped, and ends by itself when its standard input does.
struct Process {
    child: Child,
    input: ChildStdin,
    addresses: Addresses,
}

/// The fleet, seen from outside.
pub(crate) struct Fleet {
    rule: Rule,
    ca: String,
    /// Each node keeps its key over a restart: by it, it knows its old connections again, and ends them.
    identities: Vec<Identity>,
    secret: String,
    /// Where each node gossips; its peers know it by this address, so it keeps it over a restart.
    gossip: Vec<SocketAddr>,
    processes: Vec<Option<Process>>,
    client: Client,
}

impl Fleet {
    /// Starts so many processes, and waits until they all hear each other.
    pub(crate) async fn start(nodes: usize, rule: Rule, client: Client) -> Result<Self, Box<dyn Error>> {
        let authority = Authority::new()?;
        let ca = authority.pem().to_owned();
        let identities = (0..nodes).map(|index| authority.issue(&name(index))).collect::<Result<_, _>>()?;
        // Only the nodes of this run know it.
        let secret = authority.issue("secret")?.key;
        let (gossip, processes) = (Vec::new(), Vec::new());
        let mut fleet = Self { rule, ca, identities, secret, gossip, processes, client };
        for index in 0..nodes {
            let process = fleet.spawn(index, (Ipv4Addr::LOCALHOST, 0).into()).await?;
            fleet.gossip.push(process.addresses.gossip);
            fleet.processes.push(Some(process));
        }
        for index in 0..nodes {
            fleet.introduce(index).await?;
        }
        fleet.whole().await?;
        Ok(fleet)
    }

    /// Starts a process that tells its addresses and waits for its peers'.
    async fn spawn(&self, index: usize, gossip: SocketAddr) -> Result<Process, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut input = child.stdin.take().ok_or("no standard input")?;
        let output = child.stdout.take().ok_or("no standard output")?;
        write(&mut input, &self.orders(index, gossip)).await?;
        let mut line = String::new();
        timeout(START_TIMEOUT, BufReader::new(output).read_line(&mut line)).await??;
        let addresses = serde_json::from_str(&line).map_err(|_| format!("{} did not start", name(index)))?;
        Ok(Process { child, input, addresses })
    }

    fn orders(&self, index: usize, gossip: SocketAddr) -> Orders {
        let identity = &self.identities[index];
        Orders {
            name: name(index),
            gossip,
            ca: self.ca.clone(),
            certificate: identity.certificate.clone(),
            key: identity.key.clone(),
            secret: self.secret.clone(),
            per_second: self.rule.per_second,
            burst: self.rule.burst,
            share: self.rule.share,
        }
    }

    /// Tells a process its peers, upon which it starts its part of the mesh.
    async fn introduce(&mut self, index: usize) -> Result<(), Box<dyn Error>> {
        let others = self.gossip.iter().enumerate().filter(|(other, _)| *other != index);
        let peers: Peers = others.map(|(other, address)| (name(other), *address)).collect();
        let process = self.processes[index].as_mut().ok_or("not running")?;
        write(&mut process.input, &peers).await
    }

    /// Waits until every node hears all others and has their state.
    async fn whole(&self) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + START_TIMEOUT;
        let peers = self.processes.len() - 1;
        let ready =
            |status: &Option<Status>| status.as_ref().is_some_and(|it| it.synced && it.up.len() == peers);
        while !self.statuses().await.iter().all(ready) {
            if Instant::now() > deadline {
                return Err(
                    "the nodes do not hear each other; RUST_LOG=ratemesh=info shows what they log".into()
                );
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Sends SIGKILL to a node, and waits until the system has buried it.
    pub(crate) async fn kill(&mut self, index: usize) -> Result<(), Box<dyn Error>> {
        if let Some(mut process) = self.processes[index].take() {
            process.child.kill().await?;
        }
        Ok(())
    }

    /// Starts a node where it was before; it answers HTTP on a new port.
    pub(crate) async fn restart(&mut self, index: usize) -> Result<(), Box<dyn Error>> {
        self.processes[index] = Some(self.spawn(index, self.gossip[index]).await?);
        self.introduce(index).await
    }

    /// Cuts a node's gossip off, or joins it again. Its HTTP goes on.
    pub(crate) async fn cut_off(&self, index: usize, cut: bool) -> Result<(), Box<dyn Error>> {
        let address = self.http(index).ok_or("not running")?;
        self.client.post(address, &format!("/cut/{cut}")).await
    }

    /// Where a node answers HTTP, if it runs.
    pub(crate) fn http(&self, index: usize) -> Option<SocketAddr> {
        self.processes[index].as_ref().map(|process| process.addresses.http)
    }

    /// What each node says of itself; `None` where it does not answer.
    pub(crate) async fn statuses(&self) -> Vec<Option<Status>> {
        let asked: Vec<_> = (0..self.processes.len())
            .map(|index| self.http(index).map(|address| (self.client.clone(), address)))
            .map(|target| {
                tokio::spawn(async move {
                    let (client, address) = target?;
                    timeout(STATUS_TIMEOUT, client.status(address)).await.ok()?
                })
            })
            .collect();
        let mut statuses = Vec::with_capacity(asked.len());
        for answer in asked {
            statuses.push(answer.await.ok().flatten());
        }
        statuses
    }

    /// Ends all processes.
    pub(crate) async fn stop(mut self) -> Result<(), Box<dyn Error>> {
        for index in 0..self.processes.len() {
            self.kill(index).await?;
        }
        Ok(())
    }
}

async fn write<T: serde::Serialize>(input: &mut ChildStdin, value: &T) -> Result<(), Box<dyn Error>> {
    let line = serde_json::to_string(value)? + "\n";
    input.write_all(line.as_bytes()).await?;
    Ok(input.flush().await?)
}

pub(crate) fn name(index: usize) -> String {
    format!("node-{}", index + 1)
}
