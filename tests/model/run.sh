#!/usr/bin/env bash
# A handful of pages through a real, small language model: SmolLM2-135M from PyPI, served on this machine as OpenAI's API
# looks. The words it finds are its own business; that every page has some, with the tokens it took, is ours.
set -euo pipefail
cd "$(dirname "$0")/../.."
usage='usage: run.sh SCRATCH-DIRECTORY PYTHON'
scratch=${1:?$usage} python=${2:?$usage}
model=$(find "$(dirname "$python")/.." -name '*.gguf')

mkfifo "$scratch/model.stdin"
"$python" tests/model/serve.py "$model" <"$scratch/model.stdin" >"$scratch/model.url" 2>"$scratch/model.log" &
server=$!
# It ends when we do: the other end of its standard input is ours.
exec 8>"$scratch/model.stdin"
until url=$(grep -o 'http://.*' "$scratch/model.url"); do
    kill -0 "$server" || {
        cat "$scratch/model.log" >&2
        exit 1
    }
    sleep 0.1
done

"${TIDEGATE_PROGRAM_DIR:?is where the program was built}/tidegate" explain samples/tides.pdf --provider openai --base-url "$url" --model smollm2 --pages 1-3 --max-tokens 60 \
    --text-only --page-concurrency 2 --out "$scratch/explained" --progress plain
exec 8>&-
wait "$server" || true

python3 - "$scratch/explained/tides.json" <<'P'
import json, sys

pages = json.load(open(sys.argv[1]))["explanations"]
assert [page["page"] for page in pages] == [1, 2, 3], pages
for page in pages:
    assert page["status"] == "done" and page["explanation"].strip(), page
    print(f"page {page['page']}: {page['explanation'].strip().splitlines()[0][:100]}")
P
