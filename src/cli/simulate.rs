//! Runs scenarios, and hands their figures on.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::{
    Fault,
    args::{Json, Order},
    file, json, plot, table,
};
use crate::{
    config::limits_from_toml,
    limit::Limit,
    sim::{
        Summary,
        scenario::{self, Action, NAMED, Scenario, Targets},
    },
};

/// Prints the names of the built-in scenarios.
pub(super) fn list() -> Result<bool, Fault> {
    let width = NAMED.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: String = NAMED.iter().map(|(name, about)| format!("{name:width$}  {about}\n")).collect();
    print(&lines)?;
    Ok(true)
}

/// Runs what was ordered; whether it went as it should.
pub(super) fn simulate(order: &Order) -> Result<bool, Fault> {
    let scenarios = scenarios(order)?;
    if let Some(path) = &order.plot {
        for scenario in &scenarios {
            let path = if scenarios.len() > 1 { beside(path, scenario) } else { path.clone() };
            plot::draw(scenario, *order.seeds.range().start(), &path)?;
        }
    }
    let printed = order.json == Some(Json::Printed);
    if !printed {
        print(&table::head(order.seeds))?;
    }
    let mut summaries = Vec::new();
    let mut failures = Vec::new();
    for scenario in &scenarios {
        match Summary::of(scenario, order.seeds.range()) {
            Ok(summary) => {
                if !printed {
                    print(&table::row(&summary))?;
                }
                summaries.push(summary);
            }
            Err(failure) => failures.push(failure),
        }
    }
    match &order.json {
        Some(Json::Printed) => print(&json::text(&summaries))?,
        Some(Json::File(path)) => write(path, &json::text(&summaries))?,
        None => {}
    }
    if !printed {
        print(&table::remarks(&summaries, order))?;
    }
    let kept = summaries.iter().all(Summary::passed);
    for failure in &failures {
        let replay = table::replay(&failure.scenario, failure.nodes, failure.seed, order);
        let _ = writeln!(io::stderr(), "ratemesh: {failure}\n  again: {replay}");
    }
    Ok(failures.is_empty() && (kept || !order.check))
}

/// What to run: each scenario in each size.
fn scenarios(order: &Order) -> Result<Vec<Scenario>, Fault> {
    let limits = order.limits.as_deref().map(read_limits).transpose()?;
    let all = NAMED.iter().map(|(name, _)| *name).filter(|_| order.all);
    let mut scenarios = Vec::new();
    for name in all.chain(order.scenarios.iter().map(String::as_str)) {
        if Path::new(name).extension().is_some_and(|extension| extension == "toml") {
            scenarios.extend(from_file(name, order, limits.as_deref())?);
            continue;
        }
        for nodes in order.nodes_of_named() {
            let scenario = scenario::named(name, nodes).ok_or_else(|| unknown(name))?;
            scenarios.push(match &limits {
                Some(limits) => scaled(scenario, limits),
                None => scenario,
            });
        }
    }
    Ok(scenarios)
}

fn unknown(name: &str) -> Fault {
    let near = crate::config::document::nearest(name, NAMED.iter().map(|(name, _)| *name));
    let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
    Fault::Usage(format!(
        "there is no scenario {name:?}{hint} `ratemesh simulate --list` has the names; a file's name ends with .toml"
    ))
}

fn from_file(name: &str, order: &Order, limits: Option<&[Limit]>) -> Result<Vec<Scenario>, Fault> {
    let text = read(Path::new(name))?;
    let sizes =
        order.nodes.as_ref().map_or_else(|| vec![None], |nodes| nodes.iter().copied().map(Some).collect());
    let read = sizes.into_iter().map(|nodes| file::read(&text, name, nodes, limits));
    read.collect::<Result<_, _>>().map_err(|error| Fault::Usage(error.to_string()))
}

fn read_limits(path: &Path) -> Result<Vec<Limit>, Fault> {
    let text = read(path)?;
    let limits = limits_from_toml(&text, &path.display().to_string());
    let measurable = limits.and_then(|limits| file::check_measurable(&limits).map(|()| limits));
    measurable.map_err(|error| Fault::Usage(error.to_string()))
}

/// A built-in scenario with other limits: the load keeps its ratio to the quota. The targets are those of the limit that
/// the scenario was made for.
fn scaled(mut scenario: Scenario, limits: &[Limit]) -> Scenario {
    let per_second = |limits: &[Limit]| limits.first().map_or(1.0, |limit| limit.quota().units_per_second());
    let factor = per_second(limits) / per_second(&scenario.limits);
    for (_, action) in &mut scenario.steps {
        if let Action::Offer(_, rate) | Action::OfferMany(_, _, rate) = action {
            *rate *= factor;
        }
    }
    Scenario { limits: limits.to_vec(), targets: Targets::default(), ..scenario }
}

/// `out.svg` becomes `out-steady-8.svg`.
fn beside(path: &Path, scenario: &Scenario) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or("svg".as_ref()).to_string_lossy();
    path.with_file_name(format!("{stem}-{}-{}.{extension}", scenario.name, scenario.nodes))
}

fn read(path: &Path) -> Result<String, Fault> {
    let unreadable = |error: io::Error| Fault::Usage(format!("{} cannot be read: {error}", path.display()));
    let bytes = crate::config::file::read_file(path).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|_| Fault::Usage(format!("{} is not UTF-8 text", path.display())))
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), Fault> {
    fs::write(path, text).map_err(|error| Fault::writing(&path.display().to_string(), &error))
}

fn print(text: &str) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Fault::writing("standard output", &error))
}
