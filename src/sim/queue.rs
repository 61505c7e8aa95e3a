//! What is still to happen, in order.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use crate::gossip::Channel;

/// Something that happens at a moment.
#[derive(Debug)]
pub(super) enum Event {
    Arrival { offer: usize, generation: u64 },
    Wake { node: usize },
    Timer { node: usize },
    Delivery { from: usize, to: usize, connection: u64, channel: Channel, payload: Vec<u8> },
    Connected { pair: (usize, usize), number: u64 },
    Expired { pair: (usize, usize), number: u64 },
}

/// Events by their time, and in the order in which they were pushed where the time is the same.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    pushed: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.pushed += 1;
        self.order.push(Reverse((at, self.pushed)));
        self.events.insert(self.pushed, event);
    }

    /// The next event, if it happens no later than `until`.
    pub(super) fn pop_until(&mut self, until: u64) -> Option<(u64, Event)> {
        let Reverse((at, number)) = *self.order.peek()?;
        if at > until {
            return None;
        }
        self.order.pop();
        Some((at, self.events.remove(&number)?))
    }

    pub(super) fn clear(&mut self) {
        self.order.clear();
        self.events.clear();
    }
}
