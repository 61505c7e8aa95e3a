//! Interleaved rounds, and the medians of what they took.

use std::{
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    Failure,
    cases::RATEGUARD,
    subjects::{Plan, Subject},
};

/// One batch of checks: how long it took, and how many were admitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    pub elapsed: Duration,
    pub checks: usize,
    pub admitted: usize,
}

impl Batch {
    fn nanos_per_check(self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.checks as f64
    }
}

/// Keys in the order in which they come first, and in the one in which they come from then on: another one, or what a
/// limiter keeps of them would lie in memory just as it is asked for, which no service sees.
pub struct Keys<'a, K> {
    pub first: &'a [K],
    then: Vec<K>,
}

impl<'a, K: Clone> Keys<'a, K> {
    pub fn new(first: &'a [K]) -> Self {
        let mut order: Vec<usize> = (0..first.len()).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut order);
        // Copied in that order, since a request's own bytes are at hand.
        Self { first, then: order.into_iter().map(|index| first[index].clone()).collect() }
    }
}

/// A limiter in a case, ready for one batch after another.
pub struct Runner<'a> {
    pub name: &'static str,
    pub batch: Box<dyn FnMut(usize) -> Batch + 'a>,
}

impl<'a> Runner<'a> {
    /// Checks keys in turn, going on where the last batch ended. Checks each key once before.
    pub fn in_turn<K: Sync, S: Subject<K> + 'a>(
        name: &'static str,
        subject: S,
        keys: &'a Keys<'a, K>,
    ) -> Self {
        keys.first.iter().for_each(|key| {
            black_box(subject.admits(key));
        });
        let keys = &keys.then[..];
        let mut cursor = 0;
        let batch = move |checks| {
            let start = thread_time();
            let admitted = check_in_turn(&subject, keys, cursor, checks);
            let elapsed = thread_time() - start;
            cursor = (cursor + checks) % keys.len();
            Batch { elapsed, checks, admitted }
        };
        Self { name, batch: Box::new(batch) }
    }

    /// The same from several threads at once, each with the keys of its own part. The time is the threads' mean, by the
    /// clock on the wall, since they may wait for each other; so batches in which something else had one of the
    /// processors, or in which they did not run at the same time, are tried again.
    pub fn in_threads<K: Sync, S: Subject<K> + 'a>(
        name: &'static str,
        subject: S,
        parts: &'a [&'a [K]],
    ) -> Self {
        parts.iter().copied().flatten().for_each(|key| {
            black_box(subject.admits(key));
        });
        let batch = move |checks| {
            let mut best: Option<(f64, Batch)> = None;
            for _ in 0..ATTEMPTS {
                let (share, batch) = one_batch_in_threads(&subject, parts, checks);
                if best.is_none_or(|(least, _)| share > least) {
                    best = Some((share, batch));
                }
                if share >= UNDISTURBED {
                    break;
                }
            }
            best.map_or(Batch::default(), |(_, batch)| batch)
        };
        Self { name, batch: Box::new(batch) }
    }

    /// Checks each key for the first time, on a limiter made for the batch.
    pub fn first_checks<K: Sync, S: Subject<K>>(
        name: &'static str,
        make: impl Fn() -> Result<S, Failure> + 'a,
        keys: &'a [K],
    ) -> Self {
        let batch = move |checks: usize| {
            let Ok(subject) = make() else {
                return Batch { elapsed: Duration::ZERO, checks, admitted: usize::MAX };
            };
            let checks = checks.min(keys.len());
            let start = thread_time();
            let admitted = check_in_turn(&subject, keys, 0, checks);
            Batch { elapsed: thread_time() - start, checks, admitted }
        };
        Self { name, batch: Box::new(batch) }
    }
}

/// How often a batch in several threads is tried, and the part of its time in which its threads have to have run together.
const ATTEMPTS: usize = 12;
const UNDISTURBED: f64 = 0.9;

/// What one thread of a batch measured.
#[derive(Clone, Copy)]
struct InThread {
    start: Instant,
    end: Instant,
    ran: Duration,
    admitted: usize,
}

impl InThread {
    fn elapsed(&self) -> Duration {
        self.end - self.start
    }
}

/// One batch in several threads, and the smallest part of its time that one of them ran, or that all of them ran at once.
fn one_batch_in_threads<K: Sync, S: Subject<K>>(subject: &S, parts: &[&[K]], checks: usize) -> (f64, Batch) {
    let ready = AtomicUsize::new(0);
    let in_thread = |keys: &[K]| {
        // Not asleep, for one that is woken may come when the others are done.
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < parts.len() {
            std::hint::spin_loop();
        }
        let (start, ran) = (Instant::now(), thread_time());
        let admitted = check_in_turn(subject, keys, 0, checks);
        InThread { start, end: Instant::now(), ran: thread_time() - ran, admitted }
    };
    let threads: Vec<InThread> = std::thread::scope(|scope| {
        let in_thread = &in_thread;
        let threads: Vec<_> = parts.iter().map(|keys| scope.spawn(move || in_thread(keys))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let together =
        threads.iter().map(|thread| thread.end).min().zip(threads.iter().map(|thread| thread.start).max());
    let together = together.map_or(Duration::ZERO, |(end, start)| end.saturating_duration_since(start));
    let share = |thread: &InThread| thread.ran.min(together).as_secs_f64() / thread.elapsed().as_secs_f64();
    let batch = Batch {
        elapsed: threads.iter().map(InThread::elapsed).sum(),
        checks: checks * parts.len(),
        admitted: threads.iter().map(|thread| thread.admitted).sum(),
    };
    (threads.iter().map(share).fold(1.0, f64::min), batch)
}

/// The processor time that this thread has had, which leaves out what else the machine does meanwhile.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The loop that is timed: the same for all, compiled for each.
#[inline(never)]
fn check_in_turn<K, S: Subject<K>>(subject: &S, keys: &[K], from: usize, checks: usize) -> usize {
    let mut admitted = 0;
    let (before, after) = keys.split_at(from);
    let mut turns = after.iter().chain(before).cycle();
    if let [only] = keys {
        for _ in 0..checks {
            admitted += usize::from(subject.admits(black_box(only)));
        }
        return admitted;
    }
    for _ in 0..checks {
        let Some(key) = turns.next() else { break };
        admitted += usize::from(subject.admits(black_box(key)));
    }
    admitted
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub rounds: usize,
    pub checks: usize,
}

/// Runs all of a case's limiters in each round, each round beginning with another, and returns the medians in
/// nanoseconds a check, in the limiters' order.
pub fn rounds(plan: Plan, runners: &mut [Runner<'_>], effort: Effort) -> Result<Vec<f64>, Failure> {
    let mut times = vec![Vec::with_capacity(effort.rounds); runners.len()];
    // A round that does not count, for the caches and the branch predictor.
    for round in 0..=effort.rounds {
        for turn in 0..runners.len() {
            let index = (round + turn) % runners.len();
            let batch = (runners[index].batch)(effort.checks);
            let (name, Batch { checks, admitted, .. }) = (runners[index].name, batch);
            if !plan.expected(checks).contains(&admitted) && !is_near_enough(plan, name, batch) {
                return Err(format!("{name} admitted {admitted} of {checks} under the limit {plan:?}").into());
            }
            if round > 0 {
                times[index].push(batch.nanos_per_check());
            }
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// rateguard's largest burst is so small that the refill has to do for the rest, and then threads whose clocks are a few
/// nanoseconds apart refuse each other now and then.
fn is_near_enough(plan: Plan, name: &str, Batch { checks, admitted, .. }: Batch) -> bool {
    name == RATEGUARD && plan == Plan::Ample && checks - admitted <= checks / 1_000
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    match times.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => times[count / 2],
        count => (times[count / 2 - 1] + times[count / 2]) / 2.0,
    }
}
