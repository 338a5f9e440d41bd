#!/usr/bin/env bash
# Real PDFs of hundreds of pages, from Debian's documentation packages: read completely, compared page by page with
# pdftotext, in bounded memory; then the same files damaged.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=${1:?usage: run.sh SCRATCH-DIRECTORY PDF_PAGES}
program=${2:?usage: run.sh SCRATCH-DIRECTORY PDF_PAGES}

# English, and Japanese for another script; 4 MB together. Downloaded, not installed.
mkdir -p "$scratch/pdf"
cd "$scratch/pdf"
for package in debian-reference-en debian-reference-ja; do
    apt-get download -qq -o APT::Sandbox::User=root "$package" || {
        echo "the package '$package' cannot be downloaded; run 'apt-get update' first" >&2
        exit 2
    }
    dpkg-deb -x "$package"_*.deb .
done

for language in en ja; do
    python3 "$OLDPWD/tests/pdf/compare.py" "$program" "usr/share/debian-reference/debian-reference.$language.pdf"
done

# A download that stopped, and one with a hole: what is left is read, what is lacking is said, nobody crashes.
whole=usr/share/debian-reference/debian-reference.en.pdf
size=$(stat -c %s "$whole")
head -c $((size / 2)) "$whole" >half.pdf
cp "$whole" hole.pdf
dd if=/dev/urandom of=hole.pdf bs=1024 seek=$((size / 2048)) count=200 conv=notrunc status=none
for damaged in half.pdf hole.pdf; do
    "$program" --summary "$damaged" >"$damaged.txt" 2>&1 || true
    grep -Eq 'pages, [0-9]+ good|is broken: |has no pages' "$damaged.txt" || {
        echo "$damaged: nothing that makes sense was said: $(cat "$damaged.txt")" >&2
        exit 1
    }
    tail -n 1 "$damaged.txt"
done
