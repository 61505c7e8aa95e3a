//! One simulated node: its clocks, and the process that may be running on it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{START, Traffic, WALL_START};
use crate::{
    bands::Bands,
    gossip::{Channel, Gossip, GossipConfig},
    key::KeyHasher,
    limit::Limit,
    node::Incarnation,
    table::{Table, marks::Wake},
    time::{Now, Timestamp, WallTime},
};

/// The kernel's tick: how far the coarse clock steps.
const TICK_NANOS: u64 = 4_000_000;

pub(super) struct Node {
    /// Where this node's monotonic clock has its origin.
    origin: u64,
    pub(super) skew_millis: i64,
    process: Option<Process>,
    pub(super) timer: Option<u64>,
    pub(super) stalled_until: u64,
    /// What has come while the gossip was stalled.
    pub(super) waiting: Vec<(usize, u64, Channel, Vec<u8>)>,
    pub(super) traffic: Traffic,
}

pub(super) struct Process {
    pub(super) gossip: Gossip,
    /// One a limit, in the order of the limits.
    pub(super) limits: Vec<Bands>,
    pub(super) incarnation: Incarnation,
    woken: Arc<AtomicBool>,
}

impl Node {
    pub(super) fn new(origin: u64) -> Self {
        Self {
            origin,
            skew_millis: 0,
            process: None,
            timer: None,
            stalled_until: 0,
            waiting: Vec::new(),
            traffic: Traffic::default(),
        }
    }

    pub(super) fn start(&mut self, config: GossipConfig, limits: &[Limit], seed: u64, now: u64) {
        let limits: Vec<Bands> = limits.iter().cloned().map(Bands::new).collect();
        let tables: Vec<Arc<Table>> = limits.iter().flat_map(Bands::tables).cloned().collect();
        // As the cluster digests its keys.
        let at = self.time(now);
        tables.iter().for_each(|table| table.list_keys(&KeyHasher::default(), at));
        let woken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&woken);
        let wake: Wake = Arc::new(move || flag.store(true, Ordering::Relaxed));
        let incarnation = config.incarnation;
        let gossip = Gossip::new(config, tables, seed, &wake, self.time(now));
        self.timer = None;
        self.stalled_until = 0;
        self.waiting.clear();
        self.process = Some(Process { gossip, limits, incarnation, woken });
    }

    pub(super) fn stop(&mut self) {
        self.process = None;
        self.waiting.clear();
    }

    pub(super) fn running(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    /// Whether a check has asked for the gossip since the last time.
    pub(super) fn was_woken(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.woken.swap(false, Ordering::Relaxed))
    }

    /// What this node's clocks show at a moment of virtual time.
    pub(super) fn time(&self, now: u64) -> Now {
        let wall =
            (WALL_START + (now - START)).saturating_add_signed(self.skew_millis.saturating_mul(1_000_000));
        Now { mono: Timestamp::from_nanos(now - self.origin), wall: WallTime::from_unix_nanos(wall) }
    }

    /// The same on the coarse clock.
    pub(super) fn coarse(&self, now: u64) -> Now {
        self.time(now - now % TICK_NANOS)
    }
}

impl Process {
    /// The place among the gossip's limits of a limit's first quota: each quota has one.
    pub(super) fn book(&self, limit: usize) -> usize {
        self.limits.iter().take(limit).map(|bands| bands.tables().count()).sum()
    }
}
