use super::*;
use crate::limit::Quota;

fn limit(rate: u64, burst: u64) -> Limit {
    Limit::token_bucket("api", Quota::per_second(rate)).burst(burst).build().unwrap()
}

#[test]
fn probe_steady() {
    for (nodes, total) in [(3, 900.0), (3, 3000.0), (8, 900.0), (8, 3000.0), (32, 900.0), (32, 3000.0)] {
        let mut cluster = Cluster::new(nodes, vec![limit(1000, 100)], 7);
        cluster.measure_spread();
        cluster.advance(Duration::from_secs(1));
        for node in 0..nodes {
            cluster.offer(node, "k", total / nodes as f64);
        }
        cluster.advance(Duration::from_secs(2));
        let r = cluster.record("k").unwrap();
        println!(
            "{nodes} {total}: start excess {:.1} admitted {} ideal {} false {} first {}",
            r.excess(),
            r.admitted(),
            r.ideal_admitted(),
            r.false_denials(),
            r.in_second(0)
        );
        cluster.restart_records();
        cluster.advance(Duration::from_secs(5));
        let t = cluster.traffic(0);
        let (p50, p99) = {
            let s = cluster.spread().unwrap();
            (s.quantile(0.5), s.quantile(0.99))
        };
        let r = cluster.record("k").unwrap();
        println!(
            "   steady excess {:.1} ratio {:.4} worst {} quiet {} false {} msgs/s {} bytes/s {} spread {:?} {:?}",
            r.excess(),
            r.admitted() as f64 / r.ideal_admitted() as f64,
            r.worst_second(),
            r.quietest_second(),
            r.false_denials(),
            t.messages / 5,
            t.bytes / 5,
            p50,
            p99
        );
        println!("{:?}", (0..5).map(|s| r.in_second(s)).collect::<Vec<_>>());
    }
}
