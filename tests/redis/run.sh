#!/usr/bin/env bash
# Redis with a real redis-server at the other end: private ones, started and ended by the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: run.sh SCRATCH-DIRECTORY}

command -v redis-server >/dev/null || {
    echo "'redis-server' is missing; install the package 'redis-server'" >&2
    exit 2
}

cargo clippy -p tidegate-redis --test peers --features peers --locked --quiet -- -D warnings
# Sockets, logs and the machines' records are in temporary directories of their own.
TMPDIR=$scratch cargo test -p tidegate-redis --test peers --features peers --locked --quiet

# The main job across machines, within limits held in common.
cargo clippy -p tidegate-cli --test shared --features peers --locked --quiet -- -D warnings
TMPDIR=$scratch cargo test -p tidegate-cli --test shared --features peers --locked --quiet -- --skip through_rabbitmq
cargo build -p tidegate-cli --locked --quiet
tests/redis/many-machines.sh "$scratch"
