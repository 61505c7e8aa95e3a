//! Streams that wait to be sent to one peer.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
pub(crate) const MAX_WAITING_BYTES: usize = 4 << 20;
/// Streams under way at once: half of what a peer takes, so that a slow one does not hold up the next.
const MAX_UNDER_WAY: usize = 8;
/// A stream that has not been acknowledged whole within this time is given up.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The code that a stream is reset with when it is given up.
const GIVEN_UP: VarInt = VarInt::from_u32(1);

/// A bounded queue of payloads, each to travel on a one-way stream of its own.
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
        drop(queue);
        self.filled.notify_one();
    }

    /// How many payloads made room for others or were given up.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything in the queue has been acknowledged or given up.
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

    /// Sends what comes into the queue, until the connection ends.
    pub(crate) async fn deliver(self: &Arc<Self>, connection: &Connection) {
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                payload = self.next(), if under_way.len() < MAX_UNDER_WAY => {
                    under_way.spawn(send(connection.clone(), payload));
                }
                Some(ended) = under_way.join_next(), if !under_way.is_empty() => {
                    self.ended(matches!(ended, Ok(true)));
                }
                _ = connection.closed() => break,
            }
        }
        self.clear();
    }

    /// Takes the next payload; it counts as under way until [`Outbox::ended`].
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

    fn ended(&self, delivered: bool) {
        let mut queue = self.lock();
        queue.under_way = queue.under_way.saturating_sub(1);
        let idle = queue.is_idle();
        drop(queue);
        if !delivered {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
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

/// Sends one payload; whether all of it was acknowledged in time.
async fn send(connection: Connection, payload: Bytes) -> bool {
    let delivery = async {
        let mut stream = Whole { stream: connection.open_uni().await.ok()?, delivered: false };
        stream.stream.write_chunk(payload).await.ok()?;
        stream.stream.finish().ok()?;
        stream.delivered = stream.stream.stopped().await.ok()?.is_none();
        stream.delivered.then_some(())
    };
    matches!(timeout(DELIVERY_TIMEOUT, delivery).await, Ok(Some(())))
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
        for _ in 0..5 {
            outbox.push(Bytes::from(vec![0; 1 << 20]));
        }
        assert_eq!(outbox.dropped(), 1);
        assert!(outbox.lock().waiting_bytes <= MAX_WAITING_BYTES);
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
        outbox.ended(true);
        waiting.await.unwrap();
    }
}
