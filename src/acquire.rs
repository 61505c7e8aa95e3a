//! Waiting for units, first come, first served.
//!
//! Whoever has to wait for a key joins its line. A line has one turn, which the first in it holds: a semaphore of tokio's, which
//! is fair and forgets a waiter whose future is dropped. Who has the turn spends as soon as the units are there, or almost
//! there: a timer of tokio's comes up to a millisecond late, and at a high rate that would be many units. So units of
//! the next few milliseconds may be spent in advance; the turn then passes on at once, and the waiter sleeps until
//! its units have come. Dropped meanwhile, it gives them back.
//!
//! A line exists while somebody waits in it, so that their number is bounded by that of the waiting futures.

use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::sync::Semaphore;

use crate::{
    bands::Bands,
    clock::Clock,
    error::Refusal,
    key::Key,
    lists::Override,
    permit::Permit,
    time::{Now, Timestamp, saturating_nanos},
};

/// Units that come back within this time may be spent in advance.
const AHEAD: Duration = Duration::from_millis(5);
/// Who has the turn looks again after this time at the latest: units may come back before they are earned.
const LONGEST_NAP: Duration = Duration::from_millis(100);
const SHORTEST_NAP: Duration = Duration::from_micros(100);

/// Units that are being waited for; made by [`Limiter::acquire`](crate::Limiter::acquire). It does nothing until it is polled.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Acquire<'a>(Pin<Box<dyn Future<Output = Result<Permit, Refusal<'a>>> + Send + 'a>>);

impl<'a> Future for Acquire<'a> {
    type Output = Result<Permit, Refusal<'a>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acquire")
    }
}

/// The lines of one limiter's keys.
#[derive(Default)]
pub(crate) struct Lines {
    lines: Mutex<HashMap<Key, Arc<Line>>>,
    /// How many there are, for those who would find none.
    count: AtomicUsize,
}

struct Line {
    turn: Semaphore,
    /// Who waits, and for how many units; changed under the lock on all lines.
    waiting: Mutex<Waiting>,
}

#[derive(Clone, Copy, Default)]
struct Waiting {
    futures: usize,
    units: u64,
}

/// A place in a line, which is left when it is dropped.
struct Place<'a> {
    lines: &'a Lines,
    key: Key,
    line: Arc<Line>,
    units: u64,
}

impl Lines {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, key: Key) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.lock().contains_key(&key)
    }

    /// Joins a line for `units`, unless more than `most` would then be waited for; says how many units are before it.
    fn join(&self, key: Key, units: u64, most: u64) -> Option<(Place<'_>, u64)> {
        let mut lines = self.lock();
        let before = lines.get(&key).map_or(0, |line| line.waiting().units);
        if before.saturating_add(units) > most {
            return None;
        }
        let line = lines
            .entry(key)
            .or_insert_with(|| Arc::new(Line { turn: Semaphore::new(1), waiting: Mutex::default() }));
        let line = Arc::clone(line);
        let mut waiting = line.waiting();
        (waiting.futures, waiting.units) = (waiting.futures + 1, before + units);
        drop(waiting);
        self.count.store(lines.len(), Ordering::Release);
        Some((Place { lines: self, key, line, units }, before))
    }
}

impl Line {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        let mut waiting = self.line.waiting();
        waiting.futures -= 1;
        waiting.units -= self.units;
        if waiting.futures == 0 {
            lines.remove(&self.key);
        }
        self.lines.count.store(lines.len(), Ordering::Release);
    }
}

/// What is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) bands: &'a Bands,
    pub(crate) clock: &'a Clock,
    pub(crate) lines: &'a Lines,
    pub(crate) key: Key,
    /// What the limit's lists say of the network of the address that the key is.
    pub(crate) listed: Option<Override>,
    pub(crate) cost: u64,
    pub(crate) timeout: Option<Duration>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn acquire(self) -> Acquire<'a> {
        Acquire(Box::pin(self.wait()))
    }

    async fn wait(self) -> Result<Permit, Refusal<'a>> {
        let Self { bands, clock, lines, key, listed, cost, timeout } = self;
        bands.check_fits(key, cost)?;
        let look = bands.look(key, listed, cost, clock.precise());
        // Who is let through uncounted, or kept out, has nothing to wait for.
        if !lines.has(key) || look.is_exempt() || look.is_kept_out() {
            match Permit::reserve(bands, clock, key, listed, cost) {
                Err(Refusal::Denied(decision)) if !decision.is_kept_out() => {}
                answer => return answer,
            }
        }
        let start = clock.precise();
        let until = timeout.map(|timeout| start.mono.after(timeout));
        let Some((place, before)) = lines.join(key, cost, bands.queue_of(key)) else {
            return Err(Refusal::QueueFull(bands.peek(key, cost, start)));
        };
        let least = bands.nanos_until(key, before.saturating_add(cost), start);
        if timeout.is_some_and(|timeout| saturating_nanos(timeout) < least) {
            return Err(Refusal::TooLate(bands.peek(key, cost, start)));
        }
        let too_late = || Refusal::TooLate(bands.peek(key, cost, clock.precise()));
        // Nobody closes the semaphore.
        let Some(Ok(turn)) = until_then(clock, until, place.line.turn.acquire()).await else {
            return Err(too_late());
        };
        let permit = loop {
            let now = clock.precise();
            let nap = match self.spend(now) {
                Ok((permit, due)) => break (permit, due),
                Err(nap) => nap,
            };
            let look = bands.look(key, listed, cost, now);
            if look.is_kept_out() {
                return Err(Refusal::Denied(look));
            }
            if until.is_some_and(|until| now.mono >= until) {
                return Err(too_late());
            }
            let left = until.map_or(Duration::MAX, |until| until.since(now.mono));
            clock.sleep(nap.min(LONGEST_NAP).min(left)).await;
        };
        drop(turn);
        drop(place);
        let (mut permit, due) = permit;
        if until.is_some_and(|until| clock.precise().mono.after(due) > until) {
            return Err(too_late());
        }
        clock.sleep(due).await;
        permit.return_on_drop(false);
        Ok(permit)
    }

    /// Spends if the units are there, or almost; says how long it takes until they are. Or says how long to wait before
    /// it is worth another look.
    fn spend(&self, now: Now) -> Result<(Permit, Duration), Duration> {
        let Self { bands, clock, key, cost, .. } = *self;
        let ahead = saturating_nanos(AHEAD);
        let look = bands.look_ahead(key, cost, ahead, now);
        if let Some(wait) = look.retry_after() {
            // What is refused for another reason than its level says nothing of when.
            let in_advance = bands.tables().all(|table| table.meter().earned_ahead(ahead) > 0);
            let early = if in_advance { AHEAD } else { Duration::ZERO };
            return Err(wait.saturating_sub(early).max(SHORTEST_NAP));
        }
        let (decision, receipt, due) = bands.check_ahead(key, cost, ahead, now);
        if !decision.is_allowed() {
            return Err(SHORTEST_NAP);
        }
        let mut permit = Permit::new(bands.clone(), clock.clone(), receipt, cost);
        permit.return_on_drop(true);
        Ok((permit, Duration::from_nanos(due)))
    }
}

/// Waits for something, but not beyond a moment.
async fn until_then<T>(
    clock: &Clock,
    until: Option<Timestamp>,
    wanted: impl Future<Output = T>,
) -> Option<T> {
    let Some(until) = until else { return Some(wanted.await) };
    let mut wanted = pin!(wanted);
    let mut alarm = pin!(clock.sleep(until.since(clock.precise().mono)));
    poll_fn(|context| match wanted.as_mut().poll(context) {
        Poll::Ready(there) => Poll::Ready(Some(there)),
        Poll::Pending => alarm.as_mut().poll(context).map(|()| None),
    })
    .await
}
