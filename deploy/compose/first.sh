#!/bin/sh
# The access rules of a new node, and the tokens of Prometheus and of clients on this machine.
#   first.sh [DATA [TOKENS]]
set -eu
data=${1:-/data} tokens=${2:-/tokens}
[ ! -e "$data/access.conf" ] || exit 0

token() {
    millpond token new --data "$data" --rights "$1" --note "$2" > "$tokens/$2.token"
}
umask 077
token admin prometheus
token all client
# Commands within the container need no token: docker compose exec node millpond info
echo 'address:127.0.0.0/8 all' >> "$data/access.conf"

# Nothing but these containers sees the volume of the tokens, and each has a user of its own.
chmod 755 "$tokens"
chmod 644 "$tokens"/*.token
if id millpond >/dev/null 2>&1; then
    chown -R millpond:millpond "$data"
fi
