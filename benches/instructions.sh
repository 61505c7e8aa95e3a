#!/usr/bin/env bash
# Counts the instructions of checks and merges under valgrind's callgrind, and fails where one takes over a tenth more
# of them than benches/instructions.toml says. With --update, writes the file instead.
#
# Instructions do not depend on the machine's load, so this holds where times would not. They do depend on the compiler
# and the dependencies; the file names the compiler that it was written with.
set -euo pipefail
cd "$(dirname "$0")"

figures=instructions.toml
most=110 # per cent

if ! command -v valgrind >/dev/null; then
    if [ -n "${WITHOUT_VALGRIND:-}" ]; then
        echo "instructions.sh: SKIPPED, since valgrind is not here and could not be installed" >&2
        exit 0
    fi
    echo "instructions.sh needs valgrind; install it (Debian: apt-get install valgrind)" >&2
    exit 2
fi

# Of the same kind as the code a service is built into: no option that changes what is compiled.
unset RUSTFLAGS
manifest=instructions/Cargo.toml
cargo build --quiet --release --locked --manifest-path "$manifest"
target=$(cargo metadata --format-version 1 --no-deps --manifest-path "$manifest" |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Instructions a piece of work takes, rounded down.
count() {
    local pieces
    pieces=$(valgrind --tool=callgrind --callgrind-out-file="$scratch/out" --toggle-collect='*counted*' \
        --log-file="$scratch/log" "$target/release/ratemesh-instructions" "$1")
    local collected
    collected=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$scratch/log")
    echo $((collected / pieces))
}

cases=$(sed -n 's/^\([a-z_]*\) = [0-9]*.*/\1/p' "$figures")
failed=0
for case in $cases; do
    kept=$(sed -n "s/^$case = \([0-9]*\).*/\1/p" "$figures")
    counted=$(count "$case")
    verdict=""
    if [ "${1:-}" = --update ]; then
        sed -i "s/^$case = [0-9]*/$case = $counted/" "$figures"
    elif [ $((counted * 100)) -gt $((kept * most)) ]; then
        verdict="  MORE THAN $most %"
        failed=1
    fi
    printf '%-16s %6d  (kept: %d)%s\n' "$case" "$counted" "$kept" "$verdict"
done
if [ "${1:-}" = --update ]; then
    sed -i "s/^# Written with .*/# Written with $(rustc --version | cut -d' ' -f1,2)./" "$figures"
fi
exit $failed
