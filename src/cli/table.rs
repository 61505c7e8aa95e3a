//! The figures as a table for people: columns that line up, and Markdown at the same time.

use std::fmt::Write as _;

use super::args::{Order, Seeds};
use crate::sim::{MEASURES, Measure, Summary};

const SCENARIO_WIDTH: usize = 18;

/// A column: the measure that it shows, its head, its width, and the digits behind the point.
struct Column {
    measure: &'static str,
    head: &'static str,
    width: usize,
    digits: usize,
    /// Which sizes of figure it shows them in; bytes are shown in thousands.
    unit: f64,
}

const fn column(measure: &'static str, head: &'static str, width: usize, digits: usize, unit: f64) -> Column {
    Column { measure, head, width, digits, unit }
}

const COLUMNS: [Column; 11] = [
    column("excess_mean", "excess", 12, 1, 1.0),
    column("admitted_ratio", "of ideal", 15, 4, 1.0),
    column("total_ratio", "of quota", 16, 3, 1.0),
    column("first_second_ratio", "first s", 16, 3, 1.0),
    column("worst_second_ratio", "worst s", 13, 3, 1.0),
    column("quietest_second_ratio", "quiet s", 13, 3, 1.0),
    column("false_denials", "false den.", 10, 1, 1.0),
    column("messages_per_node_second", "msg/s", 11, 1, 1.0),
    column("bytes_per_node_second", "kB/s", 6, 1, 1e3),
    column("spread_p50_ms", "p50 ms", 6, 1, 1.0),
    column("spread_p99_ms", "p99 ms", 6, 1, 1.0),
];

impl Column {
    fn measure(&self) -> Option<&'static Measure> {
        MEASURES.iter().find(|measure| measure.name == self.measure)
    }
}

/// The table's head.
pub(super) fn head(seeds: Seeds) -> String {
    let mut text = match seeds {
        Seeds::UpTo(count) => format!("Means over {count} seeds; targets stand behind the figures.\n\n"),
        Seeds::One(seed) => format!("Seed {seed}; targets stand behind the figures.\n\n"),
    };
    let heads = COLUMNS.iter().map(|column| (column.head, column.width));
    let _ = write!(text, "| {:SCENARIO_WIDTH$} | {:>5} ", "scenario", "nodes");
    let mut rule = format!("|{}|{}:", "-".repeat(SCENARIO_WIDTH + 2), "-".repeat(6));
    for (at, (head, width)) in heads.enumerate() {
        let _ = write!(text, "| {head:>width$} ");
        let _ = write!(rule, "|{}:", "-".repeat(width + 1));
        if at == 0 {
            let _ = write!(text, "| {:>15} ", "max ≤ bound");
            let _ = write!(rule, "|{}:", "-".repeat(16));
        }
    }
    text + "|\n" + &rule + "|\n"
}

/// One scenario's row.
pub(super) fn row(summary: &Summary) -> String {
    let mut text = format!("| {:SCENARIO_WIDTH$} | {:>5} ", summary.scenario, summary.nodes);
    for (at, column) in COLUMNS.iter().enumerate() {
        let cell = column.measure().map_or_else(String::new, |measure| cell(summary, measure, column));
        let _ = write!(text, "| {cell:>width$} ", width = column.width);
        if at == 0 {
            let _ = write!(text, "| {:>15} ", most(summary));
        }
    }
    text + "|\n"
}

fn cell(summary: &Summary, measure: &Measure, column: &Column) -> String {
    let Column { digits, unit, .. } = column;
    let value = summary.mean(measure);
    let missed = summary.misses().iter().any(|miss| miss.measure == measure.name);
    let figure = format!("{:.digits$}{}", value / unit, if missed { "!" } else { "" });
    match (measure.range)(&summary.targets) {
        (None, None) => figure,
        (Some(least), None) => format!("{figure} ≥{least}"),
        (None, Some(most)) => format!("{figure} ≤{most}"),
        (Some(least), Some(most)) => format!("{figure} {least}–{most}"),
    }
}

/// The largest excess of any seed, and what it is held against.
fn most(summary: &Summary) -> String {
    let max = MEASURES
        .iter()
        .find(|measure| measure.name == "excess_mean")
        .map_or(0.0, |measure| summary.max(measure));
    match summary.bound {
        Some(bound) => format!("{max:.1}{} ≤{bound:.0}", if max > bound { "!" } else { "" }),
        None => format!("{max:.1} –"),
    }
}

/// What the table does not say: the misses, and under one seed its trace.
pub(super) fn remarks(summaries: &[Summary], order: &Order) -> String {
    let mut text = String::from("\n");
    let mut misses = 0;
    for summary in summaries {
        for miss in summary.misses() {
            misses += 1;
            let _ = writeln!(
                text,
                "missed: {}, {} nodes: {} is {:.4}, wanted {}\n  worst seed: {}",
                summary.scenario,
                summary.nodes,
                miss.measure,
                miss.value,
                miss.wanted,
                replay(&summary.scenario, summary.nodes, miss.seed, order)
            );
        }
        if let (Seeds::One(seed), [run]) = (order.seeds, summary.runs.as_slice()) {
            let _ = writeln!(
                text,
                "{}, {} nodes, seed {seed}: trace {:016x}",
                summary.scenario, summary.nodes, run.trace
            );
        }
    }
    if misses == 0 {
        let _ = writeln!(text, "All targets and bounds are kept.");
    }
    text
}

/// The command that runs one seed again.
pub(super) fn replay(scenario: &str, nodes: usize, seed: u64, order: &Order) -> String {
    // A file's scenario has a name of its own; only one file can be meant when there is one.
    let is_file = |name: &&String| name.ends_with(".toml");
    let file = order.scenarios.iter().find(is_file).filter(|_| !is_named(scenario));
    let limits =
        order.limits.as_ref().map_or_else(String::new, |path| format!(" --limits {}", path.display()));
    format!(
        "ratemesh simulate {} --nodes {nodes} --seed {seed}{limits}",
        file.map_or(scenario, String::as_str)
    )
}

fn is_named(scenario: &str) -> bool {
    crate::sim::scenario::NAMED.iter().any(|(name, _)| *name == scenario)
}
