//! What this node knows of one other node: its connection, what it has, and whether it is heard.

use std::{collections::BTreeMap, time::Duration};

use super::{NodeIndex, PeerState};
use crate::{ledger::ActorIndex, time::Timestamp};

/// How far a peer has come with one actor's changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// It said, or showed, that it has every change up to here.
    pub(super) acked: u64,
    /// It was sent every change up to here.
    pub(super) sent: u64,
    /// Every change up to here was sent in streams, which lose nothing while the connection stands.
    pub(super) streamed: u64,
    /// Since when an acknowledgement of more than this is waited for.
    waits_since: Timestamp,
    /// How often it was waited for in vain since the last one.
    tries: u8,
    /// When it was last seen to have as much as this node.
    pub(super) level_at: Timestamp,
    /// Until when it is told at once of what it should have heard directly, for it lately did not.
    pub(super) relayed_until: Timestamp,
}

/// A peer that does not acknowledge is waited for twice as long each time, up to so many doublings: one that has much to take
/// in must not be sent it once more meanwhile.
const MOST_DOUBLINGS: u8 = 5;
/// What is in streams is not lost, only slow to be taken in: it is waited for so much longer.
const STREAMED_LONGER: u32 = 8;

impl Known {
    /// Notes that every change up to `version` has been sent.
    pub(super) fn note_sent(&mut self, version: u64, streamed: bool, now: Timestamp) {
        if self.sent <= self.acked {
            self.waits_since = now;
        }
        self.sent = self.sent.max(version);
        if streamed {
            self.streamed = self.sent;
        }
    }

    fn acknowledge(&mut self, version: u64, now: Timestamp) {
        if version > self.acked {
            self.acked = version;
            (self.waits_since, self.tries) = (now, 0);
        }
    }

    /// How many of an actor's `shares` have been sent in streams and are not acknowledged, at most.
    pub(super) fn streaming(&self, shares: usize) -> usize {
        usize::try_from(self.streamed.saturating_sub(self.acked))
            .map_or(shares, |changes| changes.min(shares))
    }

    /// Takes what was sent for lost where its acknowledgement is overdue by what is `usual`.
    pub(super) fn give_up_overdue(&mut self, usual: Duration, now: Timestamp) {
        let longer = if self.streamed > self.acked { STREAMED_LONGER } else { 1 };
        let patience = usual.saturating_mul(longer << self.tries.min(MOST_DOUBLINGS));
        if self.sent > self.acked && now.since(self.waits_since) >= patience {
            (self.sent, self.streamed) = (self.acked, self.acked);
            self.tries = self.tries.saturating_add(1);
        }
    }

    /// From which version on it is to be told of changes.
    pub(super) fn told(&self) -> u64 {
        self.acked.max(self.sent)
    }
}

/// One other node.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) connected: bool,
    /// What one datagram can carry.
    pub(super) datagram_bytes: usize,
    /// Whether streams to it wait in this node, so that more of them should not be written.
    pub(super) congested: bool,
    /// How it numbers the nodes, once its hello has come.
    nodes: Option<Numbering>,
    /// This node's number of each limit in the peer's list.
    limits: Vec<Option<u16>>,
    /// By actor: those whose changes it may have to be told of.
    known: BTreeMap<ActorIndex, Known>,
    /// The peer's last `sent_at`, and when it came.
    pub(super) echo: Option<(u32, Timestamp)>,
    pub(super) rtt: Option<Duration>,
    transit: Transit,
    pub(super) skew_ms: Option<i64>,
    pub(super) state: PeerState,
    /// When the node was last heard, directly or through others.
    pub(super) heard: Timestamp,
    /// When it was last lost, and found again.
    pub(super) outage: Option<Outage>,
    pub(super) mismatches: Vec<String>,
    pub(super) traffic: Traffic,
    /// When it was last answered a sync.
    pub(super) answered: Option<Timestamp>,
    /// The number of the sync that was last asked of it, and when.
    pub(super) asked: Option<(u32, Timestamp)>,
    /// Whether it said that it has its peers' state; `None` before it said anything.
    pub(super) synced: Option<bool>,
    /// The incarnation that its last hello named, and the one that has left.
    pub(super) incarnation: u32,
    pub(super) left: Option<u32>,
    /// Parts that have come of the sync that it was asked for.
    pub(super) parts: u32,
    /// Whether its skew has been told of.
    pub(super) skew_noted: bool,
    /// What it sent that was not taken in, or not in full.
    pub(super) refused: u64,
    /// When a place among its incarnations was last given up.
    pub(super) given_up: Option<Timestamp>,
    /// Shares of its own that others have told of lately.
    pub(super) echoes: Echoes,
}

/// A node's share of which somebody else has told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Echo {
    pub(super) limit: usize,
    pub(super) slot: u32,
    pub(super) epoch: u16,
    pub(super) actor: ActorIndex,
    /// By how much it grew with that, spent and given back.
    pub(super) grown: u64,
    pub(super) at: Timestamp,
}

/// How a peer numbers nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// As this node does, so many of them.
    Same(usize),
    /// Otherwise: this node's index of each.
    Other(Vec<Option<NodeIndex>>),
}

/// The few of them that grew most, which their writer is shown, so that it finds out when somebody makes shares up in its
/// name. To hide spending, a made-up share must be larger than the real one; and one that is pushed out of here was pushed
/// out by a larger one.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    list: Vec<Echo>,
    sent_at: Option<Timestamp>,
}

/// Shares that one node is shown at a time.
const MAX_ECHOES: usize = 2;
/// How often it is shown them, and for how long.
const ECHO_AGAIN_AFTER: Duration = Duration::from_secs(3);
const ECHO_FOR: Duration = Duration::from_secs(30);

impl Echoes {
    pub(super) fn note(&mut self, echo: Echo) {
        let same = |other: &&mut Echo| {
            (other.limit, other.slot, other.epoch, other.actor)
                == (echo.limit, echo.slot, echo.epoch, echo.actor)
        };
        if let Some(known) = self.list.iter_mut().find(same) {
            *known = Echo { grown: known.grown.max(echo.grown), ..echo };
        } else if self.list.len() < MAX_ECHOES {
            self.list.push(echo);
        } else if let Some(least) = self.list.iter_mut().min_by_key(|other| other.grown)
            && least.grown < echo.grown
        {
            *least = echo;
        }
    }

    /// What is to be shown now, if it is time.
    pub(super) fn due(&mut self, now: Timestamp) -> &[Echo] {
        if self.list.is_empty() || self.sent_at.is_some_and(|at| now.since(at) < ECHO_AGAIN_AFTER) {
            return &[];
        }
        self.list.retain(|echo| now.since(echo.at) < ECHO_FOR);
        self.sent_at = Some(now);
        &self.list
    }

    fn forget_actor(&mut self, actor: ActorIndex) {
        self.list.retain(|echo| echo.actor != actor);
    }
}

/// A time in which a node could not be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    pub(super) from: Timestamp,
    /// When it was heard again.
    pub(super) until: Option<Timestamp>,
}

/// Counts of what went over the wire.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    pub(super) messages_sent: u64,
    pub(super) messages_received: u64,
}

impl Peer {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            connected: false,
            datagram_bytes: 0,
            congested: false,
            nodes: None,
            limits: Vec::new(),
            known: BTreeMap::new(),
            echo: None,
            rtt: None,
            transit: Transit::default(),
            skew_ms: None,
            state: PeerState::Unheard,
            heard: now,
            outage: None,
            mismatches: Vec::new(),
            traffic: Traffic::default(),
            answered: None,
            asked: None,
            synced: None,
            incarnation: 0,
            left: None,
            parts: 0,
            skew_noted: false,
            refused: 0,
            given_up: None,
            echoes: Echoes::default(),
        }
    }

    /// A connection is there; what the peer has, and how it numbers things, is to be learnt anew.
    pub(super) fn connect(&mut self, datagram_bytes: usize) {
        self.connected = true;
        self.datagram_bytes = datagram_bytes;
        self.congested = false;
        self.nodes = None;
        self.known.clear();
        self.echo = None;
        self.transit = Transit::default();
        self.asked = None;
        self.answered = None;
    }

    pub(super) fn disconnect(&mut self) {
        self.connected = false;
        self.nodes = None;
        self.echo = None;
    }

    /// Forgets what goes by the numbers of nodes, limits and actors.
    pub(super) fn forget_numbers(&mut self) {
        self.disconnect();
        self.limits.clear();
        self.known.clear();
        self.echoes = Echoes::default();
    }

    /// Whether it can be talked to: connected, and its hello has come.
    pub(super) fn is_ready(&self) -> bool {
        self.connected && self.nodes.is_some()
    }

    pub(super) fn set_numbering(&mut self, nodes: Numbering, limits: Vec<Option<u16>>) {
        self.nodes = Some(nodes);
        self.limits = limits;
    }

    /// This node's index of what the peer calls node number `number`.
    pub(super) fn node(&self, number: u16) -> Option<NodeIndex> {
        match self.nodes.as_ref()? {
            Numbering::Same(nodes) => (usize::from(number) < *nodes).then_some(NodeIndex(number)),
            Numbering::Other(nodes) => nodes.get(usize::from(number)).copied().flatten(),
        }
    }

    /// How many nodes the peer numbers.
    pub(super) fn numbered(&self) -> Option<usize> {
        Some(match self.nodes.as_ref()? {
            Numbering::Same(nodes) => *nodes,
            Numbering::Other(nodes) => nodes.len(),
        })
    }

    /// This node's number of what the peer calls limit number `number`.
    pub(super) fn limit(&self, number: u16) -> Option<u16> {
        self.limits.get(usize::from(number)).copied().flatten()
    }

    pub(super) fn known(&self, actor: ActorIndex) -> Known {
        self.known.get(&actor).copied().unwrap_or_default()
    }

    pub(super) fn known_mut(&mut self, actor: ActorIndex) -> &mut Known {
        self.known.entry(actor).or_default()
    }

    /// The peer has shown that it has every change of `actor` up to `version`. That is kept where it is `wanted`, or where
    /// something is kept of the actor already.
    pub(super) fn acknowledge(&mut self, actor: ActorIndex, version: u64, wanted: bool, now: Timestamp) {
        if wanted {
            self.known_mut(actor).acknowledge(version, now);
        } else if let Some(known) = self.known.get_mut(&actor) {
            known.acknowledge(version, now);
        }
    }

    /// Forgets how far it has come with an actor of whose changes nobody has to be told.
    pub(super) fn forget_progress(&mut self, actor: ActorIndex) {
        self.known.remove(&actor);
    }

    /// Forgets what it has of an actor whose index goes to another.
    pub(super) fn forget_actor(&mut self, actor: ActorIndex) {
        self.known.remove(&actor);
        self.echoes.forget_actor(actor);
    }

    /// Notes by how much longer than others the frame was under way that has just come.
    pub(super) fn note_transit(&mut self, sent_at: u32, came_at: u32) {
        self.transit.note(came_at.wrapping_sub(sent_at));
    }

    /// Takes in a measured round trip, smoothed as in RFC 6298; what its answer lay waiting is no part of it.
    pub(super) fn measure(&mut self, rtt: Duration) {
        let rtt = rtt.saturating_sub(self.transit.late());
        self.rtt = Some(self.rtt.map_or(rtt, |smooth| (smooth * 7 + rtt) / 8));
    }

    /// How long the frame that has just come from it has been under way.
    pub(super) fn delay(&self) -> Duration {
        self.rtt.map_or(Duration::from_millis(1), |rtt| rtt / 2) + self.transit.late()
    }
}

/// A frame that seems to be later than this shows that a clock has stood still: then all that is known is forgotten.
const MOST_LATE_MICROS: u32 = 2_000_000;
/// By which part of its lateness a frame raises what is thought the least transit, and by how much at most: two clocks
/// may drift apart by more than a ten-thousandth.
const TRANSIT_GAIN: u32 = 64;
const MOST_RAISED_MICROS: u32 = 20;

/// Frames' transits, between two clocks that have nothing to do with each other: only by how much one took longer than the
/// fastest can be known. Frames lie waiting where this node's gossip could not run, and are old when they are read.
#[derive(Clone, Copy, Debug, Default)]
struct Transit {
    /// The least, modulo 2³² microseconds.
    least: Option<u32>,
    late_micros: u32,
}

impl Transit {
    fn note(&mut self, micros: u32) {
        let least = self.least.unwrap_or(micros);
        let late = micros.wrapping_sub(least);
        (self.least, self.late_micros) = match late {
            ..=MOST_LATE_MICROS => {
                (Some(least.wrapping_add((late / TRANSIT_GAIN).min(MOST_RAISED_MICROS))), late)
            }
            _ => (Some(micros), 0),
        };
    }

    fn late(&self) -> Duration {
        Duration::from_micros(self.late_micros.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_late_as_it_came_after_the_fastest() {
        let mut transit = Transit::default();
        // Whatever the clocks show: the difference wraps.
        for (micros, late) in [(u32::MAX - 100, 0), (200, 301), (u32::MAX - 300, 0), (300_000, 300_301)] {
            transit.note(micros);
            assert!(transit.late_micros.abs_diff(late) <= 5, "{} for {late}", transit.late_micros);
        }
    }

    #[test]
    fn clocks_that_drift_apart_or_stood_still_make_no_frame_late_for_long() {
        let mut transit = Transit::default();
        for frame in 0..100_000 {
            // Ten frames a second, and 100 microseconds of drift in each.
            transit.note(1_000 + frame * 10);
        }
        assert!(transit.late_micros < 1_000, "{}", transit.late_micros);
        transit.note(60_000_000);
        assert_eq!(transit.late_micros, 0);
    }
}
