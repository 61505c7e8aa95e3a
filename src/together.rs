//! One decision over several limits: all let a request pass, or none is spent on.

pub(crate) use crate::bands::Receipt;
use crate::{
    bands::{self, Outcome, Part},
    decision::Decision,
    error::{Refusal, RefusedBy},
    key::{Key, KeySource},
    limiter::Limiter,
    lists::Override,
    permit::{Permit, Permits},
};

/// Decides a request that several limits have to let pass, and spends on all of them or on none.
///
/// Each entry is a limiter, the key that it goes by, and the cost under it. Where keys are of several types, have each
/// digested by [`Limiter::key`] first.
///
/// ```
/// use ratemesh::{Limit, Limiter, Quota, check_all};
///
/// let by_address = Limiter::new(Limit::token_bucket("address", Quota::per_minute(10)).build()?);
/// let by_name = Limiter::new(Limit::token_bucket("name", Quota::per_minute(1)).build()?);
/// let login = |address: &str, name: &str| {
///     check_all([(&by_address, address, 1), (&by_name, name, 1)]).map_err(|refused| refused.index)
/// };
/// assert_eq!(login("192.0.2.1", "alice"), Ok(()));
/// assert_eq!(login("192.0.2.1", "alice"), Err(1));
/// // The second attempt was refused by name, and cost the address nothing.
/// assert_eq!(by_address.peek("192.0.2.1").remaining(), 9);
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
///
/// # While others check too
///
/// The sums are exact at all times: no limit lets through more than it would alone, and in the end a refused request
/// has cost nothing anywhere. All limits are looked at before any is spent on. Only when a request on another thread takes the
/// last units of one limit between that look and the spending, a moment of some hundred nanoseconds, does this one hold
/// units of the limits before it that it will give back; a third request that asks for these very units in that moment is
/// refused. Nothing short of a lock around every check could rule that out.
///
/// # Errors
/// Which limit refused, and why: of several, the one with the longest wait, or the first whose cost can never pass. Nothing is
/// spent.
pub fn check_all<'a, K: KeySource>(
    asks: impl IntoIterator<Item = (&'a Limiter, K, u64)>,
) -> Result<(), RefusedBy<'a>> {
    let asks = checked(asks)?;
    decide(&asks).into_answers().map(|_| ())
}

/// Reserves units of several limits, all or none, like [`check_all`]; each is settled, given back or kept for itself.
///
/// # Errors
/// Which limit refused, and why. Nothing is spent.
pub fn reserve_all<'a, K: KeySource>(
    asks: impl IntoIterator<Item = (&'a Limiter, K, u64)>,
) -> Result<Permits, RefusedBy<'a>> {
    let asks = checked(asks)?;
    let answers = decide(&asks).into_answers()?;
    let permits = answers.into_iter().zip(&asks).map(|((_, receipt), ask)| {
        Permit::new(ask.limiter.bands().clone(), ask.limiter.clock().clone(), receipt, ask.cost)
    });
    Ok(Permits(permits.collect()))
}

/// What one limiter is asked.
pub(crate) struct Ask<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) key: Key,
    /// What the limiter's lists say of the network of the address that the key is.
    pub(crate) listed: Option<Override>,
    pub(crate) cost: u64,
    /// Whether a refusal counts; otherwise the limit is only tried out.
    pub(crate) enforced: bool,
}

/// What all of them say.
pub(crate) struct Decided<'a> {
    /// Whose refusal it was.
    pub(crate) refused: Option<usize>,
    /// An answer to each that was asked, and where its units were spent.
    pub(crate) answers: Vec<(Decision<'a>, Receipt)>,
}

impl<'a> Decided<'a> {
    fn into_answers(self) -> Result<Vec<(Decision<'a>, Receipt)>, RefusedBy<'a>> {
        match self.refused.and_then(|index| Some((index, self.answers.get(index)?))) {
            Some((index, (decision, _))) => Err(RefusedBy { index, refusal: Refusal::Denied(*decision) }),
            None => Ok(self.answers),
        }
    }
}

fn checked<'a, K: KeySource>(
    asks: impl IntoIterator<Item = (&'a Limiter, K, u64)>,
) -> Result<Vec<Ask<'a>>, RefusedBy<'a>> {
    let ask = |(index, (limiter, key, cost)): (usize, (&'a Limiter, K, u64))| {
        let listed = limiter.listed_network(&key);
        let key = limiter.key(key);
        let fits = limiter.bands().check_fits(key, cost);
        fits.map_err(|error| RefusedBy { index, refusal: Refusal::Cost(error) })?;
        Ok(Ask { limiter, key, listed, cost, enforced: true })
    };
    asks.into_iter().enumerate().map(ask).collect()
}

/// Decides on all, or spends nothing.
pub(crate) fn decide<'a>(asks: &[Ask<'a>]) -> Decided<'a> {
    let mut parts = Vec::with_capacity(asks.len());
    let mut owners = Vec::with_capacity(asks.len());
    for (owner, ask) in asks.iter().enumerate() {
        let now = ask.limiter.clock().precise();
        for table in ask.limiter.bands().tables() {
            let Ask { key, listed, cost, enforced, .. } = *ask;
            parts.push(Part { table, key, listed, cost, now, ahead: 0, enforced });
            owners.push(owner);
        }
    }
    let mut outcomes = vec![None; parts.len()];
    let refused = bands::decide_all(parts.iter().copied(), &mut outcomes);
    let answers = asks.iter().enumerate().map(|(owner, ask)| {
        let own =
            || owners.iter().zip(&outcomes).filter(|(other, _)| **other == owner).filter_map(|(_, of)| *of);
        let decisions = || own().map(|outcome: Outcome<'a>| outcome.decision);
        let denied = decisions().filter(|decision| !decision.is_allowed()).max_by_key(Decision::retry_after);
        let decision = denied.or_else(|| decisions().min_by_key(Decision::remaining));
        let decision = decision.unwrap_or_else(|| ask.limiter.peek(ask.key));
        (decision, Receipt::of(own().map(|outcome| outcome.spending)))
    });
    let answers = answers.collect();
    Decided { refused: refused.and_then(|place| owners.get(place).copied()), answers }
}
