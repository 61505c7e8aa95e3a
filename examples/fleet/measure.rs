//! What the fleet admitted, held against one global bucket that sees every request when a node decides it.
//!
//! The figures are those of `ratemesh::sim::scenario::Outcome`, computed anew from what real nodes answered.

use std::{collections::VecDeque, ops::Range};

use crate::fleet::Rule;

pub(crate) const SECOND: u64 = 1_000_000;

/// A request that a node decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// When it was decided, in microseconds since the load began.
    pub(crate) micros: u64,
    pub(crate) node: usize,
    pub(crate) admitted: bool,
}

/// One token bucket for all nodes: exact, and instant.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    per_micro: f64,
    burst: f64,
    level: f64,
    at: u64,
}

impl Bucket {
    fn full(rule: Rule) -> Self {
        let (burst, at) = (rule.burst as f64, 0);
        Self { per_micro: rule.per_second as f64 / SECOND as f64, burst, level: burst, at }
    }

    fn advance(&mut self, at: u64) {
        self.level = (self.level + self.per_micro * at.saturating_sub(self.at) as f64).min(self.burst);
        self.at = self.at.max(at);
    }

    fn admit(&mut self) -> bool {
        let admitted = self.level >= 1.0;
        self.level -= f64::from(u8::from(admitted));
        admitted
    }
}

/// What came of a span of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) asked: u64,
    pub(crate) admitted: u64,
    /// What the global bucket admits of the same requests.
    pub(crate) ideal_admitted: u64,
    /// How far below zero the global bucket goes when it is charged with what the fleet admitted.
    pub(crate) excess: f64,
    /// Refusals while the global bucket, so charged, had more than two units.
    pub(crate) false_denials: u64,
    /// The most in any interval of a second, those that begin in the first second left out.
    pub(crate) worst_second: usize,
    /// The fewest in any such interval that ends with an admission.
    pub(crate) quietest_second: usize,
}

impl Outcome {
    pub(crate) fn admitted_ratio(&self) -> f64 {
        self.admitted as f64 / self.ideal_admitted.max(1) as f64
    }
}

/// All that the nodes answered, in the order of their decisions.
pub(crate) struct Answers {
    rule: Rule,
    all: Vec<Answer>,
}

impl Answers {
    pub(crate) fn new(rule: Rule, mut all: Vec<Answer>) -> Self {
        all.sort_by_key(|answer| answer.micros);
        Self { rule, all }
    }

    /// What each of so many nodes was asked and admitted in each of so many seconds.
    pub(crate) fn seconds(&self, nodes: usize, seconds: usize) -> Vec<Second> {
        let mut counted = vec![Second::new(nodes); seconds];
        let mut ideal = Bucket::full(self.rule);
        for answer in &self.all {
            ideal.advance(answer.micros);
            let ideal_admitted = ideal.admit();
            let Some(second) = counted.get_mut((answer.micros / SECOND) as usize) else { continue };
            second.ideal += u64::from(ideal_admitted);
            second.count(answer);
        }
        counted
    }

    /// What came of a span, in microseconds. At its beginning the global bucket is where the fleet is.
    pub(crate) fn outcome(&self, span: Range<u64>) -> Outcome {
        let mut outcome = Outcome { quietest_second: usize::MAX, ..Outcome::default() };
        let mut charged = Bucket::full(self.rule);
        let mut ideal = None;
        let mut recent = VecDeque::new();
        for answer in self.all.iter().take_while(|answer| answer.micros < span.end) {
            charged.advance(answer.micros);
            if answer.micros < span.start {
                charged.level -= f64::from(u8::from(answer.admitted));
                continue;
            }
            let ideal = ideal.get_or_insert(Bucket { level: charged.level.max(0.0), ..charged });
            ideal.advance(answer.micros);
            outcome.asked += 1;
            outcome.ideal_admitted += u64::from(ideal.admit());
            if !answer.admitted {
                outcome.false_denials += u64::from(charged.level >= 3.0);
                continue;
            }
            charged.level -= 1.0;
            outcome.admitted += 1;
            outcome.excess = outcome.excess.max(-charged.level);
            outcome.slide(&mut recent, answer.micros, span.start);
        }
        if outcome.quietest_second == usize::MAX {
            outcome.quietest_second = 0;
        }
        outcome
    }
}

impl Outcome {
    fn slide(&mut self, recent: &mut VecDeque<u64>, at: u64, start: u64) {
        recent.push_back(at);
        while recent.front().is_some_and(|first| at - first >= SECOND) {
            recent.pop_front();
        }
        if at - start > 2 * SECOND {
            self.worst_second = self.worst_second.max(recent.len());
            self.quietest_second = self.quietest_second.min(recent.len());
        }
    }
}

/// One second of the load.
#[derive(Clone, Debug)]
pub(crate) struct Second {
    /// Requests decided, by node.
    pub(crate) asked: Vec<u64>,
    /// Of which admitted.
    pub(crate) admitted: Vec<u64>,
    /// What the global bucket admits of them all.
    pub(crate) ideal: u64,
}

impl Second {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { asked: vec![0; nodes], admitted: vec![0; nodes], ideal: 0 }
    }

    pub(crate) fn count(&mut self, answer: &Answer) {
        self.asked[answer.node] += 1;
        self.admitted[answer.node] += u64::from(answer.admitted);
    }

    /// What the whole fleet admitted.
    pub(crate) fn total(&self) -> u64 {
        self.admitted.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { per_second: 1_000, burst: 100, share: false };

    /// Two requests a millisecond, of which the fleet admits those that `admitted` says, counted from zero.
    fn answers(seconds: u64, admitted: impl Fn(u64) -> bool) -> Answers {
        let answer =
            |number| Answer { micros: number * 500, node: number as usize % 2, admitted: admitted(number) };
        Answers::new(RULE, (0..seconds * 2_000).map(answer).collect())
    }

    #[test]
    fn a_fleet_that_admits_every_other_request_never_touches_the_burst() {
        let outcome = answers(4, |number| number % 2 == 0).outcome(0..4 * SECOND);
        assert_eq!((outcome.asked, outcome.admitted), (8_000, 4_000));
        assert_eq!((outcome.excess, outcome.worst_second, outcome.quietest_second), (0.0, 1_000, 1_000));
        // The burst was there all the time.
        assert!(outcome.false_denials > 3_900);
        assert!((4_095..=4_105).contains(&outcome.ideal_admitted), "{}", outcome.ideal_admitted);
    }

    #[test]
    fn a_fleet_that_admits_everything_is_in_excess_by_all_but_the_limit() {
        let outcome = answers(3, |_| true).outcome(0..3 * SECOND);
        assert!((outcome.excess - 2_900.0).abs() < 2.0, "{}", outcome.excess);
        assert_eq!(outcome.worst_second, 2_000);
    }

    #[test]
    fn a_span_begins_where_the_fleet_is() {
        let all = answers(3, |_| true);
        // The fleet has used up the burst by then, so the global bucket has only what comes in.
        let later = all.outcome(SECOND..2 * SECOND);
        assert!((999..=1_001).contains(&later.ideal_admitted), "{}", later.ideal_admitted);
    }

    #[test]
    fn seconds_are_counted_by_node() {
        let seconds = answers(2, |number| number % 4 == 1).seconds(2, 2);
        assert_eq!(
            (seconds[1].asked.clone(), seconds[1].admitted.clone()),
            (vec![1_000, 1_000], vec![0, 500])
        );
        assert_eq!(seconds[1].total(), 500);
    }
}
