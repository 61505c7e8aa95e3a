//! What is compared: keys, quotas, threads.

use governor::clock::{DefaultClock, QuantaUpkeepClock};
use ratemesh::{KeySource, Limiter};

use crate::{
    Failure,
    bare::{BareLines, BareTags},
    measure::{Effort, Keys, Runner, rounds},
    memory::held_by,
    report::{Row, Target},
    served::Served,
    subjects::{ClockReading, Governor, Guard, Plan, Subject, cached_clock, governor},
};

pub const RATEMESH: &str = "ratemesh";
pub const LIVE: &str = "ratemesh, live peers";
pub const HANDLE: &str = "KeyHandle";
pub const GOVERNOR: &str = "governor";
pub const CACHED: &str = "governor, cached clock";
pub const RATEGUARD: &str = "rateguard";
pub const INSTANT: &str = "Instant::now";
pub const BARE_LINES: &str = "bare lines";
pub const BARE_TAGS: &str = "bare tags";
const BARE: &str = "no layer";

/// Where a limiter of ratemesh comes from: one of a plan, alone; or, with live peers, one of a mesh.
pub type Limiters<'a> = &'a dyn Fn(Plan) -> Result<Limiter, Failure>;

/// All that a case is made from.
pub struct Bench<'a> {
    pub effort: Effort,
    pub live: Option<Limiters<'a>>,
    cached: QuantaUpkeepClock,
    strings: Vec<String>,
    integers: Vec<u64>,
}

/// The keys of the largest case.
const MANY: usize = 1_000_000;
const SOME: usize = 100_000;
const FEW: usize = 4_096;

/// What was measured of each limiter, by its name.
type Figures = Vec<(&'static str, f64)>;

/// One line of the table to be.
struct Case {
    name: &'static str,
    run: fn(&Bench<'_>) -> Result<Figures, Failure>,
    targets: &'static [Target],
}

const CASES: &[Case] = &[
    Case {
        name: "one hot key",
        run: |bench| bench.strings_in_turn(Plan::Ample, 1),
        targets: &[
            Target::at_most(RATEMESH, GOVERNOR, 0.40),
            Target::at_most(RATEMESH, CACHED, 1.0),
            Target::at_most(RATEMESH, RATEGUARD, 0.6),
        ],
    },
    Case { name: "one hot key, denied", run: |bench| bench.strings_in_turn(Plan::Scarce, 1), targets: &[] },
    Case {
        name: "one hot key, denied at 1,000/s",
        run: |bench| bench.strings_in_turn(Plan::Fast, 1),
        targets: &[],
    },
    Case { name: "4,096 keys in turn", run: |bench| bench.strings_in_turn(Plan::Ample, FEW), targets: &[] },
    Case {
        name: "4,096 keys in turn, denied",
        run: |bench| bench.strings_in_turn(Plan::Scarce, FEW),
        targets: &[],
    },
    Case {
        name: "4,096 keys in turn, full again",
        run: |bench| bench.strings_in_turn(Plan::Full, FEW),
        targets: &[],
    },
    Case { name: "100,000 random keys", run: |bench| bench.strings_in_turn(Plan::Ample, SOME), targets: &[] },
    Case {
        name: "100,000 random keys, denied",
        run: |bench| bench.strings_in_turn(Plan::Scarce, SOME),
        targets: &[],
    },
    Case {
        name: "100,000 random keys, full again",
        run: |bench| bench.strings_in_turn(Plan::Full, SOME),
        targets: &[],
    },
    Case {
        name: "1,000,000 random keys",
        run: |bench| bench.strings_in_turn(Plan::Ample, MANY),
        targets: &[Target::at_most(RATEMESH, GOVERNOR, 0.35), Target::at_most(RATEMESH, RATEGUARD, 0.6)],
    },
    Case {
        name: "1,000,000 random keys, denied",
        run: |bench| bench.strings_in_turn(Plan::Scarce, MANY),
        targets: &[],
    },
    Case { name: "one hot u64 key", run: |bench| bench.integers_in_turn(1), targets: &[] },
    Case { name: "100,000 random u64 keys", run: |bench| bench.integers_in_turn(SOME), targets: &[] },
    Case { name: "1,000,000 random u64 keys", run: |bench| bench.integers_in_turn(MANY), targets: &[] },
    Case {
        name: "2 threads, one hot key",
        run: |bench| bench.in_threads(Plan::Ample, |strings| vec![&strings[..1], &strings[..1]]),
        targets: &[Target::at_most(RATEMESH, GOVERNOR, 0.35)],
    },
    Case {
        name: "2 threads, one hot key, denied",
        run: |bench| bench.in_threads(Plan::Scarce, |strings| vec![&strings[..1], &strings[..1]]),
        targets: &[],
    },
    Case {
        name: "2 threads, distinct keys",
        run: |bench| bench.in_threads(Plan::Ample, |strings| strings[..FEW].chunks(FEW / 2).collect()),
        targets: &[],
    },
    Case {
        name: "1 thread, as many keys",
        run: |bench| bench.in_threads(Plan::Ample, |strings| vec![&strings[..FEW / 2]]),
        targets: &[],
    },
    Case {
        name: "a handle, one thread",
        run: |bench| bench.handle(),
        targets: &[Target::at_most(HANDLE, INSTANT, 0.5)],
    },
    Case { name: "a handle, two threads", run: |bench| bench.handle_in_threads(), targets: &[] },
    Case { name: "first check of a new key", run: |bench| bench.first_checks(), targets: &[] },
    Case {
        name: "HTTP layer, added to a call",
        run: |bench| bench.layers(Plan::Ample),
        targets: &[Target::at_most(RATEMESH, GOVERNOR, 1.0)],
    },
    Case { name: "HTTP layer, refused call", run: |bench| bench.layers(Plan::Scarce), targets: &[] },
    Case { name: MEMORY, run: |bench| bench.bytes_per_key(), targets: &[] },
];

/// The one case that measures bytes, not nanoseconds.
pub const MEMORY: &str = "bytes per key, 1,000,000 keys";

impl<'a> Bench<'a> {
    pub fn new(effort: Effort, live: Option<Limiters<'a>>) -> Result<Self, Failure> {
        let mut rng = fastrand::Rng::with_seed(42);
        // As long as a request's key commonly is: 31 bytes.
        let string = |rng: &mut fastrand::Rng| format!("{:016x}-{:014x}", rng.u64(..), rng.u64(..1 << 56));
        let strings = (0..MANY).map(|_| string(&mut rng)).collect();
        let integers = (0..MANY).map(|_| rng.u64(..)).collect();
        Ok(Self { effort, live, cached: cached_clock()?, strings, integers })
    }

    /// Runs the cases whose names contain one of the patterns, and tells of each row when it is there.
    pub fn run(&self, patterns: &[String], mut tell: impl FnMut(&Row)) -> Result<Vec<Row>, Failure> {
        let wanted =
            |case: &&Case| patterns.is_empty() || patterns.iter().any(|pattern| case.name.contains(pattern));
        let mut rows = Vec::new();
        for case in CASES.iter().filter(wanted) {
            let row = Row { case: case.name, figures: (case.run)(self)?, targets: case.targets };
            tell(&row);
            rows.push(row);
        }
        Ok(rows)
    }

    fn strings_in_turn(&self, plan: Plan, keys: usize) -> Result<Figures, Failure> {
        let keys = Keys::new(&self.strings[..keys]);
        let mut runners = self.runners(plan, &keys)?;
        runners.push(Runner::in_turn(RATEGUARD, Guard::new(plan, keys.first.len())?, &keys));
        if plan == Plan::Ample {
            runners.push(Runner::in_turn(BARE_LINES, BareLines::new(keys.first.len()), &keys));
            runners.push(Runner::in_turn(BARE_TAGS, BareTags::new(keys.first.len()), &keys));
        }
        self.medians(plan, &mut runners)
    }

    fn integers_in_turn(&self, keys: usize) -> Result<Figures, Failure> {
        let keys = Keys::new(&self.integers[..keys]);
        let mut runners = self.runners(Plan::Ample, &keys)?;
        self.medians(Plan::Ample, &mut runners)
    }

    /// ratemesh and governor, which take keys of any type.
    fn runners<'k, K>(&self, plan: Plan, keys: &'k Keys<'k, K>) -> Result<Vec<Runner<'k>>, Failure>
    where
        K: KeySource + std::hash::Hash + Eq + Clone + Send + Sync,
    {
        let mut runners = vec![Runner::in_turn(RATEMESH, Limiter::new(plan.limit()?), keys)];
        if let Some(live) = self.live {
            runners.push(Runner::in_turn(LIVE, live(plan)?, keys));
        }
        runners.push(Runner::in_turn(GOVERNOR, governor::<K, _>(plan, DefaultClock::default()), keys));
        runners.push(Runner::in_turn(CACHED, governor::<K, _>(plan, self.cached.clone()), keys));
        Ok(runners)
    }

    fn in_threads(&self, plan: Plan, part: impl Fn(&[String]) -> Vec<&[String]>) -> Result<Figures, Failure> {
        let parts = part(&self.strings);
        let mut runners = vec![Runner::in_threads(RATEMESH, Limiter::new(plan.limit()?), &parts)];
        if let Some(live) = self.live {
            runners.push(Runner::in_threads(LIVE, live(plan)?, &parts));
        }
        let default: Governor<String, _> = governor(plan, DefaultClock::default());
        runners.push(Runner::in_threads(GOVERNOR, default, &parts));
        let cached: Governor<String, _> = governor(plan, self.cached.clone());
        runners.push(Runner::in_threads(CACHED, cached, &parts));
        runners.push(Runner::in_threads(RATEGUARD, Guard::new(plan, FEW)?, &parts));
        self.medians(plan, &mut runners)
    }

    fn handle(&self) -> Result<Figures, Failure> {
        let keys = Keys::new(&self.strings[..1]);
        let limiter = Limiter::new(Plan::Ample.limit()?);
        let mut runners = vec![
            Runner::in_turn(HANDLE, limiter.handle(&keys.first[0]), &keys),
            Runner::in_turn(RATEMESH, limiter, &keys),
            Runner::in_turn(INSTANT, ClockReading, &keys),
        ];
        self.medians(Plan::Ample, &mut runners)
    }

    fn handle_in_threads(&self) -> Result<Figures, Failure> {
        let parts = [&self.strings[..1], &self.strings[..1]];
        let limiter = Limiter::new(Plan::Ample.limit()?);
        let mut runners = vec![
            Runner::in_threads(HANDLE, limiter.handle(&self.strings[0]), &parts),
            Runner::in_threads(RATEMESH, limiter, &parts),
            Runner::in_threads(INSTANT, ClockReading, &parts),
        ];
        self.medians(Plan::Ample, &mut runners)
    }

    fn first_checks(&self) -> Result<Figures, Failure> {
        let plan = Plan::Ample;
        let keys = &self.strings[..];
        let ratemesh = || Ok(Limiter::new(plan.limit()?));
        let default = || Ok(governor::<String, _>(plan, DefaultClock::default()));
        let cached = || Ok(governor::<String, _>(plan, self.cached.clone()));
        let mut runners = vec![
            Runner::first_checks(RATEMESH, ratemesh, keys),
            Runner::first_checks(GOVERNOR, default, keys),
            Runner::first_checks(CACHED, cached, keys),
            Runner::first_checks(RATEGUARD, || Guard::new(plan, MANY), keys),
        ];
        self.medians(plan, &mut runners)
    }

    /// What a layer adds to one call of a service that answers at once: ratemesh's, and tower_governor's in governor's
    /// column. A call that is refused does not reach the service.
    fn layers(&self, plan: Plan) -> Result<Figures, Failure> {
        let keys = Keys::new(&self.strings[..1]);
        let (period, burst) = plan.governors_terms();
        let mut runners = vec![
            Runner::in_turn(RATEMESH, Served::limited(Limiter::new(plan.limit()?)), &keys),
            Runner::in_turn(GOVERNOR, Served::governed(period, burst)?, &keys),
        ];
        if plan == Plan::Ample {
            runners.push(Runner::in_turn(BARE, Served::bare(), &keys));
        }
        let mut figures = self.medians(plan, &mut runners)?;
        if let Some((_, bare)) = figures.pop_if(|(name, _)| *name == BARE) {
            figures.iter_mut().for_each(|(_, nanos)| *nanos -= bare);
        }
        Ok(figures)
    }

    fn medians(&self, plan: Plan, runners: &mut [Runner<'_>]) -> Result<Figures, Failure> {
        let medians = rounds(plan, runners, self.effort)?;
        Ok(runners.iter().map(|runner| runner.name).zip(medians).collect())
    }

    /// What each limiter holds for each of a million live keys: as asked of the allocator, the keys' own copies included.
    fn bytes_per_key(&self) -> Result<Figures, Failure> {
        fn each<S: Subject<String>>(
            make: impl FnOnce() -> Result<S, Failure>,
            keys: &[String],
        ) -> Result<f64, Failure> {
            let (bytes, subject) = held_by(|| {
                let subject = make()?;
                let admitted = keys.iter().filter(|key| subject.admits(key)).count();
                if admitted == keys.len() {
                    Ok(subject)
                } else {
                    Err(Failure::from("not all keys were admitted"))
                }
            });
            drop(subject?);
            Ok(bytes as f64 / keys.len() as f64)
        }
        let (plan, keys) = (Plan::Ample, &self.strings[..]);
        Ok(vec![
            (RATEMESH, each(|| Ok(Limiter::new(plan.limit()?)), keys)?),
            (GOVERNOR, each(|| Ok(governor::<String, _>(plan, DefaultClock::default())), keys)?),
            (RATEGUARD, each(|| Guard::new(plan, MANY), keys)?),
        ])
    }
}
