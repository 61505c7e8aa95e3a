//! How long news takes from the node that publishes it to each of the others.

use std::collections::VecDeque;

use super::{Cluster, Spread};
use crate::gossip::NodeIndex;

/// When each change was published, until everyone has it.
pub(super) struct SpreadLog {
    pub(super) published: Vec<VecDeque<(u64, u64)>>,
    /// By receiving and publishing node: the clock last seen.
    pub(super) clocks: Vec<Vec<u64>>,
    pub(super) spread: Spread,
}

impl SpreadLog {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            published: vec![VecDeque::new(); nodes],
            clocks: vec![vec![0; nodes]; nodes],
            spread: Spread::default(),
        }
    }
}

impl Cluster {
    /// Notes when a node's latest changes were published.
    pub(super) fn note_published(&mut self, node: usize) {
        let now = self.now;
        let Some(log) = &mut self.spread else { return };
        let Some(running) = self.nodes[node].running() else { return };
        let version = running.gossip.own_version();
        let published = &mut log.published[node];
        let last = published.back().map_or(0, |(version, _)| *version);
        if version <= last {
            return;
        }
        published.extend((last + 1..=version).map(|version| (version, now)));
        let everyone = log
            .clocks
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != node)
            .map(|(_, clocks)| clocks[node])
            .min();
        while published.len() > 1
            && published.front().is_some_and(|(version, _)| *version <= everyone.unwrap_or(0))
        {
            published.pop_front();
        }
    }

    /// Measures how long the news took that a node has just had.
    pub(super) fn measure_news(&mut self, node: usize) {
        let now = self.now;
        let Some(log) = &mut self.spread else { return };
        let Some(running) = self.nodes[node].running() else { return };
        for writer in (0..self.nodes.len()).filter(|writer| *writer != node) {
            let newest = log.published[writer].back().map_or(0, |(version, _)| *version);
            if newest <= log.clocks[node][writer] {
                continue;
            }
            let Some(incarnation) = self.nodes[writer].running().map(|running| running.incarnation) else {
                continue;
            };
            let clock = running.gossip.clock_of(NodeIndex(writer as u16), incarnation);
            let before = std::mem::replace(&mut log.clocks[node][writer], clock);
            if clock > before {
                let news = log.published[writer]
                    .iter()
                    .filter(|(version, _)| (before + 1..=clock).contains(version));
                log.spread
                    .0
                    .extend(news.map(|(_, at)| u32::try_from((now - at) / 1_000).unwrap_or(u32::MAX)));
            }
        }
    }
}
