//! Messages at random: bytes of no meaning, and well-formed messages with hostile numbers.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    gossip::{
        actors::MAX_INCARNATIONS,
        message::{Statement, Sync, SyncKey, SyncRequest, SyncShare},
    },
    table::MAX_FORECASTS,
};

const HONEST: usize = 2;
const CAPACITY: u64 = 50;

/// Numbers at which arithmetic breaks, and others.
fn number() -> impl Strategy<Value = u64> {
    let edges =
        [0, 1, 2, 63, u64::from(u32::MAX), 1 << 40, (1 << 48) - 1, 1 << 48, 1 << 62, 1 << 63, u64::MAX];
    prop_oneof![proptest::sample::select(edges.to_vec()), 0_u64..200, any::<u64>()]
}

fn actor() -> impl Strategy<Value = WireActor> {
    let incarnation = prop_oneof![Just(LIARS), Just(101), Just(102), 0_u32..40, any::<u32>()];
    (0_u16..5, incarnation).prop_map(|(node, incarnation)| WireActor { node, incarnation })
}

fn digest() -> impl Strategy<Value = u128> {
    prop_oneof![3 => Just(KEY.digest()), 2 => 0_u128..300]
}

fn an_item() -> impl Strategy<Value = Item> {
    let epoch = prop_oneof![3 => Just(0_u16), 1 => any::<u16>()];
    let statement = proptest::option::of((any::<f32>(), any::<f32>()));
    (number(), 0_u16..2, epoch, digest(), (number(), number()), any::<u32>(), any::<u16>(), statement)
        .prop_map(|(version, limit, epoch, digest, (spent, refunded), age, span_ms, statement)| Item {
            version,
            limit,
            epoch,
            key: Key::from_digest(digest),
            share: Share { spent, refunded },
            age: if age % 2 == 0 { 0 } else { age },
            span_ms,
            statement: statement.map(|(demand, level)| Statement { demand, level }),
        })
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let beat = (actor(), any::<u32>(), number());
    let beat = beat.prop_map(|(actor, beat, version)| Beat { actor, beat, version });
    let header = (any::<u32>(), proptest::option::of((any::<u32>(), any::<u32>())));
    let header = header.prop_map(|(sent_at, echo)| Header { sent_at, echo });
    let group = (actor(), number(), vec(an_item(), 0..12), proptest::option::of(number()));
    (header, vec(beat, 0..20), vec(group, 0..4)).prop_map(|(header, beats, groups)| {
        let mut writer = FrameWriter::new(header, &beats, 0);
        for (actor, from, mut items, to) in groups {
            writer.start_group(actor, from);
            items.sort_by_key(|item| item.version);
            items.iter().for_each(|item| writer.item(item));
            writer.end_group(to);
        }
        writer.finish()
    })
}

fn progress() -> impl Strategy<Value = Vec<Progress>> {
    let one = (actor(), number(), number());
    vec(one.prop_map(|(actor, version, floor)| Progress { actor, version, floor }), 0..30)
}

/// What a liar says next. The number of a sync is put right where it is told, or it would not be looked at.
#[derive(Clone, Debug)]
enum Said {
    Bytes(Vec<u8>),
    Hello(u32, Vec<Progress>),
    Sync(Sync),
    Wait(u64),
    Ask,
}

fn said() -> impl Strategy<Value = Said> {
    let bytes = (0_u8..7, vec(any::<u8>(), 0..200));
    let bytes = bytes.prop_map(|(kind, rest)| [&[message::VERSION, kind], &rest[..]].concat());
    let incarnation = prop_oneof![Just(LIARS), any::<u32>()];
    let share = (actor(), any::<u16>(), number(), number(), number()).prop_map(
        |(actor, epoch, spent, refunded, age_ms)| SyncShare {
            actor,
            epoch: epoch % 3,
            spent,
            refunded,
            age_ms,
        },
    );
    let key =
        (0_u16..2, digest(), number(), vec(share, 0..8)).prop_map(|(limit, digest, missing, shares)| {
            SyncKey { limit, digest, missing, parts: Vec::new(), shares }
        });
    let sync = (0_u32..3, any::<bool>(), vec(key, 0..6), proptest::option::of(progress()))
        .prop_map(|(part, synced, keys, end)| Sync { number: 0, part, synced, keys, end });
    let request = (any::<u32>(), any::<bool>(), progress())
        .prop_map(|(number, joining, progress)| SyncRequest { number, joining, progress });
    prop_oneof![
        2 => bytes.prop_map(Said::Bytes),
        6 => frame().prop_map(Said::Bytes),
        1 => request.prop_map(|request| Said::Bytes(message::sync_request(&request))),
        1 => Just(Said::Bytes(message::leave())),
        2 => (incarnation, progress()).prop_map(|(incarnation, progress)| Said::Hello(incarnation, progress)),
        2 => sync.prop_map(Said::Sync),
        2 => (0_u64..600).prop_map(Said::Wait),
        3 => Just(Said::Ask),
    ]
}

/// Everything that could grow is within its bounds.
fn assert_bounded(fleet: &mut Fleet, node: usize) {
    let nodes = fleet.nodes.len();
    let (live, most) = (fleet.tables[node].live_keys(), fleet.tables[node].limit().max_keys());
    let gossip = fleet.node(node);
    assert!(gossip.actors.len() <= nodes * MAX_INCARNATIONS);
    assert!(live <= most);
    // Four epochs of each actor at most, on each key and on the bucket that keys without room share.
    let shares: usize = gossip.books[0].ledger.shares();
    assert!(shares <= (most + 1) * nodes * MAX_INCARNATIONS * 4);
    assert!(gossip.books[0].hot.slots().count() <= MAX_FORECASTS);
    assert!(gossip.jobs.len() < nodes);
    let log: usize = gossip.actors.iter().map(|(_, state)| state.log_len()).sum();
    assert!(log <= 100_000, "{log} changes are kept");
    assert!(gossip.status(Now::default()).peers.iter().all(|peer| peer.mismatches.len() <= 17));
    for (actor, state) in gossip.actors.iter() {
        let held = gossip.books[0].ledger.count_of(actor);
        assert_eq!(state.shares, held, "shares of {:?} {}", state.node, state.incarnation);
    }
}

fn play(limit: &Limit, script: Vec<Said>) -> (Fleet, [u64; HONEST + 1]) {
    let mut fleet = Fleet::new(HONEST, limit);
    let mut admitted = [0; HONEST + 1];
    for said in script {
        match said {
            Said::Bytes(payload) => {
                let _ = fleet.tell(1, &payload);
            }
            Said::Hello(incarnation, progress) => {
                let hello = fleet.hello(incarnation, progress);
                let _ = fleet.tell(1, &hello);
            }
            Said::Sync(sync) => {
                let asked = fleet.node(1).peers[0].asked;
                let number = asked.map_or(0, |(number, _)| number);
                let _ = fleet.tell(1, &message::sync(&Sync { number, ..sync }));
            }
            Said::Wait(millis) => fleet.pass(millis),
            Said::Ask => (1..=HONEST).for_each(|node| admitted[node] += fleet.ask(node, KEY, 7)),
        }
        assert_bounded(&mut fleet, 1);
    }
    fleet.cut.clear();
    (fleet, admitted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 150 } else { 1_500 }))]

    /// No lie lets a node admit more than its own bucket holds, nor hides from a node what itself or an honest peer spent,
    /// nor makes anything grow.
    #[test]
    fn no_message_breaks_a_bound(script in vec(said(), 1..40)) {
        let (mut fleet, admitted) = play(&slow(CAPACITY), script);
        fleet.pass(8_000);
        for (node, admitted) in admitted.into_iter().enumerate().skip(1) {
            prop_assert!(admitted <= CAPACITY, "node {node} admitted {admitted}");
            let own = fleet.wrote(node);
            prop_assert_eq!(own, Share { spent: admitted, refunded: 0 }, "node {} of itself", node);
        }
        let spent = fleet.known(1, 2).spent;
        prop_assert!(spent >= admitted[2], "node 1 knows of {spent} that node 2 spent, of {}", admitted[2]);
        let exact = fleet.known(2, 1);
        prop_assert!(exact.spent >= admitted[1], "node 2 knows of {exact:?} of node 1's {}", admitted[1]);
        assert_bounded(&mut fleet, 1);
        assert_bounded(&mut fleet, 2);
    }

    /// The same where expectations are kept, and where windows turn: nothing panics or grows.
    #[test]
    fn no_statement_breaks_a_bound(script in vec(said(), 1..30), windows: bool) {
        let quota = Quota::per_second(1_000);
        let limit = if windows { Limit::fixed_window("a", quota) } else { Limit::token_bucket("a", quota) };
        let (mut fleet, _) = play(&limit.max_keys(100).build().unwrap(), script);
        fleet.pass(3_000);
        assert_bounded(&mut fleet, 1);
        assert_bounded(&mut fleet, 2);
    }
}
