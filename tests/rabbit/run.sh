#!/usr/bin/env bash
# AMQP with a real RabbitMQ at the other end: a private one, started and ended here.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: run.sh SCRATCH-DIRECTORY}
node=tests/rabbit/node.sh

"$node" make "$scratch/rabbit"
trap '"$node" stop "$scratch/rabbit" || true' EXIT
"$node" start "$scratch/rabbit"
# shellcheck disable=SC1091
eval "$(grep TIDEGATE_RABBIT "$scratch/rabbit/env")"
# Who logs in by certificate is a user like any other.
"$node" ctl "$scratch/rabbit" add_user client not-used >/dev/null
"$node" ctl "$scratch/rabbit" set_permissions client '.*' '.*' '.*' >/dev/null

# Producers and workers of others.
python3 -m venv "$scratch/python"
"$scratch/python/bin/pip" install --quiet 'celery==5.7.0' 'dramatiq[rabbitmq]==2.2.1'
export TIDEGATE_PYTHON="$scratch/python/bin/python"

cargo clippy -p tidegate-amqp --test peers --features peers --locked --quiet -- -D warnings
cargo clippy -p tidegate-worker --all-targets --features amqp,peers --locked --quiet -- -D warnings
# One at a time: some tell the broker that its memory is full.
cargo test -p tidegate-amqp --test peers --features peers --locked --quiet -- --test-threads=1
# First what restarts the broker, while there is little in it that must be read again.
worker=(cargo test -p tidegate-worker --test rabbit --features amqp,peers --locked --quiet -- --test-threads=1)
"${worker[@]}" --nocapture restarts
"${worker[@]}" --skip restarts
