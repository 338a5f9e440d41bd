#!/usr/bin/env bash
# The README's worker example, as it stands there: its first Python block below "## Tasks" and the shell block behind it.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: worker.sh SCRATCH-DIRECTORY}

block() {
    awk -v language="$1" '/^## /{inside = ($0 == "## Tasks")} inside && $0 == "```" language {on = 1; next} /^```/{if (on) exit} on' README.md
}

mkdir "$scratch/readme"
block python >"$scratch/readme/jobs.py"
block sh >"$scratch/readme/commands.sh"
PATH="${TIDEGATE_PROGRAM_DIR:?is where the program was built}:$PATH"
export PATH PYTHONPATH="$PWD/clients/python" XDG_DATA_HOME="$scratch/readme/data" XDG_CONFIG_HOME="$scratch/readme/config"
cd "$scratch/readme"
timeout 60 bash -eu -c '. ./commands.sh; wait $! || true' >out.txt 2>log.txt || {
    cat out.txt log.txt >&2
    exit 1
}
cat out.txt
grep -qx 3 out.txt || {
    echo "the README's task did not answer 3" >&2
    cat log.txt >&2
    exit 1
}
