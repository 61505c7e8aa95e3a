//! A node's status as counters and gauges of the `metrics` facade.
//!
//! Nothing is recorded on the way of a check; call [`record`] as often as your exporter is read.

use metrics::{counter, gauge};

use crate::gossip::{PeerState, Status};

/// Records a node's status, as `Mesh::status` gives it.
///
/// | name | kind | labels | what |
/// |---|---|---|---|
/// | `ratemesh_checks_total` | counter | `limit`, `quota` | checks decided by this node |
/// | `ratemesh_denials_total` | counter | `limit`, `quota` | of which refused |
/// | `ratemesh_live_keys` | gauge | `limit`, `quota` | keys held |
/// | `ratemesh_bans`, `ratemesh_overrides` | gauge | `limit`, `quota` | keys banned, and keys overridden at run time |
/// | `ratemesh_peer_up` | gauge | `peer` | 1 while the peer is heard |
/// | `ratemesh_peer_rtt_seconds` | gauge | `peer` | smoothed round-trip time |
/// | `ratemesh_peer_versions_behind` | gauge | `peer` | changes that the peer has not acknowledged |
/// | `ratemesh_bytes_sent_total`, `ratemesh_bytes_received_total` | counter | `peer` | gossip, without what QUIC adds |
/// | `ratemesh_local_only` | gauge | | 1 while some peer cannot be heard |
/// | `ratemesh_refused_total` | counter | `reason` | what was not taken in of what peers sent |
///
/// A quota is written as units and period: `1000/1s`, `10000/86400s`. A limit with several has a row for each.
pub fn record(status: &Status) {
    for limit in &status.limits {
        let labels = [
            ("limit", limit.name.clone()),
            ("quota", format!("{}/{:?}", limit.quota.units(), limit.quota.period())),
        ];
        counter!("ratemesh_checks_total", &labels).absolute(limit.checks);
        counter!("ratemesh_denials_total", &labels).absolute(limit.denials);
        gauge!("ratemesh_live_keys", &labels).set(limit.live_keys as f64);
        gauge!("ratemesh_bans", &labels).set(limit.bans as f64);
        gauge!("ratemesh_overrides", &labels).set(limit.overrides as f64);
    }
    for peer in &status.peers {
        let name = peer.node.to_string();
        let up = f64::from(u8::from(peer.state == PeerState::Up));
        gauge!("ratemesh_peer_up", "peer" => name.clone()).set(up);
        if let Some(rtt) = peer.rtt {
            gauge!("ratemesh_peer_rtt_seconds", "peer" => name.clone()).set(rtt.as_secs_f64());
        }
        gauge!("ratemesh_peer_versions_behind", "peer" => name.clone()).set(peer.versions_behind as f64);
        counter!("ratemesh_bytes_sent_total", "peer" => name.clone()).absolute(peer.bytes_sent);
        counter!("ratemesh_bytes_received_total", "peer" => name.clone()).absolute(peer.bytes_received);
        counter!("ratemesh_peer_refused_total", "peer" => name).absolute(peer.refused);
    }
    gauge!("ratemesh_local_only").set(f64::from(u8::from(status.local_only)));
    counter!("ratemesh_renewals_total").absolute(status.renewals);
    let refused = status.refused;
    for (reason, count) in [
        ("malformed", refused.malformed),
        ("out_of_epoch", refused.out_of_epoch),
        ("no_room", refused.no_room),
        ("unknown", refused.unknown),
        ("implausible", refused.implausible),
        ("notices", refused.notices),
    ] {
        counter!("ratemesh_refused_total", "reason" => reason).absolute(count);
    }
}
