//! The figures as JSON.

use serde_json::{Map, Value, json};

use crate::sim::{MEASURES, Miss, Summary};

/// One object per scenario and size of the fleet.
pub(super) fn text(summaries: &[Summary]) -> String {
    let all: Vec<Value> = summaries.iter().map(object).collect();
    format!("{:#}\n", Value::from(all))
}

fn object(summary: &Summary) -> Value {
    let mut object = Map::new();
    object.insert("scenario".to_owned(), json!(summary.scenario));
    object.insert("nodes".to_owned(), json!(summary.nodes));
    object.insert("seeds".to_owned(), json!(summary.runs.len()));
    let mut targets = Map::new();
    for measure in MEASURES {
        object.insert(measure.name.to_owned(), json!(summary.mean(measure)));
        if measure.name == "excess_mean" {
            object.insert("excess_max".to_owned(), json!(summary.max(measure)));
        }
        let (least, most) = (measure.range)(&summary.targets);
        let sides = [("least", least), ("most", most)];
        let sides: Map<_, _> =
            sides.iter().filter_map(|(side, at)| Some(((*side).to_owned(), json!((*at)?)))).collect();
        if !sides.is_empty() {
            targets.insert(measure.name.to_owned(), Value::Object(sides));
        }
    }
    object.insert("excess_bound".to_owned(), json!(summary.bound));
    object.insert("targets".to_owned(), Value::Object(targets));
    object.insert("passed".to_owned(), json!(summary.passed()));
    object.insert("misses".to_owned(), summary.misses().iter().map(missed).collect());
    let runs = summary.runs.iter().map(|run| {
        json!({ "seed": run.seed, "trace": format!("{:016x}", run.trace), "excess": run.outcome.excess })
    });
    object.insert("runs".to_owned(), runs.collect());
    Value::Object(object)
}

fn missed(miss: &Miss) -> Value {
    json!({ "measure": miss.measure, "value": miss.value, "wanted": miss.wanted, "seed": miss.seed })
}
