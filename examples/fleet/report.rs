//! What is printed: a line a second, a summary, and the verdict.

use std::ops::RangeInclusive;

use crate::{
    fleet::name,
    measure::{Answers, SECOND, Second},
    node::Status,
    plan::{Phase, Plan, Promise, Targets},
};

/// A second in which a node was asked less than this part of what was planned says nothing of the limiter.
const LEAST_OFFERED: f64 = 0.9;
/// More such seconds than this part, and the run says nothing.
const MOST_NOT_OFFERED: f64 = 0.25;

/// What the run showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Held,
    Missed,
    NotOffered,
}

pub(crate) fn headings(plan: &Plan, nodes: usize) {
    let rule = plan.rule;
    let unheard = if rule.share { "share" } else { "local" };
    println!(
        "one key, {} a second and a burst of {} for all nodes together, on_partition = \"{unheard}\"",
        rule.per_second, rule.burst
    );
    println!("admitted by each node and by the fleet in each second, and the peers that each node hears\n");
    let names: String = (0..nodes).map(|node| format!("{:>8}", name(node))).collect();
    println!("second{names}   fleet  hears");
}

pub(crate) fn phase(phase: &Phase) {
    let offered: Vec<_> = phase.offered.iter().map(|rate| format!("{rate:.0}")).collect();
    let about = if phase.about.is_empty() { String::new() } else { format!("; {}", phase.about) };
    println!("-- {}: {} a second{about}", phase.name, offered.join(" + "));
}

pub(crate) fn second(second: u64, counted: &Second, statuses: &[Option<Status>]) {
    let admitted: String = counted.admitted.iter().map(|units| format!("{units:>8}")).collect();
    let hears: Vec<_> = statuses.iter().map(|status| status.as_ref().map_or("-".to_owned(), heard)).collect();
    println!("{:>6}{admitted}{:>8}  {}", second + 1, counted.total(), hears.join(" | "));
}

/// The numbers of the peers that a node hears.
fn heard(status: &Status) -> String {
    let numbers: Vec<_> = status.up.iter().filter_map(|peer| peer.strip_prefix("node-")).collect();
    if numbers.is_empty() { "nobody".to_owned() } else { numbers.join(",") }
}

/// The summary of the main job: each phase against its promise.
pub(crate) fn story(plan: &Plan, nodes: usize, answers: &Answers) -> Verdict {
    println!(
        "\n{:<10} {:>7} {:>8} {:>8} {:>9} {:>9} {:>6}  each second promised",
        "phase", "asked", "admitted", "of limit", "least", "most", "excess"
    );
    let limit = plan.rule.per_second as f64;
    let seconds = answers.seconds(nodes, plan.seconds() as usize);
    let mut notes = Vec::new();
    let (mut missed, mut not_offered, mut from) = (0, 0, 0);
    for phase in &plan.phases {
        let span = from..from + phase.seconds as usize;
        let outcome = answers.outcome(span.start as u64 * SECOND..span.end as u64 * SECOND);
        let parts: Vec<_> =
            seconds[span.clone()].iter().map(|second| second.total() as f64 / limit).collect();
        // The first second of a full bucket has its burst, too, and is in a note of its own.
        let (least, most) = least_and_most(&parts[usize::from(phase.promise.from_full)..]);
        let of_limit = outcome.admitted as f64 / limit / phase.seconds as f64;
        println!(
            "{:<10} {:>7} {:>8} {of_limit:>8.3} {least:>9.3} {most:>9.3} {:>6.0}  {}",
            phase.name,
            outcome.asked,
            outcome.admitted,
            outcome.excess,
            phase.promise.words()
        );
        for (at, second) in seconds[span.clone()].iter().enumerate() {
            let (part, bounds) = phase.promise.at(at, second, limit);
            let held = bounds.contains(&part);
            let short = part < *bounds.start() && is_short(second, phase);
            missed += usize::from(!held && !short);
            not_offered += usize::from(short);
            if !held {
                notes.push(note(span.start + at, part, &bounds, short));
            }
        }
        from = span.end;
    }
    let first = seconds.first().map_or(0.0, |first| first.total() as f64 / first.ideal.max(1) as f64);
    println!("\nThe first second admitted {first:.3} of what one global bucket would have.");
    notes.iter().for_each(|note| println!("{note}"));
    let verdict = if missed > 0 {
        Verdict::Missed
    } else if not_offered as f64 > MOST_NOT_OFFERED * seconds.len() as f64 {
        Verdict::NotOffered
    } else {
        Verdict::Held
    };
    println!("{}", sentence(verdict));
    verdict
}

fn note(second: usize, part: f64, bounds: &RangeInclusive<f64>, short: bool) -> String {
    let why = if short { "; this machine did not offer the load" } else { "" };
    format!("Second {}: {part:.3}, promised {:.3} to {:.3}{why}.", second + 1, bounds.start(), bounds.end())
}

fn sentence(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Held => "The fleet held what it promises.",
        Verdict::Missed => "The fleet did not hold what it promises.",
        Verdict::NotOffered => "This machine could not offer the load, so the run says nothing of the fleet.",
    }
}

impl Promise {
    /// What a second is measured as, and its bounds.
    fn at(&self, at: usize, second: &Second, limit: f64) -> (f64, RangeInclusive<f64>) {
        let admitted = second.total() as f64;
        if at == 0 && self.from_full {
            return (admitted / second.ideal.max(1) as f64, 0.95..=self.then.1);
        }
        let (least, most) = if at < self.settling { self.at_first } else { self.then };
        (admitted / limit, least..=most)
    }

    fn words(&self) -> String {
        let (least, most) = self.then;
        let then = format!("{least:.2} to {most:.2}");
        match self.settling {
            0 => then,
            _ => format!("{then}; at first {:.2} to {:.2}", self.at_first.0, self.at_first.1),
        }
    }
}

/// Whether some node was asked too little in a second.
fn is_short(second: &Second, phase: &Phase) -> bool {
    second.asked.iter().zip(&phase.offered).any(|(asked, planned)| (*asked as f64) < LEAST_OFFERED * planned)
}

fn least_and_most(parts: &[f64]) -> (f64, f64) {
    parts.iter().fold((f64::INFINITY, 0.0), |(least, most), part| (part.min(least), part.max(most)))
}

/// A scenario's columns, and the simulator's targets beside them.
pub(crate) fn scenario(
    plan: &Plan,
    measured: usize,
    targets: &Targets,
    answers: &Answers,
    (messages, bytes): (f64, f64),
) -> Verdict {
    let before: u64 = plan.phases[..measured].iter().map(|phase| phase.seconds).sum();
    let outcome = answers.outcome(before * SECOND..plan.seconds() * SECOND);
    let limit = plan.rule.per_second as f64;
    let seconds = (plan.seconds() - before) as f64;
    let first = answers.outcome(before * SECOND..(before + 1) * SECOND).admitted as f64;
    let most = |target: Option<f64>| target.map(|most| (f64::NEG_INFINITY, most));
    let least = |target: Option<f64>| target.map(|least| (least, f64::INFINITY));
    let columns = [
        ("excess", outcome.excess, most(targets.excess)),
        ("admitted_ratio", outcome.admitted_ratio(), least(targets.admitted_ratio)),
        ("worst_second", outcome.worst_second as f64 / limit, most(targets.worst_second)),
        ("quietest_second", outcome.quietest_second as f64 / limit, least(targets.quietest_second)),
        ("first_second", first / (limit + plan.rule.burst as f64), None),
        ("total_ratio", outcome.admitted as f64 / limit / seconds, targets.total_ratio),
        ("false_denials", outcome.false_denials as f64, None),
        ("messages_per_node_second", messages, most(targets.messages)),
        ("bytes_per_node_second", bytes, None),
    ];
    println!("\n{:<26} {:>10}  target", "", "measured");
    let mut verdict = Verdict::Held;
    for (column, measured, target) in columns {
        let held = target.is_none_or(|(least, most)| (least..=most).contains(&measured));
        println!(
            "{column:<26} {measured:>10.3}  {}{}",
            target.map_or(String::new(), bounds),
            if held { "" } else { "  missed" }
        );
        if !held {
            verdict = Verdict::Missed;
        }
    }
    let planned: f64 =
        plan.phases[measured..].iter().map(|it| it.offered.iter().sum::<f64>() * it.seconds as f64).sum();
    println!("\n{} of {planned:.0} requests were offered and answered.", outcome.asked);
    if (outcome.asked as f64) < LEAST_OFFERED * planned {
        verdict = Verdict::NotOffered;
    }
    println!("{}", sentence(verdict));
    verdict
}

fn bounds((least, most): (f64, f64)) -> String {
    match (least.is_finite(), most.is_finite()) {
        (true, true) => format!("{least:.2} to {most:.2}"),
        (true, false) => format!("at least {least:.3}"),
        _ => format!("at most {most:.2}"),
    }
}
