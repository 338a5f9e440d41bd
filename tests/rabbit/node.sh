#!/usr/bin/env bash
# A RabbitMQ of one's own: nothing of it lies outside of its directory, nothing of the machine's is touched.
#   node.sh make DIR [PEER]   writes its configuration, with free ports and a self-made certificate; DIR/env says where it
#                             listens. With a peer it can form a cluster with that one
#   node.sh start DIR         starts it, and returns once it takes connections
#   node.sh stop DIR          stops it in order
#   node.sh kill DIR          ends it without a word
#   node.sh join DIR PEER     makes it a part of the peer's cluster, empty
#   node.sh leave DIR PEER    the opposite
#   node.sh ctl DIR …         rabbitmqctl
set -euo pipefail
verb=${1:?usage: node.sh make|start|stop|kill|join|leave|ctl DIRECTORY}
dir=${2:?usage: node.sh make|start|stop|kill|join|leave|ctl DIRECTORY}
peer=${3:-}
bin=/usr/lib/rabbitmq/bin
[ -x "$bin/rabbitmq-server" ] || {
    echo "RabbitMQ is missing; install the package 'rabbitmq-server'" >&2
    exit 2
}

free_ports() {
    python3 -c '
import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in held))' "$1"
}

if [ "$verb" = make ]; then
    mkdir -p "$dir/home"
    dir=$(cd "$dir" && pwd)
    read -r plain tls dist epmd management < <(free_ports 5)
    # Nodes of a cluster share a secret, and a register of names.
    if [ -n "$peer" ]; then
        epmd=$(sed -n 's/.*ERL_EPMD_PORT=//p' "$peer/env")
        cp -p "$peer/home/.erlang.cookie" "$dir/home/"
    else
        (umask 277 && head -c 30 /dev/urandom | base64 | tr -dc 'A-Za-z0-9' >"$dir/home/.erlang.cookie")
    fi
    authority=(-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=the tests' authority")
    openssl req "${authority[@]}" -keyout "$dir/ca.key" -out "$dir/ca.pem" 2>"$dir/openssl.log"
    for name in server client; do
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" \
            -keyout "$dir/$name.key" -out "$dir/$name.csr" 2>>"$dir/openssl.log"
        openssl x509 -req -in "$dir/$name.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial -days 2 \
            -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1") -out "$dir/$name.pem" 2>>"$dir/openssl.log"
    done
    cat >"$dir/rabbitmq.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$plain
listeners.ssl.1 = 127.0.0.1:$tls
ssl_options.cacertfile = $dir/ca.pem
ssl_options.certfile = $dir/server.pem
ssl_options.keyfile = $dir/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
ssl_cert_login_from = common_name
log.file.level = info
disk_free_limit.absolute = 50MB
management.tcp.ip = 127.0.0.1
management.tcp.port = $management
CONF
    echo '[rabbitmq_auth_mechanism_ssl,rabbitmq_management].' >"$dir/enabled_plugins"
    cat >"$dir/env" <<ENV
export HOME='$dir/home' ERL_EPMD_PORT=$epmd ERL_CRASH_DUMP='$dir/erl_crash.dump'
export RABBITMQ_NODENAME=tidegate-$plain@localhost RABBITMQ_NODE_PORT=$plain RABBITMQ_DIST_PORT=$dist
export RABBITMQ_MNESIA_BASE='$dir/mnesia' RABBITMQ_LOG_BASE='$dir/log' RABBITMQ_PID_FILE='$dir/pid'
export RABBITMQ_CONFIG_FILE='$dir/rabbitmq.conf' RABBITMQ_ENABLED_PLUGINS_FILE='$dir/enabled_plugins'
export TIDEGATE_RABBIT_DIR='$dir' TIDEGATE_RABBIT_PLAIN=127.0.0.1:$plain TIDEGATE_RABBIT_TLS=localhost:$tls
export TIDEGATE_RABBIT_MANAGEMENT=127.0.0.1:$management
ENV
    exit
fi

dir=$(cd "$dir" && pwd)
# shellcheck disable=SC1091
. "$dir/env"

# ended PID: waits for the end of a process that is not ours to wait for.
ended() {
    tail --pid="$1" -f /dev/null
}

case $verb in
    start)
        rm -f "$dir/pid"
        # It outlives this script, and what the caller holds open (locks, pipes) is none of its business.
        (
            for open in /proc/self/fd/*; do
                [ "${open##*/}" -le 2 ] || eval "exec ${open##*/}>&-"
            done
            exec setsid "$bin/rabbitmq-server" </dev/null >"$dir/out.log" 2>&1
        ) &
        server=$!
        # A start that is in the way of another's port, or fails otherwise, ends the server: then there is nothing to wait for.
        timeout 120 "$bin/rabbitmqctl" --quiet wait --timeout 110 "$dir/pid" >"$dir/wait.log" 2>&1 || {
            echo "RabbitMQ does not start:" >&2
            tail -n 20 "$dir/out.log" "$dir/wait.log" >&2
            kill "$server" 2>/dev/null || true
            exit 1
        }
        ;;
    stop)
        pid=$(cat "$dir/pid")
        kill -TERM "$pid"
        ended "$pid"
        "$(dirname "$(readlink -f "$(command -v erl)")")"/epmd -kill >/dev/null 2>&1 || epmd -kill >/dev/null 2>&1 || true
        ;;
    kill)
        pid=$(cat "$dir/pid")
        kill -KILL "$pid"
        ended "$pid"
        rm "$dir/pid"
        ;;
    join | leave)
        nodename=$(sed -n 's/.*RABBITMQ_NODENAME=\([^ ]*\).*/\1/p' "$peer/env")
        "$bin/rabbitmqctl" --quiet stop_app
        "$bin/rabbitmqctl" --quiet reset
        [ "$verb" = leave ] || "$bin/rabbitmqctl" --quiet join_cluster "$nodename"
        "$bin/rabbitmqctl" --quiet start_app
        ;;
    ctl) exec "$bin/rabbitmqctl" --quiet "${@:3}" ;;
    *)
        echo "node.sh: unknown verb '$verb'" >&2
        exit 2
        ;;
esac
