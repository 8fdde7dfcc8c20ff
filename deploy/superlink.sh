#!/bin/sh
# Starts a SuperLink with TLS, authenticated SuperNodes and a database. Settings come from the environment:
#
#     CERTIFICATES   folder with ca.pem, server.pem and server.key
#     STATE          folder for the database and all that it writes
#     HOST, PORT     where it listens; 127.0.0.1 and 8000 unless given
set -eu
umask 077
: "${CERTIFICATES:?folder with ca.pem, server.pem and server.key}" "${STATE:?folder for the database}"
mkdir -p "$STATE/empty"
STATE=$(realpath "$STATE") CERTIFICATES=$(realpath "$CERTIFICATES")
export FLWR_HOME="$STATE/flwr" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
cd "$STATE/empty"  # Flower's processes would import what lies where they are started
exec florilegium superlink --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" \
    --ssl-ca-certfile "$CERTIFICATES/ca.pem" --ssl-certfile "$CERTIFICATES/server.pem" \
    --ssl-keyfile "$CERTIFICATES/server.key" --enable-supernode-auth --database "$STATE/superlink.db" \
    --disable-runtime-dependency-installation
