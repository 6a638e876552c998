#!/bin/sh
# The access rules of a new node, and the tokens of Prometheus and of clients on this machine.
# Existing files stay; files that an interrupted run did not make are made by the next one.
#   first.sh [DATA [TOKENS]]
set -eu
data=${1:-/data} tokens=${2:-/tokens}

token() {
    [ ! -e "$tokens/$2.token" ] || return 0
    $as_owner millpond token new --data "$data" --rights "$1" --note "$2" > "$tokens/$2.new"
    chmod 644 "$tokens/$2.new"
    mv "$tokens/$2.new" "$tokens/$2.token"
}
umask 077
# Commands within the container need no token: docker compose exec node millpond info
[ -e "$data/access.conf" ] || echo 'address:127.0.0.0/8 all' > "$data/access.conf"
# The data is the node's, and millpond refuses to write it as another user.
as_owner=
if id millpond >/dev/null 2>&1; then
    chown -R millpond:millpond "$data"
    as_owner="setpriv --reuid=millpond --regid=millpond --clear-groups"
fi
# Nothing but these containers sees the volume of the tokens, and each has a user of its own.
chmod 755 "$tokens"
token admin prometheus
token all client
