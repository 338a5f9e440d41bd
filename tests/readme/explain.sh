#!/usr/bin/env bash
# The README's first commands, with the program that the tests have built, and a trace.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: explain.sh SCRATCH-DIRECTORY}
tidegate=${TIDEGATE_PROGRAM_DIR:?is where the program was built}/tidegate

"$tidegate" explain samples/ --out "$scratch/explanations" --progress plain
for name in tides schleuse marees chaoxi columns scan; do
    for kind in json md html; do
        test -s "$scratch/explanations/$name.$kind"
    done
done
grep -q 'high water' "$scratch/explanations/tides.md"

# One bad file fails alone.
status=0
"$tidegate" explain samples/tides.pdf crates/tidegate-pdf/tests/data/broken.pdf --out "$scratch/one-bad" --progress plain || status=$?
[ "$status" = 1 ] || {
    echo "a broken file gave exit code $status, not 1" >&2
    exit 1
}
test -s "$scratch/one-bad/tides.html"

"$tidegate" trace timeline >"$scratch/timeline.txt"
grep -q '\[result\] 2' "$scratch/timeline.txt"
echo "trace timeline: $(wc -l <"$scratch/timeline.txt") lines"
