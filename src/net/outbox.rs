//! Streams that wait to be sent to one peer.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use quinn::{Connection, SendStream, VarInt};
use tokio::{sync::Notify, task::JoinSet, time::timeout};

/// Payloads that wait; the oldest makes room for the newest, whose state is later.
pub(crate) const MAX_WAITING: usize = 64;
/// Bytes that wait.
pub(crate) const MAX_WAITING_BYTES: usize = 8 << 20;
/// From so many waiting bytes on, the gossip is asked to hold back what can wait, so that nothing has to be dropped.
const CONGESTED_BYTES: usize = 1 << 20;
/// Down to so many, it may go on.
const RELIEVED_BYTES: usize = 512 << 10;
/// Streams written and not yet acknowledged.
const MAX_UNDER_WAY: usize = 8;
/// A peer that has not taken in a stream within this time is given up.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });
/// The code that a stream is reset with when it is given up.
const GIVEN_UP: VarInt = VarInt::from_u32(1);

/// A bounded queue of payloads, each to travel on a one-way stream of its own. They arrive in the order of the queue,
/// and as long as the connection lasts, all of them do that no newer ones push out of the full queue.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    filled: Notify,
    emptied: Notify,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    under_way: usize,
    congested: bool,
}

impl Outbox {
    /// Puts a payload in the queue; never waits.
    pub(crate) fn push(&self, payload: Bytes) {
        let mut queue = self.lock();
        queue.waiting_bytes += payload.len();
        queue.waiting.push_back(payload);
        while queue.waiting.len() > MAX_WAITING || queue.waiting_bytes > MAX_WAITING_BYTES {
            let Some(oldest) = queue.waiting.pop_front() else { break };
            queue.waiting_bytes -= oldest.len();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        queue.congested |= queue.waiting_bytes >= CONGESTED_BYTES;
        drop(queue);
        self.filled.notify_one();
    }

    /// Whether more waits than should: from when that is so until the queue is short again.
    pub(crate) fn is_congested(&self) -> bool {
        self.lock().congested
    }

    /// How many payloads made room for others.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything in the queue has been acknowledged, or the connection has ended.
    pub(crate) async fn drained(&self) {
        loop {
            let emptied = self.emptied.notified();
            let mut emptied = std::pin::pin!(emptied);
            emptied.as_mut().enable();
            if self.is_idle() {
                return;
            }
            emptied.await;
        }
    }

    /// Sends what comes into the queue until the connection ends, or until the peer has not taken in a stream in time.
    /// Calls `relieved` when the queue is short again after it was congested.
    pub(crate) async fn deliver(&self, connection: &Connection, relieved: impl Fn()) {
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                payload = self.next(), if under_way.len() < MAX_UNDER_WAY => {
                    if self.is_relieved() {
                        relieved();
                    }
                    match timeout(DELIVERY_TIMEOUT, write(connection, payload)).await {
                        Ok(Some(stream)) => drop(under_way.spawn(taken_in(stream))),
                        Ok(None) | Err(_) => break,
                    }
                }
                Some(ended) = under_way.join_next(), if !under_way.is_empty() => match ended {
                    Ok(true) => self.acknowledged(),
                    Ok(false) | Err(_) => break,
                },
                _ = connection.closed() => break,
            }
        }
        self.clear();
    }

    /// Takes the next payload; it counts as under way until it is [acknowledged](Outbox::acknowledged).
    async fn next(&self) -> Bytes {
        loop {
            if let Some(payload) = self.take() {
                return payload;
            }
            self.filled.notified().await;
        }
    }

    fn take(&self) -> Option<Bytes> {
        let mut queue = self.lock();
        let payload = queue.waiting.pop_front()?;
        queue.waiting_bytes -= payload.len();
        queue.under_way += 1;
        Some(payload)
    }

    /// Whether the queue is short again; tells it once.
    fn is_relieved(&self) -> bool {
        let mut queue = self.lock();
        let relieved = queue.congested && queue.waiting_bytes <= RELIEVED_BYTES;
        queue.congested &= !relieved;
        relieved
    }

    fn acknowledged(&self) {
        let mut queue = self.lock();
        queue.under_way = queue.under_way.saturating_sub(1);
        let idle = queue.is_idle();
        drop(queue);
        if idle {
            self.emptied.notify_waiters();
        }
    }

    fn clear(&self) {
        *self.lock() = Queue::default();
        self.emptied.notify_waiters();
    }

    fn is_idle(&self) -> bool {
        self.lock().is_idle()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way == 0
    }
}

/// Writes one payload to a stream of its own.
///
/// The next is not begun before. A peer reads one stream after the other, and what has come of later ones takes up the
/// connection's window: were they written side by side, nothing might be left of it for the one that is being read.
async fn write(connection: &Connection, payload: Bytes) -> Option<Whole> {
    let mut whole = Whole { stream: connection.open_uni().await.ok()?, delivered: false };
    whole.stream.write_chunk(payload).await.ok()?;
    whole.stream.finish().ok()?;
    Some(whole)
}

/// Whether the peer acknowledges all of a stream in time.
async fn taken_in(mut whole: Whole) -> bool {
    let end = timeout(DELIVERY_TIMEOUT, whole.stream.stopped()).await;
    whole.delivered = matches!(end, Ok(Ok(None)));
    whole.delivered
}

/// A stream that is reset when it is given up: quinn finishes a stream that is dropped where it stands, and the peer
/// would take the part for the whole.
struct Whole {
    stream: SendStream,
    delivered: bool,
}

impl Drop for Whole {
    fn drop(&mut self) {
        if !self.delivered {
            let _ = self.stream.reset(GIVEN_UP);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_newest_payloads_win() {
        let outbox = Outbox::default();
        for number in 0..MAX_WAITING + 10 {
            outbox.push(Bytes::from(vec![u8::try_from(number).unwrap()]));
        }
        assert_eq!(outbox.dropped(), 10);
        assert_eq!(outbox.next().await[..], [10]);
    }

    #[tokio::test]
    async fn the_queue_is_bounded_in_bytes() {
        let outbox = Outbox::default();
        for _ in 0..9 {
            outbox.push(Bytes::from(vec![0; 1 << 20]));
            assert!(outbox.is_congested());
        }
        assert_eq!(outbox.dropped(), 1);
        assert!(outbox.lock().waiting_bytes <= MAX_WAITING_BYTES);
        for left in (0..8).rev() {
            assert!(outbox.take().is_some() && outbox.is_congested());
            assert_eq!(outbox.is_relieved(), left == 0);
        }
        assert!(!outbox.is_congested());
    }

    #[tokio::test]
    async fn drained_waits_for_what_is_under_way() {
        let outbox = Arc::new(Outbox::default());
        outbox.push(Bytes::from_static(b"x"));
        let waiting = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.drained().await }
        });
        assert_eq!(outbox.next().await[..], *b"x");
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        outbox.acknowledged();
        waiting.await.unwrap();
    }
}
