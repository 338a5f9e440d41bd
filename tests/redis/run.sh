#!/usr/bin/env bash
# Redis with a real redis-server at the other end: private ones, started and ended by the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: run.sh SCRATCH-DIRECTORY}
# shellcheck source=tests/selection.sh
. tests/selection.sh

command -v redis-server >/dev/null || {
    echo "'redis-server' is missing; install the package 'redis-server'" >&2
    exit 2
}

# Sockets, logs and the machines' records are in temporary directories of their own.
TMPDIR=$scratch cargo test "${selection[@]}" --test redis_peers

# The main job across machines, within limits held in common. One at a time: a server that refuses who is late by more than the
# gate's margin judges them, and each starts processes enough for all cores.
TMPDIR=$scratch cargo test "${selection[@]}" --test shared -- --skip through_rabbitmq --test-threads 1
# The program was built for the tests.
tests/redis/many-machines.sh "$scratch"
