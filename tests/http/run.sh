#!/usr/bin/env bash
# The HTTP examples with curl and wrk at the other end: what can only be seen from outside of a process.
set -euo pipefail
usage='usage: run.sh SCRATCH-DIRECTORY HELLO FETCH'
scratch=${1:?$usage} hello=${2:?$usage} fetch=${3:?$usage}

fail() {
    echo "$1" >&2
    exit 1
}

# start NAME [ARGUMENT]…: an example server whose end we hold on descriptor 9; its URL's authority is in $address.
start() {
    local log="$scratch/$1.log"
    mkfifo "$scratch/$1.stdin"
    "$hello" --listen 127.0.0.1:0 "${@:2}" <"$scratch/$1.stdin" >"$log" 2>&1 &
    server=$!
    exec 9>"$scratch/$1.stdin"
    until address=$(sed -n 's/^listening on //p' "$log") && [ -n "$address" ]; do
        kill -0 "$server" || fail "hello does not start: $(cat "$log")"
    done
}

# stop NAME: in order; what it reports is in its log.
stop() {
    exec 9>&-
    wait "$server" || fail "hello failed: $(cat "$scratch/$1.log")"
    grep -q 'cut: 0' "$scratch/$1.log" || fail "hello did not stop in order: $(cat "$scratch/$1.log")"
}

# SSL_CERT_FILE is honoured, and only what it names is trusted.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE \
    -keyout "$scratch/key.pem" -out "$scratch/cert.pem" 2>"$scratch/openssl.log"
start tls --tls "$scratch/cert.pem" "$scratch/key.pem"
url="https://localhost:${address##*:}/"
export NO_PROXY='*'
unset SSL_CERT_DIR
[ "$(SSL_CERT_FILE="$scratch/cert.pem" "$fetch" "$url")" = hello ] || fail "SSL_CERT_FILE is not honoured"
if "$fetch" "$url" 2>"$scratch/refused.txt"; then fail "a stranger's certificate was trusted"; fi
grep -q '^fetch: localhost cannot be trusted: ' "$scratch/refused.txt" || fail "not told why: $(cat "$scratch/refused.txt")"
if SSL_CERT_FILE=/nowhere.pem "$fetch" "$url" 2>"$scratch/missing.txt"; then fail "a missing file was ignored"; fi
grep -q 'SSL_CERT_FILE=/nowhere.pem cannot be used' "$scratch/missing.txt" || fail "not told which: $(cat "$scratch/missing.txt")"
stop tls
echo "SSL_CERT_FILE: honoured; strangers and missing files refused by name"

# Out of descriptors: accepting backs off, nothing is lost, and it recovers.
limit=$(ulimit -Sn)
ulimit -Sn 40
start few
ulimit -Sn "$limit"
wrk -t1 -c200 -d2s --timeout 60s "http://$address/" >"$scratch/few.txt"
[ "$(curl -sS --fail "http://$address/")" = hello ] || fail "not reachable after it ran out of descriptors"
before=$(awk '{print $14 + $15}' "/proc/$server/stat")
read -rt 1 <> <(:) || true
after=$(awk '{print $14 + $15}' "/proc/$server/stat")
[ $((after - before)) -le 5 ] || fail "an idle server used $((after - before)) ticks of CPU in a second"
stop few
echo "out of descriptors: recovered, idle again"
