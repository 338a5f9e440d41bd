#!/usr/bin/env bash
# AMQP with a real RabbitMQ at the other end: a private one, started and ended here.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: run.sh SCRATCH-DIRECTORY}
# shellcheck source=tests/selection.sh
. tests/selection.sh
node=tests/rabbit/node.sh

"$node" make "$scratch/rabbit"
trap '"$node" stop "$scratch/rabbit" || true' EXIT
"$node" start "$scratch/rabbit"
# shellcheck disable=SC1091
eval "$(grep TIDEGATE_RABBIT "$scratch/rabbit/env")"
# Who logs in by certificate is a user like any other.
"$node" ctl "$scratch/rabbit" add_user client not-used >/dev/null
"$node" ctl "$scratch/rabbit" set_permissions client '.*' '.*' '.*' >/dev/null

command -v redis-server >/dev/null || {
    echo "'redis-server' is missing; install the package 'redis-server'" >&2
    exit 2
}
# Producers and workers of others.
python3 -m venv "$scratch/python"
"$scratch/python/bin/pip" install --quiet 'celery[redis]==5.7.0' 'dramatiq[rabbitmq]==2.2.1' 'flower==2.2.0'
export TIDEGATE_PYTHON="$scratch/python/bin/python"

# One at a time: some tell the broker that its memory is full, or end it.
one_at_a_time=(--test-threads=1)
cargo test "${selection[@]}" --test amqp_peers -- "${one_at_a_time[@]}"
worker=(cargo test "${selection[@]}" --test rabbit -- "${one_at_a_time[@]}")
# First what restarts the broker, while there is little in it that must be read again.
"${worker[@]}" --nocapture outages modes
"${worker[@]}" --skip outages --skip modes --skip cluster
cargo test "${selection[@]}" --test queue_rabbit
# The main job across machines; a Redis of the test's own holds the limits. The quota takes whole minutes through a broker:
# in one of eight seconds the crowd at its beginning is on its way for too much of it.
across=a_killed_worker_costs_its_pages_in_flight_through_rabbitmq
[ -z "${TIDEGATE_SOAK:-}" ] || across=through_rabbitmq
cargo test "${selection[@]}" --test shared -- "$across"

# The guide's commands; the program was built for the tests.
PATH="$(realpath "${CARGO_TARGET_DIR:-target}")/debug:$scratch/python/bin:$PATH"
export PATH PYTHONPATH="$PWD/clients/python"
# A port, because Celery's address of a socket is written otherwise than ours.
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --bind 127.0.0.1 --port "$port" --save '' --dir "$scratch" >"$scratch/guide-redis.log" &
redis=$!
trap 'kill "$redis" || true; "$node" stop "$scratch/rabbit" || true' EXIT
timeout 60 bash -c 'until redis-cli -p "$1" ping >/dev/null 2>&1; do sleep 0.1; done' - "$port"
for page in from-celery from-dramatiq; do
    tests/rabbit/guide.py "$PWD/docs/$page.md" "amqp://$TIDEGATE_RABBIT_PLAIN" "redis://127.0.0.1:$port"
done

# Two nodes take longer than the short run has. Last, because the second is gone afterwards: streams that have a replica there
# have lost their majority, and take nothing more.
[ -z "${TIDEGATE_SOAK:-}" ] || "${worker[@]}" --nocapture cluster
