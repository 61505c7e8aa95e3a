# The recipes that people run and the ones that CI runs are the same: `just ci` is all of it.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Every feature, each of which must build without the others.
features := "gossip net http acquire sim cli metrics config"

# Lists the recipes.
default:
    @just --list

# Everything that must pass before a change lands.
ci: lint features test test-all-features doc deny grpc stock-client instructions

# Formatting, and clippy over every target with every feature; a warning is an error.
lint:
    cargo fmt --check
    cargo clippy --all-targets --all-features -- -D warnings

# The core alone, then each feature alone.
features:
    cargo clippy --no-default-features -- -D warnings
    for feature in {{features}}; do \
        echo "== $feature alone"; \
        cargo clippy --no-default-features --features "$feature" -- -D warnings; \
    done

# The tests that a bare checkout runs, documentation examples among them.
test *args:
    cargo test {{args}}

# The same with every feature, for what is only there with `cli` or `metrics`.
test-all-features *args:
    cargo test --all-features {{args}}

# The documentation; a broken link is an error.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features

# Licences, banned crates and sources of the dependency tree. Fetches no advisories, so it works offline.
deny:
    cargo deny check licenses bans sources

# The gRPC service in a crate of its own, called over HTTP/2 by tonic's client.
grpc:
    cd examples/tonic && cargo fmt --check && cargo clippy --locked --all-targets -- -D warnings && cargo test --locked

# A stock client obeys `Retry-After`: Python's urllib3, which must be installed.
stock-client:
    cargo build --example axum_hello
    python3 checks/urllib3_retry.py "${CARGO_TARGET_DIR:-target}/debug/examples/axum_hello"

# A fleet of three on this machine, with certificates made for the occasion.
fleet *args:
    cargo run --release --example fleet -- {{args}}

# A simulated fleet on virtual time.
simulate *args:
    cargo run --release --features cli -- simulate {{args}}

# How fast the simulator is: a thousand seeds of half a minute each.
simulate-speed:
    cargo build --release --features cli --bin ratemesh
    time cargo run --release --features cli -- simulate examples/scenarios/light.toml --seeds 1000

# Bytes, messages and the spread of news as the fleet grows.
scale *args:
    cargo run --release --features cli -- simulate hop --nodes 3,10,30,100,300,1000 --seeds 1 {{args}}

# Counts the instructions of checks and merges, and fails where one takes over a tenth more than it did. `--update` keeps
# the new figures.
instructions *args:
    benches/instructions.sh {{args}}

# Speed against other rate limiters, in one run; `--json FILE` keeps the figures, `--check` fails on a missed target.
bench-peers *args:
    cd benches/peers && cargo run --release -- {{args}}

# The same with gossip that runs: two live peers, on loopback.
bench-live *args:
    cd benches/peers && cargo run --release --features live -- --live {{args}}

# What gossip costs, and what checks feel of it.
bench-gossip *args:
    cd benches/peers && cargo run --release --features live -- --gossip {{args}}

# Ten million keys of one request each: memory stays flat, and limits stand.
flood keys="10000000":
    RATEMESH_FLOOD={{keys}} cargo test --release --test keys_without_end
