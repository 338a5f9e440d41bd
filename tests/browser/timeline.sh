#!/usr/bin/env bash
# Opens the HTML timelines in Chromium: no script error, every task has its lane, and the picture is not blank.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: timeline.sh SCRATCH-DIRECTORY}

browse() {
    # The flags keep it from reaching for the network; a private profile, because several may run at once.
    timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --user-data-dir="$(mktemp -d -p "$scratch")" \
        --window-size=1280,800 --virtual-time-budget=5000 --enable-logging=stderr "$@"
}

for example in timeline sleep await-task await-coro await-future; do
    page="$scratch/$example.html"
    "${TIDEGATE_PROGRAM_DIR:?is where the program was built}/tidegate" trace "$example" --format html --out "$page"
    if grep -qE 'https?://' <(grep -vE 'www\.w3\.org|ui\.perfetto\.dev' "$page"); then
        echo "$example: the page refers to the network" >&2
        exit 1
    fi
    browse --dump-dom "file://$page" >"$scratch/dom.html" 2>"$scratch/log.txt"
    if grep -E 'Uncaught|SyntaxError|ReferenceError|TypeError' "$scratch/log.txt"; then
        echo "$example: the page's script failed" >&2
        exit 1
    fi
    grep -q 'main' "$scratch/dom.html" || {
        echo "$example: the main task is not on the page" >&2
        exit 1
    }
    browse --screenshot="$scratch/$example.png" "file://$page" >/dev/null 2>&1
    size=$(stat -c %s "$scratch/$example.png")
    [ "$size" -gt 10000 ] || {
        echo "$example: the picture is blank ($size bytes)" >&2
        exit 1
    }
    echo "$example: no script error, picture of $size bytes"
done
