//! The file form of a scenario: what a TOML file may say, and how it becomes a [`Scenario`].
//!
//! `examples/scenarios/` has files to start from. The `[[limit]]` tables are those of a configuration,
//! but for `shadow`, `count_denied` and `on_exceed`, which the first must not have; lists do not hold any of the keys that are made up.

use std::time::Duration;

use serde::Deserialize;

use super::args::MAX_NODES;
use crate::{
    config::{
        ConfigError,
        document::Document,
        file::{LimitForm, checked_limits, required},
        parse_duration,
    },
    limit::Limit,
    sim::{
        Keys, Network,
        scenario::{Action, Scenario, Targets},
    },
};

/// No scenario runs longer.
const MAX_LENGTH: Duration = Duration::from_secs(86_400);
/// No node is offered more requests per second.
const MAX_RATE: f64 = 10_000_000.0;
const MAX_KEYS: i64 = 10_000_000;
const MAX_BURST: i64 = 1_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the tables of a scenario")]
struct Form {
    name: Option<String>,
    about: Option<String>,
    nodes: Option<i64>,
    length: Option<String>,
    #[serde(default)]
    network: NetworkForm,
    #[serde(default)]
    limit: Vec<LimitForm>,
    #[serde(default)]
    step: Vec<StepForm>,
    #[serde(default)]
    targets: TargetsForm,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [network] table")]
struct NetworkForm {
    min_delay: Option<String>,
    max_delay: Option<String>,
    loss: Option<f64>,
    duplication: Option<f64>,
    reordering: Option<f64>,
    hold: Option<String>,
    idle_timeout: Option<String>,
    max_reconnect: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [[step]] table")]
struct StepForm {
    at: Option<String>,
    offer: Option<OfferForm>,
    offer_all: Option<OfferAllForm>,
    burst: Option<BurstForm>,
    partition: Option<Vec<Vec<i64>>>,
    cut: Option<CutForm>,
    heal: Option<bool>,
    crash: Option<i64>,
    leave: Option<i64>,
    restart: Option<i64>,
    stall: Option<StallForm>,
    skew: Option<SkewForm>,
    measure: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ node = …, rate = … }")]
struct OfferForm {
    node: Option<i64>,
    rate: Option<f64>,
    keys: Option<i64>,
    key_life: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ rate = … }")]
struct OfferAllForm {
    rate: Option<f64>,
    keys: Option<i64>,
    key_life: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ node = …, requests = … }")]
struct BurstForm {
    node: Option<i64>,
    requests: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ from = …, to = … }")]
struct CutForm {
    from: Option<i64>,
    to: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ node = …, length = … }")]
struct StallForm {
    node: Option<i64>,
    length: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ node = …, ahead = … } or { node = …, behind = … }")]
struct SkewForm {
    node: Option<i64>,
    ahead: Option<String>,
    behind: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [targets] table")]
struct TargetsForm {
    excess: Option<f64>,
    admitted_ratio: Option<f64>,
    worst_second: Option<f64>,
    quietest_second: Option<f64>,
    first_second: Option<[f64; 2]>,
    total_ratio: Option<[f64; 2]>,
    false_denials: Option<f64>,
    messages: Option<f64>,
}

/// Reads a scenario; `source_name` is what errors call the text.
///
/// # Errors
/// Says which line and key will not do, what it holds, and what would do.
pub fn scenario_from_toml(text: &str, source_name: &str) -> Result<Scenario, ConfigError> {
    read(text, source_name, None, None)
}

/// Reads a scenario for a fleet of another size, or with other limits, than the text says.
pub(super) fn read(
    text: &str,
    source_name: &str,
    nodes: Option<usize>,
    limits: Option<&[Limit]>,
) -> Result<Scenario, ConfigError> {
    let (document, form) = Document::read::<Form>(text, source_name)?;
    scenario(form, nodes, limits).map_err(|error| document.locate(error))
}

fn scenario(form: Form, nodes: Option<usize>, limits: Option<&[Limit]>) -> Result<Scenario, ConfigError> {
    let nodes = match nodes {
        Some(nodes) => nodes,
        None => {
            let nodes = required("nodes", form.nodes, "how many nodes the fleet has, 1 to 1000")?;
            whole("nodes", nodes, 1, MAX_NODES as i64)? as usize
        }
    };
    let length = required("length", form.length, "how long it runs, such as \"20s\"")?;
    let length = duration("length", &length)?;
    if length.is_zero() || length > MAX_LENGTH {
        return Err(ConfigError::value("length", format_args!("{length:?}"), "1ns to 1d"));
    }
    let limits = match limits {
        Some(limits) => limits.to_vec(),
        None => checked_limits(form.limit)?,
    };
    check_measurable(&limits)?;
    let fleet = Fleet { nodes, length };
    let mut steps = Vec::new();
    for (index, form) in form.step.into_iter().enumerate() {
        fleet.step(&format!("step[{index}]"), form, &mut steps)?;
    }
    steps.sort_by_key(|(at, _)| *at);
    Ok(Scenario {
        name: required("name", form.name, "the scenario's name")?,
        about: form.about.unwrap_or_default(),
        nodes,
        limits,
        network: network(&form.network)?,
        steps,
        length,
        targets: targets(&form.targets),
    })
}

/// The figures compare a fleet with one limiter that only counts what it admits, so other limits would be measured wrongly.
/// It is the first limit that is asked.
pub(super) fn check_measurable(limits: &[Limit]) -> Result<(), ConfigError> {
    let Some(limit) = limits.first() else { return Ok(()) };
    let set = [
        ("shadow", limit.is_shadow()),
        ("count_denied", limit.counts_denied()),
        ("on_exceed", limit.ban_on_exceed().is_some()),
    ];
    match set.iter().find(|(_, set)| *set) {
        None => Ok(()),
        Some((name, _)) => {
            let why = "is not simulated by scenarios, whose figures are those of a limit that refuses what is too \
                 much and no more; leave it out of the first limit";
            Err(ConfigError::refused(format!("limit[0].{name}"), why))
        }
    }
}

fn network(form: &NetworkForm) -> Result<Network, ConfigError> {
    let mut network = Network::default();
    let durations = [
        ("network.min_delay", &form.min_delay, &mut network.min_delay),
        ("network.max_delay", &form.max_delay, &mut network.max_delay),
        ("network.hold", &form.hold, &mut network.hold),
        ("network.idle_timeout", &form.idle_timeout, &mut network.idle_timeout),
        ("network.max_reconnect", &form.max_reconnect, &mut network.max_reconnect),
    ];
    for (key, text, place) in durations {
        if let Some(text) = text {
            *place = duration(key, text)?;
        }
    }
    let parts = [
        ("network.loss", form.loss, &mut network.loss),
        ("network.duplication", form.duplication, &mut network.duplication),
        ("network.reordering", form.reordering, &mut network.reordering),
    ];
    for (key, part, place) in parts {
        if let Some(part) = part {
            *place = number(key, part, 0.0, 0.99, "a part of all datagrams, 0 to 0.99")?;
        }
    }
    // One of the two may be given alone, beyond the other's default.
    match (&form.min_delay, &form.max_delay) {
        (Some(_), None) => network.max_delay = network.max_delay.max(network.min_delay),
        (None, Some(_)) => network.min_delay = network.min_delay.min(network.max_delay),
        _ => {}
    }
    if network.min_delay > network.max_delay {
        let wanted = format!("max_delay or less, {:?}", network.max_delay);
        return Err(ConfigError::value("network.min_delay", format_args!("{:?}", network.min_delay), wanted));
    }
    Ok(network)
}

fn targets(form: &TargetsForm) -> Targets {
    let pair = |pair: Option<[f64; 2]>| pair.map(|[least, most]| (least, most));
    Targets {
        excess: form.excess,
        admitted_ratio: form.admitted_ratio,
        worst_second: form.worst_second,
        quietest_second: form.quietest_second,
        first_second: pair(form.first_second),
        total_ratio: pair(form.total_ratio),
        false_denials: form.false_denials,
        messages: form.messages,
    }
}

/// What steps are checked against.
struct Fleet {
    nodes: usize,
    length: Duration,
}

impl Fleet {
    fn step(
        &self,
        key: &str,
        form: StepForm,
        steps: &mut Vec<(Duration, Action)>,
    ) -> Result<(), ConfigError> {
        let at_key = format!("{key}.at");
        let at =
            duration(&at_key, required(&at_key, form.at.as_ref(), "when, from the start, such as \"2s\"")?)?;
        if at > self.length {
            return Err(ConfigError::value(
                at_key,
                format_args!("{at:?}"),
                "a time within the scenario's length",
            ));
        }
        let mut actions = self.load(key, &form)?;
        actions.extend(self.faults(key, &form)?);
        match actions.len() {
            0 => Err(ConfigError::refused(key, format_args!("does nothing; give it one of {ACTIONS}"))),
            _ if named(&form) > 1 => {
                Err(ConfigError::refused(key, "does more than one thing; give each a [[step]] of its own"))
            }
            _ => {
                steps.extend(actions.into_iter().map(|action| (at, action)));
                Ok(())
            }
        }
    }

    fn load(&self, key: &str, form: &StepForm) -> Result<Vec<Action>, ConfigError> {
        let mut actions = Vec::new();
        if let Some(offer) = &form.offer {
            let key = format!("{key}.offer");
            let node = self.node(&format!("{key}.node"), offer.node)?;
            let rate = rate(&key, offer.rate)?;
            actions.push(offered(node, keys(&key, offer.keys, offer.key_life.as_deref())?, rate));
        }
        if let Some(offer) = &form.offer_all {
            let key = format!("{key}.offer_all");
            let each = rate(&key, offer.rate)? / self.nodes as f64;
            let keys = keys(&key, offer.keys, offer.key_life.as_deref())?;
            actions.extend((0..self.nodes).map(|node| offered(node, keys.clone(), each)));
        }
        if let Some(burst) = &form.burst {
            let key = format!("{key}.burst");
            let node = self.node(&format!("{key}.node"), burst.node)?;
            let requests = required(format!("{key}.requests"), burst.requests, "how many requests at once")?;
            let requests = whole(&format!("{key}.requests"), requests, 1, MAX_BURST)?;
            actions.push(Action::Burst(node, requests as u64));
        }
        Ok(actions)
    }

    fn faults(&self, key: &str, form: &StepForm) -> Result<Vec<Action>, ConfigError> {
        let mut actions = Vec::new();
        if let Some(groups) = &form.partition {
            actions.extend(self.partition(&format!("{key}.partition"), groups)?);
        }
        if let Some(CutForm { from, to }) = form.cut {
            let key = format!("{key}.cut");
            actions.push(Action::Cut(
                self.node(&format!("{key}.from"), from)?,
                self.node(&format!("{key}.to"), to)?,
            ));
        }
        type Of = fn(usize) -> Action;
        let of_node: [(&str, Option<i64>, Of); 3] = [
            ("crash", form.crash, Action::Crash),
            ("leave", form.leave, Action::Leave),
            ("restart", form.restart, Action::Restart),
        ];
        for (name, node, action) in of_node {
            if node.is_some() {
                actions.push(action(self.node(&format!("{key}.{name}"), node)?));
            }
        }
        if let Some(stall) = &form.stall {
            let key = format!("{key}.stall");
            let node = self.node(&format!("{key}.node"), stall.node)?;
            let length_key = format!("{key}.length");
            let length = required(&length_key, stall.length.as_ref(), "how long, such as \"300ms\"")?;
            actions.push(Action::Stall(node, duration(&length_key, length)?));
        }
        if let Some(skew) = &form.skew {
            actions.push(self.skew(&format!("{key}.skew"), skew)?);
        }
        for (name, given, action) in
            [("heal", form.heal, Action::Heal), ("measure", form.measure, Action::Measure)]
        {
            match given {
                Some(true) => actions.push(action),
                Some(false) => return Err(ConfigError::value(format!("{key}.{name}"), false, "true")),
                None => {}
            }
        }
        Ok(actions)
    }

    /// Each group is cut off from all the others.
    fn partition(&self, key: &str, groups: &[Vec<i64>]) -> Result<Vec<Action>, ConfigError> {
        let mut checked: Vec<Vec<usize>> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let nodes: Result<Vec<usize>, _> = group
                .iter()
                .enumerate()
                .map(|(at, node)| self.node(&format!("{key}[{index}][{at}]"), Some(*node)))
                .collect();
            checked.push(nodes?);
        }
        let twice = checked
            .iter()
            .enumerate()
            .any(|(at, one)| checked[at + 1..].iter().flatten().any(|node| one.contains(node)));
        if checked.len() < 2 || twice || checked.iter().any(Vec::is_empty) {
            let wanted = "two groups of nodes or more, as in [[0], [1, 2]], each node in one of them";
            return Err(ConfigError::value(key, format_args!("{groups:?}"), wanted));
        }
        let mut actions = Vec::new();
        for (at, one) in checked.iter().enumerate() {
            actions
                .extend(checked[at + 1..].iter().map(|other| Action::Partition(one.clone(), other.clone())));
        }
        Ok(actions)
    }

    fn skew(&self, key: &str, form: &SkewForm) -> Result<Action, ConfigError> {
        let node = self.node(&format!("{key}.node"), form.node)?;
        let (sign, name, text) = match (&form.ahead, &form.behind) {
            (Some(text), None) => (1, "ahead", text),
            (None, Some(text)) => (-1, "behind", text),
            _ => {
                return Err(ConfigError::refused(
                    key,
                    "takes one of ahead and behind, such as ahead = \"2s\"",
                ));
            }
        };
        let off = duration(&format!("{key}.{name}"), text)?;
        Ok(Action::Skew(node, sign * i64::try_from(off.as_millis()).unwrap_or(i64::MAX)))
    }

    fn node(&self, key: &str, node: Option<i64>) -> Result<usize, ConfigError> {
        let last = self.nodes - 1;
        let wanted = format!("a node's number, 0 to {last} in a fleet of {}", self.nodes);
        let node = required(key, node, &wanted)?;
        usize::try_from(node)
            .ok()
            .filter(|node| *node <= last)
            .ok_or_else(|| ConfigError::value(key, node, wanted))
    }
}

const ACTIONS: &str =
    "offer, offer_all, burst, partition, cut, heal, crash, leave, restart, stall, skew and measure";

/// How many things a step is told to do.
fn named(form: &StepForm) -> usize {
    let given = [
        form.offer.is_some(),
        form.offer_all.is_some(),
        form.burst.is_some(),
        form.partition.is_some(),
        form.cut.is_some(),
        form.heal.is_some(),
        form.crash.is_some(),
        form.leave.is_some(),
        form.restart.is_some(),
        form.stall.is_some(),
        form.skew.is_some(),
        form.measure.is_some(),
    ];
    given.iter().filter(|given| **given).count()
}

fn offered(node: usize, keys: Option<Keys>, rate: f64) -> Action {
    match keys {
        Some(keys) => Action::OfferMany(node, keys, rate),
        None => Action::Offer(node, rate),
    }
}

fn keys(key: &str, count: Option<i64>, life: Option<&str>) -> Result<Option<Keys>, ConfigError> {
    match (count, life) {
        (None, None) => Ok(None),
        (Some(count), None) => {
            let count = whole(&format!("{key}.keys"), count, 1, MAX_KEYS)?;
            Ok(Some(Keys::zipf(count as usize)))
        }
        (None, Some(life)) => {
            let life = duration(&format!("{key}.key_life"), life)?;
            Ok(Some(Keys::Churn(u64::try_from(life.as_nanos()).unwrap_or(u64::MAX))))
        }
        (Some(_), Some(_)) => {
            Err(ConfigError::refused(format!("{key}.key_life"), "stands beside keys; give one of the two"))
        }
    }
}

fn rate(key: &str, rate: Option<f64>) -> Result<f64, ConfigError> {
    let wanted = "requests per second, 0 to 10000000";
    number(&format!("{key}.rate"), required(format!("{key}.rate"), rate, wanted)?, 0.0, MAX_RATE, wanted)
}

fn number(key: &str, given: f64, least: f64, most: f64, wanted: &str) -> Result<f64, ConfigError> {
    // What is no number is within nothing.
    if (least..=most).contains(&given) { Ok(given) } else { Err(ConfigError::value(key, given, wanted)) }
}

fn whole(key: &str, given: i64, least: i64, most: i64) -> Result<i64, ConfigError> {
    if (least..=most).contains(&given) {
        return Ok(given);
    }
    Err(ConfigError::value(key, given, format!("a whole number from {least} to {most}")))
}

fn duration(key: &str, text: &str) -> Result<Duration, ConfigError> {
    parse_duration(text).map_err(|error| ConfigError::refused(key, error))
}
