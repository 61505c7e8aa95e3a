//! The file form: what a TOML file may say, and how it becomes a [`Config`].
//!
//! The forms hold what was written, unchecked. Each is turned into the checked thing by the type that owns the
//! rule (`NodeId`, `Limit`, the builder), and the error is given the line of its key on the way out.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Read as _},
    marker::PhantomData,
    path::Path,
    time::Duration,
};

use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer as _, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    Config, ConfigBuilder, ConfigError, builder,
    document::{Document, nearest},
    error::Problem,
    text::{parse_duration, parse_quota},
};
use crate::{
    key::Digest,
    limit::{Limit, LimitBuilder, LimitError, OnFull, OnPartition, Quota, Windows},
    lists::Override,
    node::NodeId,
};

/// No file that is read may be larger, be it the configuration, a certificate or a secret.
const MAX_FILE_BYTES: u64 = 4 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the tables of a configuration")]
struct Form {
    #[serde(default)]
    node: NodeForm,
    #[serde(default)]
    #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "read only for the network"))]
    tls: TlsForm,
    #[serde(default)]
    keys: KeysForm,
    #[serde(default)]
    peer: Vec<PeerForm>,
    #[serde(default)]
    gossip: GossipForm,
    #[serde(default)]
    limit: Vec<LimitForm>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [node] table")]
struct NodeForm {
    name: Option<String>,
    listen: Option<String>,
    cluster: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [tls] table")]
#[cfg_attr(not(feature = "net"), allow(dead_code, reason = "read only for the network"))]
struct TlsForm {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [keys] table")]
struct KeysForm {
    secret: Option<String>,
    secret_file: Option<String>,
    digest: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [[peer]] table")]
struct PeerForm {
    name: Option<String>,
    address: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [gossip] table")]
struct GossipForm {
    heartbeat: Option<String>,
    suspect_after: Option<String>,
    sync_timeout: Option<String>,
    repair_interval: Option<String>,
    fanout: Option<i64>,
    min_interval: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a [[limit]] table")]
pub(crate) struct LimitForm {
    name: Option<String>,
    algorithm: Option<String>,
    rate: Option<OneOrMany<String>>,
    quota: Option<i64>,
    period: Option<String>,
    burst: Option<OneOrMany<i64>>,
    permits: Option<i64>,
    precision: Option<i64>,
    windows: Option<String>,
    on_partition: Option<String>,
    max_keys: Option<i64>,
    on_full: Option<String>,
    queue: Option<i64>,
    on_exceed: Option<ExceedForm>,
    count_denied: Option<bool>,
    shadow: Option<bool>,
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
    overrides: Option<BTreeMap<String, OverrideForm>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "what a refusal entails, such as { ban = \"24h\" }")]
struct ExceedForm {
    ban: Option<String>,
}

/// A key's own quota: a rate, or units in the limit's own period, or a table of either and a burst.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideTable {
    rate: Option<String>,
    quota: Option<i64>,
    burst: Option<i64>,
}

struct OverrideForm(OverrideTable);

impl<'de> Deserialize<'de> for OverrideForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OverrideVisitor)
    }
}

struct OverrideVisitor;

impl<'de> Visitor<'de> for OverrideVisitor {
    type Value = OverrideForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rate such as \"50/s\", a number of units, or a table of rate or quota, and burst")
    }

    fn visit_str<E: de::Error>(self, rate: &str) -> Result<Self::Value, E> {
        Ok(OverrideForm(OverrideTable { rate: Some(rate.to_owned()), ..OverrideTable::default() }))
    }

    fn visit_i64<E: de::Error>(self, units: i64) -> Result<Self::Value, E> {
        Ok(OverrideForm(OverrideTable { quota: Some(units), ..OverrideTable::default() }))
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Self::Value, A::Error> {
        OverrideTable::deserialize(MapAccessDeserializer::new(table)).map(OverrideForm)
    }
}

/// A value, or a list of them.
struct OneOrMany<T>(Vec<T>);

impl<T> OneOrMany<T> {
    fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of them")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        T::deserialize(text.into_deserializer()).map(|one| OneOrMany(vec![one]))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(|one| OneOrMany(vec![one]))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(|one| OneOrMany(vec![one]))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        T::deserialize(value.into_deserializer()).map(|one| OneOrMany(vec![one]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut many = Vec::new();
        while let Some(one) = list.next_element()? {
            many.push(one);
        }
        Ok(OneOrMany(many))
    }
}

/// Reads a file.
pub(super) fn load(path: &Path) -> Result<Config, ConfigError> {
    let source_name = path.display().to_string();
    let text = read_file(path).and_then(|bytes| String::from_utf8(bytes).map_err(|_| not_utf8()));
    match text {
        Ok(text) => config(&text, &source_name, path.parent().unwrap_or(Path::new(""))),
        Err(error) => {
            let problem = Problem::Unreadable { path: "this path".to_owned(), error };
            Err(ConfigError::new("", problem).in_source(&source_name, None))
        }
    }
}

/// Reads a text.
pub(super) fn config(text: &str, source_name: &str, base_dir: &Path) -> Result<Config, ConfigError> {
    let (document, form) = Document::read::<Form>(text, source_name)?;
    resolve(form, base_dir).and_then(ConfigBuilder::build).map_err(|error| document.locate(error))
}

/// Reads the limits of a text.
pub(super) fn limits(text: &str, source_name: &str) -> Result<Vec<Limit>, ConfigError> {
    let (document, form) = Document::read::<Form>(text, source_name)?;
    checked_limits(form.limit).map_err(|error| document.locate(error))
}

/// Builds the limits of `[[limit]]` tables.
pub(crate) fn checked_limits(forms: Vec<LimitForm>) -> Result<Vec<Limit>, ConfigError> {
    let limits: Result<Vec<_>, _> =
        forms.into_iter().enumerate().map(|(index, form)| limit(index, form)).collect();
    limits.and_then(|limits| builder::check_limits(&limits).map(|()| limits))
}

fn resolve(form: Form, base_dir: &Path) -> Result<ConfigBuilder, ConfigError> {
    let mut builder = node(form.node)?;
    builder = keys(builder, form.keys, base_dir)?;
    #[cfg(feature = "net")]
    {
        builder = builder.tls(tls(form.tls, base_dir)?);
    }
    for (index, form) in form.peer.into_iter().enumerate() {
        let key = |field| format!("peer[{index}].{field}");
        let name = required(key("name"), form.name, "the peer's name, as in its certificate")?;
        let node = NodeId::new(&name).map_err(|error| ConfigError::refused(key("name"), error))?;
        let address =
            required(key("address"), form.address, "\"host:port\"").map_err(|e| e.of_entry(&name))?;
        builder = builder.peer(node, address);
    }
    builder = gossip(builder, &form.gossip)?;
    for (index, form) in form.limit.into_iter().enumerate() {
        builder = builder.limit(limit(index, form)?);
    }
    Ok(builder)
}

fn node(form: NodeForm) -> Result<ConfigBuilder, ConfigError> {
    let name = required("node.name", form.name, "this node's name, as in its certificate")?;
    let node = NodeId::new(&name).map_err(|error| ConfigError::refused("node.name", error))?;
    let mut builder = Config::builder(node);
    if let Some(listen) = form.listen {
        let wanted = "an IP address and a port, such as \"0.0.0.0:7100\" or \"[::]:7100\"";
        let address = listen.parse();
        builder = builder.listen(
            address.map_err(|_| ConfigError::value("node.listen", format_args!("{listen:?}"), wanted))?,
        );
    }
    Ok(match form.cluster {
        Some(cluster) => builder.cluster(cluster),
        None => builder,
    })
}

fn keys(mut builder: ConfigBuilder, form: KeysForm, base_dir: &Path) -> Result<ConfigBuilder, ConfigError> {
    match (form.secret, form.secret_file) {
        (Some(_), Some(_)) => {
            return Err(ConfigError::refused(
                "keys.secret_file",
                "stands beside secret; give one of the two",
            ));
        }
        (Some(secret), None) => builder = builder.secret(secret),
        (None, Some(path)) => {
            // Whoever puts the secret itself in place of the path must not find it in a log, so it is not quoted.
            let secret = read_file(&base_dir.join(path)).map_err(|error| {
                let path = format!("the path it names, from {} on", base_dir.display());
                ConfigError::new("keys.secret_file", Problem::Unreadable { path, error })
            })?;
            // An editor or `echo` ends the file with a newline that is not meant.
            builder = builder.secret(secret.trim_ascii_end());
        }
        (None, None) => {}
    }
    if let Some(digest) = form.digest {
        let digest = pick(&digest, &[("xxh3", Digest::Xxh3), ("siphash128", Digest::SipHash128)]);
        builder = builder.digest(digest.map_err(|wanted| ConfigError::unquoted("keys.digest", wanted))?);
    }
    Ok(builder)
}

#[cfg(feature = "net")]
fn tls(form: TlsForm, base_dir: &Path) -> Result<super::TlsIdentity, ConfigError> {
    let read = |key: &str, path: Option<String>| {
        let path = required(key, path, "the path of a PEM file")?;
        named_file(key, &path, base_dir)
    };
    let ca = read("tls.ca", form.ca)?;
    let cert = read("tls.cert", form.cert)?;
    let key = read("tls.key", form.key)?;
    super::TlsIdentity::from_pem(&ca, &cert, &key)
}

fn gossip(mut builder: ConfigBuilder, form: &GossipForm) -> Result<ConfigBuilder, ConfigError> {
    type Setter = fn(ConfigBuilder, Duration) -> ConfigBuilder;
    let durations: [(&str, &Option<String>, Setter); 5] = [
        ("gossip.heartbeat", &form.heartbeat, ConfigBuilder::heartbeat),
        ("gossip.suspect_after", &form.suspect_after, ConfigBuilder::suspect_after),
        ("gossip.sync_timeout", &form.sync_timeout, ConfigBuilder::sync_timeout),
        ("gossip.repair_interval", &form.repair_interval, ConfigBuilder::repair_interval),
        ("gossip.min_interval", &form.min_interval, ConfigBuilder::min_interval),
    ];
    for (key, text, set) in durations {
        if let Some(text) = text {
            builder = set(builder, parse_duration(text).map_err(|error| ConfigError::refused(key, error))?);
        }
    }
    if let Some(fanout) = form.fanout {
        let fanout = usize::try_from(fanout)
            .map_err(|_| ConfigError::value("gossip.fanout", fanout, "1 to 16 peers"))?;
        builder = builder.fanout(fanout);
    }
    Ok(builder)
}

fn limit(index: usize, form: LimitForm) -> Result<Limit, ConfigError> {
    let name =
        required(format!("limit[{index}].name"), form.name.as_deref(), "the limit's name, such as \"api\"")?;
    named_limit(index, name, &form).map_err(|error| error.of_entry(name))
}

fn named_limit(index: usize, name: &str, form: &LimitForm) -> Result<Limit, ConfigError> {
    let key = |field: &str| format!("limit[{index}].{field}");
    let bursts = form.burst.as_ref().map_or(&[][..], OneOrMany::as_slice);
    let mut bursts = bursts.iter().map(|burst| whole(&key("burst"), Some(*burst)));
    let (builder, further) = start(name, form, &key)?;
    let mut builder = with_burst(builder, bursts.next())?;
    for quota in further {
        builder = with_burst(builder.and(quota), bursts.next())?;
    }
    if let Some(precision) = form.precision {
        let wanted = "1 to 1,000 sub-windows";
        let parts = u16::try_from(precision);
        builder =
            builder.precision(parts.map_err(|_| ConfigError::value(key("precision"), precision, wanted))?);
    }
    if let Some(text) = &form.on_partition {
        builder = builder.on_partition(choice(&key("on_partition"), text, &ON_PARTITION)?);
    }
    if let Some(keys) = form.max_keys {
        let wanted = "a whole number of keys, 1 or more";
        let keys = usize::try_from(keys).map_err(|_| ConfigError::value(key("max_keys"), keys, wanted))?;
        builder = builder.max_keys(keys);
    }
    if let Some(text) = &form.on_full {
        builder = builder.on_full(choice(&key("on_full"), text, &ON_FULL)?);
    }
    if let Some(units) = form.queue {
        let wanted = "a whole number of units, 0 or more";
        builder =
            builder.queue(u64::try_from(units).map_err(|_| ConfigError::value(key("queue"), units, wanted))?);
    }
    builder = penalties(builder, form, &key)?;
    builder = overrides(builder, form, &key)?;
    builder.build().map_err(|error| refused_limit(&error, form, &key))
}

fn with_burst(
    builder: LimitBuilder,
    burst: Option<Result<Option<u64>, ConfigError>>,
) -> Result<LimitBuilder, ConfigError> {
    Ok(match burst.transpose()?.flatten() {
        Some(burst) => builder.burst(burst),
        None => builder,
    })
}

/// What a limit says of single keys, and of those that it refuses.
fn penalties(
    mut builder: LimitBuilder,
    form: &LimitForm,
    key: &impl Fn(&str) -> String,
) -> Result<LimitBuilder, ConfigError> {
    if let Some(exceed) = &form.on_exceed {
        let ban_key = key("on_exceed.ban");
        let ban =
            required(&ban_key, exceed.ban.as_ref(), "how long a refused key is banned, such as \"24h\"")?;
        builder =
            builder.ban_on_exceed(parse_duration(ban).map_err(|error| ConfigError::refused(ban_key, error))?);
    }
    if let Some(count) = form.count_denied {
        builder = builder.count_denied(count);
    }
    if let Some(shadow) = form.shadow {
        builder = builder.shadow(shadow);
    }
    builder = form.allow.iter().flatten().fold(builder, |builder, entry| builder.allow(entry));
    Ok(form.deny.iter().flatten().fold(builder, |builder, entry| builder.deny(entry)))
}

/// The quotas of single keys.
fn overrides(
    mut builder: LimitBuilder,
    form: &LimitForm,
    key: &impl Fn(&str) -> String,
) -> Result<LimitBuilder, ConfigError> {
    for (name, OverrideForm(own)) in form.overrides.iter().flatten() {
        let key = |field: &str| format!("{}.{field}", key(&format!("overrides.{name}")));
        let quota = match (&own.rate, own.quota) {
            (Some(rate), None) => {
                parse_quota(rate).map_err(|error| ConfigError::refused(key("rate"), error))?
            }
            (None, Some(units)) => {
                let units = required(key("quota"), whole(&key("quota"), Some(units))?, "units")?;
                Quota::new(units, builder.period())
            }
            (Some(_), Some(_)) => {
                return Err(ConfigError::refused(key("quota"), "stands beside rate; give one of the two"));
            }
            (None, None) => {
                let wanted = "units a time, such as \"50/s\", or quota, units in the limit's own period";
                return Err(ConfigError::missing(key("rate"), wanted));
            }
        };
        let burst = whole(&key("burst"), own.burst)?.unwrap_or(quota.units());
        builder = builder.override_key(name, Override::Quota { quota, burst });
    }
    Ok(builder)
}

/// An algorithm, and whether its windows are fixed.
#[derive(Clone, Copy)]
enum Start {
    Rate(fn(&str, Quota) -> LimitBuilder),
    Windows,
    Permits,
}

const ALGORITHMS: [(&str, Start); 5] = [
    ("token_bucket", Start::Rate(Limit::token_bucket)),
    ("leaky_bucket", Start::Rate(Limit::leaky_bucket)),
    ("fixed_window", Start::Windows),
    ("sliding_window", Start::Rate(Limit::sliding_window)),
    ("concurrency", Start::Permits),
];

const WINDOWS: [(&str, Windows); 3] =
    [("aligned", Windows::Aligned), ("staggered", Windows::Staggered), ("months", Windows::Months)];

/// Starts a limit of the algorithm that a form names, with the quota that this algorithm has; and the quotas that come on top
/// of it.
fn start(
    name: &str,
    form: &LimitForm,
    key: &impl Fn(&str) -> String,
) -> Result<(LimitBuilder, std::vec::IntoIter<Quota>), ConfigError> {
    let start = match &form.algorithm {
        None => Start::Rate(Limit::token_bucket),
        Some(text) => choice(&key("algorithm"), text, &ALGORITHMS)?,
    };
    let windows = form.windows.as_deref().map(|text| choice(&key("windows"), text, &WINDOWS)).transpose()?;
    if windows.is_some() && !matches!(start, Start::Windows) {
        return Err(ConfigError::refused(key("windows"), "stands beside an algorithm without fixed windows"));
    }
    if form.permits.is_some() && !matches!(start, Start::Permits) {
        let reason =
            "stands beside an algorithm that counts units a time; give rate, or algorithm = \"concurrency\"";
        return Err(ConfigError::refused(key("permits"), reason));
    }
    let none = Vec::new().into_iter();
    Ok(match (start, windows) {
        (Start::Rate(start), _) => {
            let (first, further) = quotas_of(form, key)?;
            (start(name, first), further)
        }
        (Start::Windows, Some(Windows::Months)) => {
            if form.rate.is_some() || form.period.is_some() {
                let field = if form.rate.is_some() { "rate" } else { "period" };
                let reason = "stands beside windows = \"months\"; give quota, the units of a month";
                return Err(ConfigError::refused(key(field), reason));
            }
            let units = whole(&key("quota"), form.quota)?;
            (Limit::monthly(name, required(key("quota"), units, "a whole number of units a month")?), none)
        }
        (Start::Windows, windows) => {
            let (first, further) = quotas_of(form, key)?;
            let builder = Limit::fixed_window(name, first);
            (if windows == Some(Windows::Staggered) { builder.staggered() } else { builder }, further)
        }
        (Start::Permits, _) => {
            for (field, given) in [
                ("rate", form.rate.is_some()),
                ("quota", form.quota.is_some()),
                ("period", form.period.is_some()),
            ] {
                if given {
                    let reason = "stands beside algorithm = \"concurrency\"; give permits, how many there are at a time";
                    return Err(ConfigError::refused(key(field), reason));
                }
            }
            let permits = whole(&key("permits"), form.permits)?;
            (
                Limit::concurrency(name, required(key("permits"), permits, "how many there are at a time")?),
                none,
            )
        }
    })
}

/// A form's quotas, of which there is at least one, and no more bursts than quotas.
fn quotas_of(
    form: &LimitForm,
    key: &impl Fn(&str) -> String,
) -> Result<(Quota, std::vec::IntoIter<Quota>), ConfigError> {
    let quotas = quotas(form, key)?;
    let bursts = form.burst.as_ref().map_or(&[][..], OneOrMany::as_slice);
    if bursts.len() > quotas.len() {
        let held = format!("has {} entries, for {} rates; give one for each", bursts.len(), quotas.len());
        return Err(ConfigError::refused(key("burst"), held));
    }
    let mut quotas = quotas.into_iter();
    let first = quotas.next().unwrap_or(Quota::per_second(0));
    Ok((first, quotas))
}

/// A number of units.
fn whole(key: &str, given: Option<i64>) -> Result<Option<u64>, ConfigError> {
    let wanted = "a whole number of units, 1 or more";
    let number = |units| u64::try_from(units).map_err(|_| ConfigError::value(key, units, wanted));
    given.map(number).transpose()
}

const ON_PARTITION: [(&str, OnPartition); 5] = [
    ("local", OnPartition::Local),
    ("share", OnPartition::Share),
    ("last_demand", OnPartition::LastDemand),
    ("open", OnPartition::Open),
    ("closed", OnPartition::Closed),
];

const ON_FULL: [(&str, OnFull); 3] =
    [("shared_bucket", OnFull::SharedBucket), ("open", OnFull::Open), ("closed", OnFull::Closed)];

/// `rate = "1000/s"`, `rate = ["10/s", "1000/h"]`, or `quota = 1000` with `period = "1s"`.
fn quotas(form: &LimitForm, key: &impl Fn(&str) -> String) -> Result<Vec<Quota>, ConfigError> {
    match (&form.rate, form.quota, &form.period) {
        (Some(rates), None, None) => {
            if rates.as_slice().is_empty() {
                return Err(ConfigError::refused(key("rate"), "is an empty list; give one rate at least"));
            }
            let quota =
                |rate: &String| parse_quota(rate).map_err(|error| ConfigError::refused(key("rate"), error));
            rates.as_slice().iter().map(quota).collect()
        }
        (Some(_), ..) => {
            Err(ConfigError::refused(key("rate"), "stands beside quota or period; give one or the other"))
        }
        (None, Some(units), Some(period)) => {
            let period =
                parse_duration(period).map_err(|error| ConfigError::refused(key("period"), error))?;
            let wanted = "a whole number of units, 1 or more";
            let units = u64::try_from(units).map_err(|_| ConfigError::value(key("quota"), units, wanted))?;
            Ok(vec![Quota::new(units, period)])
        }
        (None, Some(_), None) => {
            Err(ConfigError::missing(key("period"), "the quota's period, such as \"1s\""))
        }
        (None, None, Some(_)) => Err(ConfigError::missing(key("quota"), "a whole number of units a period")),
        (None, None, None) => Err(ConfigError::missing(key("rate"), "units a time, such as \"1000/s\"")),
    }
}

/// Points at the key that a limit's field was read from: both parts of a quota may come from `rate`.
fn refused_limit(error: &LimitError, form: &LimitForm, key: &impl Fn(&str) -> String) -> ConfigError {
    let field = match error.field() {
        "quota" | "period" if form.rate.is_some() => "rate",
        "burst" if form.burst.is_none() && form.rate.is_some() => "rate",
        "quota" if form.permits.is_some() => "permits",
        "on_exceed" => "on_exceed.ban",
        field => field,
    };
    ConfigError::value(key(field), error.value(), error.wanted())
}

pub(crate) fn required<T>(key: impl Into<String>, value: Option<T>, wanted: &str) -> Result<T, ConfigError> {
    value.ok_or_else(|| ConfigError::missing(key, wanted))
}

fn choice<T: Copy>(key: &str, given: &str, known: &[(&str, T)]) -> Result<T, ConfigError> {
    pick(given, known).map_err(|wanted| ConfigError::value(key, format_args!("{given:?}"), wanted))
}

/// Finds a value by its name; says which names there are.
fn pick<T: Copy>(given: &str, known: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = known.iter().find(|(name, _)| *name == given) {
        return Ok(*value);
    }
    let names: Vec<_> = known.iter().map(|(name, _)| format!("{name:?}")).collect();
    let meant = nearest(given, known.iter().map(|(name, _)| *name));
    let hint = meant.map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"));
    Err(format!("{}{hint}", names.join(", ")))
}

/// Reads the file that a key names.
#[cfg(feature = "net")]
fn named_file(key: &str, path: &str, base_dir: &Path) -> Result<Vec<u8>, ConfigError> {
    let path = base_dir.join(path);
    read_file(&path).map_err(|error| {
        ConfigError::new(key, Problem::Unreadable { path: path.display().to_string(), error })
    })
}

pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 4 MiB"));
    }
    Ok(bytes)
}

fn not_utf8() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text")
}
