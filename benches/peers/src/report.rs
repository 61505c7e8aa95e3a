//! The table, and what is asked of it.

use serde_json::{Value, json};

use crate::cases::{
    BARE_LINES, BARE_TAGS, CACHED, GOVERNOR, HANDLE, INSTANT, LIVE, MEMORY, RATEGUARD, RATEMESH,
};

/// One figure may be so many times another at most.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    of: &'static str,
    against: &'static str,
    most: f64,
}

impl Target {
    pub const fn at_most(of: &'static str, against: &'static str, most: f64) -> Self {
        Self { of, against, most }
    }
}

/// What came out of a case: a figure for each limiter, in nanoseconds a check, or bytes a key.
pub struct Row {
    pub case: &'static str,
    pub figures: Vec<(&'static str, f64)>,
    pub targets: &'static [Target],
}

impl Row {
    fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(subject, _)| *subject == name).map(|(_, figure)| *figure)
    }

    /// The ratio that a target is about.
    fn ratio(&self, target: &Target) -> Option<f64> {
        Some(self.figure(target.of)? / self.figure(target.against)?)
    }

    /// What the ratios are of: the limiter of ours that the case is about.
    fn ours(&self) -> &'static str {
        self.figures.first().map_or(RATEMESH, |(name, _)| name)
    }

    fn unit(&self) -> &'static str {
        if self.case == MEMORY { "bytes" } else { "ns" }
    }
}

const COLUMNS: [(&str, &str); 9] = [
    (HANDLE, "handle"),
    (RATEMESH, "ratemesh"),
    (LIVE, "live"),
    (GOVERNOR, "governor"),
    (CACHED, "cached"),
    (RATEGUARD, "rateguard"),
    (INSTANT, "Instant"),
    (BARE_LINES, "bare lines"),
    (BARE_TAGS, "bare tags"),
];

/// Prints the table's head.
pub fn print_head() {
    print!("| {:<32} |", "median ns a check (× first column's)");
    COLUMNS.iter().for_each(|(_, title)| print!(" {title:>14} |"));
    println!(" targets");
    println!("|{}|{}", "-".repeat(37), format!("{}|", "-".repeat(16)).repeat(COLUMNS.len()));
}

/// Prints a row: each figure, and in brackets our figure as a multiple of it.
pub fn print_row(row: &Row) {
    print!("| {:<35} |", row.case);
    let ours = row.figure(row.ours()).unwrap_or(f64::NAN);
    for (name, _) in COLUMNS {
        let text = match row.figure(name) {
            None => String::new(),
            Some(figure) if name == row.ours() => format!("{figure:.1}"),
            Some(figure) => format!("{figure:.1} ({:.2})", ours / figure),
        };
        print!(" {text:>14} |");
    }
    let verdicts: Vec<String> = row.targets.iter().map(|target| verdict(row, target)).collect();
    println!(" {}", verdicts.join("; "));
}

fn verdict(row: &Row, target: &Target) -> String {
    let Target { of, against, most } = target;
    match row.ratio(target) {
        Some(ratio) if ratio <= *most => format!("{of} ÷ {against} = {ratio:.2} ≤ {most}"),
        Some(ratio) => format!("MISSED: {of} ÷ {against} = {ratio:.2}, not ≤ {most}"),
        None => String::new(),
    }
}

/// The target that takes two cases: what a second thread brings.
const SCALING: f64 = 1.8;

/// How many times the throughput of one thread two threads have, on keys of their own.
fn scaling(rows: &[Row]) -> Option<f64> {
    let figure = |case: &str| rows.iter().find(|row| row.case == case)?.figure(RATEMESH);
    Some(2.0 * figure("1 thread, as many keys")? / figure("2 threads, distinct keys")?)
}

/// Prints what two cases say together; returns whether all targets were met.
pub fn print_summary(rows: &[Row]) -> bool {
    let scaling = scaling(rows);
    if let Some(scaling) = scaling {
        let verdict = if scaling >= SCALING { "" } else { "MISSED: " };
        println!(
            "\n{verdict}throughput of 2 threads on distinct keys: {scaling:.2} × one thread's (target: ≥ {SCALING})"
        );
    }
    let missed = |row: &Row| {
        row.targets.iter().any(|target| row.ratio(target).is_some_and(|ratio| ratio > target.most))
    };
    scaling.is_none_or(|scaling| scaling >= SCALING) && !rows.iter().any(missed)
}

/// All figures, for machines.
pub fn json(rows: &[Row], rounds: usize, checks: usize) -> Value {
    let row = |row: &Row| {
        let figures: serde_json::Map<_, _> =
            row.figures.iter().map(|(name, figure)| ((*name).to_owned(), json!(figure))).collect();
        let target = |target: &Target| json!({ "of": target.of, "against": target.against, "at_most": target.most, "ratio": row.ratio(target) });
        let targets: Vec<Value> = row.targets.iter().map(target).collect();
        json!({ "case": row.case, "unit": row.unit(), "medians": figures, "targets": targets })
    };
    let rows_json: Vec<Value> = rows.iter().map(row).collect();
    json!({
        "rounds": rounds,
        "checks_a_round": checks,
        "cases": rows_json,
        "scaling": { "two_threads": scaling(rows), "at_least": SCALING },
    })
}
