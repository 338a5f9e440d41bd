#!/usr/bin/env bash
# The commands of docs/many-machines.md as they stand there, with a Redis of their own and a queue in a file.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: many-machines.sh SCRATCH-DIRECTORY}/many-machines
mkdir "$scratch"

port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
awk '/^```sh$/{on = 1; next} /^```/{if (on) exit} on' docs/many-machines.md | sed "s/:7879/:$port/g" >"$scratch/commands.sh"
redis-server --port 0 --unixsocket "$scratch/redis.sock" --save '' --appendonly no --dir "$scratch" >"$scratch/redis.log" &
redis=$!
trap 'kill "$redis"' EXIT
export QUEUE="sqlite:$scratch/queue.db" REDIS="unix://$scratch/redis.sock" SAMPLES="$PWD/samples/tides.pdf"
export PATH="$(realpath "${CARGO_TARGET_DIR:-target}")/debug:$PATH" XDG_CONFIG_HOME="$scratch/config"
cd "$scratch"
timeout 60 bash -eu -c 'trap "kill \$(jobs -p)" EXIT; . ./commands.sh' >out.txt 2>log.txt || {
    cat out.txt log.txt >&2
    exit 1
}
cat out.txt
for kind in json md html; do
    test -s "explanations/tides.$kind"
done
grep -q 'worker-1 at sqlite:' log.txt
grep -q 'worker-2 at sqlite:' log.txt
