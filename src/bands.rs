//! All tables that decide one limit together, and deciding on several tables all or nothing.
//!
//! A limit with several quotas has a table for each. The first is held in place, so that a limit with one, as most are, costs
//! nothing more for it than a look at whether there are others.
//!
//! To decide on several tables, all are looked at first, and nothing is spent if one of them would refuse. Then they are
//! spent on in order. Should one refuse now, because of a request between the look and the spending, what the earlier ones
//! spent is given back; in that moment, and only then, others may find units spent that were only tried for.

use std::{net::IpAddr, sync::Arc, time::Duration};

use crate::{
    decision::Decision,
    error::CostError,
    key::Key,
    limit::{Limit, MAX_BANDS},
    lists::Override,
    table::{Table, give_back::Spending},
    time::Now,
};

/// The tables of one limit, a quota each.
#[derive(Clone)]
pub(crate) struct Bands {
    first: Arc<Table>,
    further: Option<Arc<[Arc<Table>]>>,
}

/// Where units were spent, one place a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receipt {
    first: Option<Spending>,
    further: Vec<Option<Spending>>,
}

/// A table's part of a decision on several.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) table: &'a Table,
    pub(crate) key: Key,
    /// What the limit's lists say of the network of the address that the key is.
    pub(crate) listed: Option<Override>,
    pub(crate) cost: u64,
    pub(crate) now: Now,
    /// Nanoseconds of whose earnings may be spent before they come.
    pub(crate) ahead: u64,
    /// Whether its refusal counts; otherwise it is only tried out.
    pub(crate) enforced: bool,
}

/// What became of a part.
#[derive(Clone, Copy)]
pub(crate) struct Outcome<'a> {
    pub(crate) decision: Decision<'a>,
    pub(crate) spending: Option<Spending>,
}

/// What a correction did, in units.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Corrected {
    pub(crate) spent: u64,
    pub(crate) given_back: u64,
}

impl Bands {
    /// Tables for all quotas of a limit.
    pub(crate) fn new(limit: Limit) -> Self {
        let further: Vec<_> = limit.further().iter().cloned().map(Table::new).map(Arc::new).collect();
        let further = (!further.is_empty()).then(|| further.into());
        Self { first: Arc::new(Table::new(limit)), further }
    }

    pub(crate) fn first(&self) -> &Arc<Table> {
        &self.first
    }

    pub(crate) fn limit(&self) -> &Limit {
        self.first.limit()
    }

    /// Whether `cost` can ever pass for a key.
    #[inline]
    pub(crate) fn check_fits(&self, key: Key, cost: u64) -> Result<(), CostError> {
        self.first.check_fits(key, cost)
    }

    /// For how many units requests may wait at a time for a key.
    #[cfg(feature = "acquire")]
    pub(crate) fn queue_of(&self, key: Key) -> u64 {
        self.first.queue_of(key)
    }

    /// What the limit's lists say of the network of an address, unless an override gives its key a quota of its own.
    #[inline]
    pub(crate) fn listed(&self, address: IpAddr, key: Key) -> Option<Override> {
        let listed = self.limit().lists()?.find(address)?;
        (!self.first.has_own_quota(key)).then_some(listed)
    }

    pub(crate) fn is_single(&self) -> bool {
        self.further.is_none()
    }

    /// All tables, the first quota's first.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> + Clone {
        std::iter::once(&self.first).chain(self.further.iter().flat_map(|further| further.iter()))
    }

    /// Decides on several quotas, all or nothing. Allocates nothing.
    // Kept out of the way of limits with one quota, which share its caller.
    #[inline(never)]
    pub(crate) fn check(&self, key: Key, cost: u64, now: Now) -> Decision<'_> {
        self.decide(key, cost, 0, now, &mut [None; MAX_BANDS])
    }

    /// The same, where units that come back in the next `ahead` nanoseconds may be spent already. Also says where it
    /// spent, and in how many nanoseconds all of those will have come.
    pub(crate) fn check_ahead(
        &self,
        key: Key,
        cost: u64,
        ahead: u64,
        now: Now,
    ) -> (Decision<'_>, Receipt, u64) {
        let mut outcomes = [None; MAX_BANDS];
        let decision = self.decide(key, cost, ahead, now, &mut outcomes);
        let outcomes = outcomes.iter().flatten();
        let due = outcomes.clone().map(|outcome| {
            let Decision { limit, level, .. } = outcome.decision;
            let meter = limit.meter();
            // A leaky bucket goes below zero for what costs more than it holds, without a wait.
            let allowed = meter.need(cost) - meter.fixed(cost);
            meter.nanos_to_earn(allowed.saturating_sub(level), now)
        });
        let due = if ahead > 0 { due.max().unwrap_or(0) } else { 0 };
        (decision, Receipt::of(outcomes.map(|outcome| outcome.spending)), due)
    }

    fn decide<'a>(
        &'a self,
        key: Key,
        cost: u64,
        ahead: u64,
        now: Now,
        outcomes: &mut [Option<Outcome<'a>>; MAX_BANDS],
    ) -> Decision<'a> {
        let mut parts = [None; MAX_BANDS];
        for (part, table) in parts.iter_mut().zip(self.tables()) {
            *part = Some(Part { table, key, listed: None, cost, now, ahead, enforced: true });
        }
        let refused = decide_all(parts.iter().flatten().copied(), outcomes);
        let outcomes = outcomes.iter().flatten().map(|outcome| outcome.decision);
        let decision = match refused {
            Some(_) => self.longest_wait(key, cost, now, outcomes),
            None => outcomes.min_by_key(Decision::remaining),
        };
        decision.unwrap_or_else(|| self.first.peek(key, cost, now))
    }

    /// What [`check_ahead`](Self::check_ahead) would say.
    #[cfg(feature = "acquire")]
    pub(crate) fn look_ahead(&self, key: Key, cost: u64, ahead: u64, now: Now) -> Decision<'_> {
        let parts =
            self.tables().map(|table| Part { table, key, listed: None, cost, now, ahead, enforced: true });
        let looks = parts.map(|part| part.look());
        let refused = looks.clone().filter(|look| !look.is_allowed()).max_by_key(Decision::retry_after);
        refused
            .or_else(|| looks.min_by_key(Decision::remaining))
            .unwrap_or_else(|| self.first.peek(key, cost, now))
    }

    /// Nanoseconds until so many units, which may be more than the capacity, will have come.
    #[cfg(feature = "acquire")]
    pub(crate) fn nanos_until(&self, key: Key, units: u64, now: Now) -> u64 {
        let wait = |table: &Arc<Table>| {
            let look = table.peek(key, 0, now);
            let meter = look.limit.meter();
            if meter.is_stock() {
                // What comes back when somebody gives it back may come at once.
                return 0;
            }
            let missing = meter.fixed(units).saturating_sub(look.level);
            meter.nanos_to_earn(missing, table.own_time(key, now))
        };
        self.tables().map(wait).max().unwrap_or(0)
    }

    /// What would be said of a key whose network is `listed`.
    pub(crate) fn look(&self, key: Key, listed: Option<Override>, cost: u64, now: Now) -> Decision<'_> {
        match listed {
            Some(listed) => self.first.decide_listed(listed, key, cost, now, false),
            None => self.peek(key, cost, now),
        }
    }

    /// What [`check`](Self::check) would say.
    pub(crate) fn peek(&self, key: Key, cost: u64, now: Now) -> Decision<'_> {
        if self.is_single() {
            return self.first.peek(key, cost, now);
        }
        let looks = self.tables().map(|table| table.peek(key, cost, now));
        let refused = looks.clone().filter(|look| !look.is_allowed()).max_by_key(Decision::retry_after);
        let decision = refused.or_else(|| looks.min_by_key(Decision::remaining));
        decision.unwrap_or_else(|| self.first.peek(key, cost, now))
    }

    /// Of the refusals, the one with the longest wait. Those that were not asked are looked at.
    fn longest_wait<'a>(
        &'a self,
        key: Key,
        cost: u64,
        now: Now,
        decisions: impl Iterator<Item = Decision<'a>>,
    ) -> Option<Decision<'a>> {
        let looks = self.tables().map(|table| table.peek(key, cost, now));
        decisions.chain(looks).filter(|look| !look.is_allowed()).max_by_key(Decision::retry_after)
    }

    /// Spends on the tables and says where; a limit with one quota takes the coarse time, `now`, first.
    pub(crate) fn take(
        &self,
        key: Key,
        cost: u64,
        now: Now,
        precise: impl Fn() -> Now + Copy,
    ) -> (Decision<'_>, Receipt) {
        if self.is_single() {
            let (decision, spending) = self.first.take(key, cost, now, precise);
            return (decision, Receipt { first: spending, further: Vec::new() });
        }
        let (decision, receipt, _) = self.check_ahead(key, cost, 0, precise());
        (decision, receipt)
    }

    /// Gives back up to `units` of what this node spent in the current epoch; returns how many, of the first quota.
    pub(crate) fn refund(&self, key: Key, units: u64, now: Now) -> u64 {
        let given = self.first.refund(key, units, now);
        for table in self.tables().skip(1) {
            table.refund(key, units, now);
        }
        given
    }

    /// Gives back up to `units` of a receipt; returns the most that a table took back.
    pub(crate) fn give_back(&self, receipt: &Receipt, units: u64, now: Now) -> u64 {
        let given = self.spendings(receipt).map(|(table, spending)| table.give_back(spending, units, now));
        given.max().unwrap_or(0)
    }

    /// Spends up to `units` more beside a receipt; returns the most that a table spent.
    pub(crate) fn spend_more(&self, receipt: &Receipt, units: u64, now: Now) -> u64 {
        let spent = self.spendings(receipt).map(|(table, spending)| table.spend_more(spending, units, now));
        spent.max().unwrap_or(0)
    }

    /// Corrects a receipt of `cost` units to `actual`.
    pub(crate) fn correct(&self, receipt: &Receipt, cost: u64, actual: u64, now: Now) -> Corrected {
        if actual > cost {
            Corrected { spent: self.spend_more(receipt, actual - cost, now), given_back: 0 }
        } else {
            Corrected { spent: 0, given_back: self.give_back(receipt, cost - actual, now) }
        }
    }

    fn spendings<'a>(&'a self, receipt: &'a Receipt) -> impl Iterator<Item = (&'a Arc<Table>, &'a Spending)> {
        let spendings = std::iter::once(&receipt.first).chain(&receipt.further);
        self.tables().zip(spendings).filter_map(|(table, spending)| Some((table, spending.as_ref()?)))
    }
}

impl Receipt {
    pub(crate) fn of(mut spendings: impl Iterator<Item = Option<Spending>>) -> Self {
        Self { first: spendings.next().flatten(), further: spendings.collect() }
    }

    /// Whether nothing was spent.
    #[cfg(feature = "http")]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.further.iter().all(Option::is_none)
    }
}

/// Decides on all parts, or spends nothing. Fills in an outcome a part; those beyond a refusal are looks. Returns the
/// place of the part that refused.
pub(crate) fn decide_all<'a>(
    parts: impl Iterator<Item = Part<'a>> + Clone,
    outcomes: &mut [Option<Outcome<'a>>],
) -> Option<usize> {
    let mut refused = None;
    for (place, (part, outcome)) in parts.clone().zip(outcomes.iter_mut()).enumerate() {
        let decision = part.look();
        if part.enforced && !decision.is_allowed() {
            // Of several, the one that lasts longest: one that is over in a moment would be spent on for nothing.
            let wait =
                if part.never_passes() { Duration::MAX } else { decision.retry_after().unwrap_or_default() };
            if refused.is_none_or(|(_, _, longest)| wait > longest) {
                refused = Some((place, part, wait));
            }
        }
        *outcome = Some(Outcome { decision, spending: None });
    }
    let mut asked = None;
    if let Some((place, part, _)) = refused {
        // Asked in earnest, so that the refusal is counted; time may have gone on, and it may pass.
        let outcome = part.ask();
        outcomes[place] = Some(outcome);
        if !outcome.decision.is_allowed() {
            return Some(place);
        }
        asked = Some(place);
    }
    for (place, part) in parts.clone().enumerate().filter(|(place, _)| Some(*place) != asked) {
        let outcome = part.ask();
        outcomes[place] = Some(outcome);
        if part.enforced && !outcome.decision.is_allowed() {
            for (part, outcome) in parts.zip(outcomes.iter_mut()) {
                part.take_back(outcome);
            }
            return Some(place);
        }
    }
    None
}

impl<'a> Part<'a> {
    /// Whether its cost is above what its quota can ever hold; what is exempt from a quota is so at any cost.
    fn never_passes(&self) -> bool {
        self.table.check_fits(self.key, self.cost).is_err()
            && !self.table.peek(self.key, self.cost, self.now).is_exempt()
    }

    fn look(&self) -> Decision<'a> {
        if let Some(listed) = self.listed {
            return self.table.decide_listed(listed, self.key, self.cost, self.now, false);
        }
        let look = self.table.peek(self.key, self.cost, self.now);
        let ahead = look.limit.meter().earned_ahead(self.ahead);
        // What the level alone refuses may yet be spent ahead.
        let comes = self.ahead > 0
            && !look.allowed
            && !look.is_kept_out()
            && look.level.saturating_add_unsigned(ahead) >= look.limit.meter().need(self.cost);
        Decision { allowed: (look.allowed || comes) && !self.never_passes(), ..look }
    }

    fn ask(&self) -> Outcome<'a> {
        if let Some(listed) = self.listed {
            let decision = self.table.decide_listed(listed, self.key, self.cost, self.now, true);
            return Outcome { decision, spending: None };
        }
        if self.never_passes() {
            return Outcome { decision: self.look(), spending: None };
        }
        let (decision, spending) = match self.ahead {
            0 => self.table.take(self.key, self.cost, self.now, || self.now),
            ahead => self.table.take_ahead(self.key, self.cost, ahead, self.now),
        };
        Outcome { decision, spending }
    }

    fn take_back(&self, outcome: &mut Option<Outcome<'a>>) {
        if let Some(outcome) = outcome
            && let Some(spending) = outcome.spending.take()
        {
            self.table.give_back(&spending, spending.units(), self.now);
            outcome.decision = self.look();
        }
    }
}
