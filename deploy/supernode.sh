#!/bin/sh
# Starts a SuperNode with TLS and a key of its own. Settings come from the environment:
#
#     SUPERLINK      host:port of the SuperLink
#     CA             ca.pem, with which the SuperLink's certificate is checked
#     KEY            the node's private key (ssh-keygen -t ecdsa -b 384), whose public half is registered
#     NODE_CONFIG    where its data are and who it is: 'data-path="/data/a" client-id="a" state-dir="/var/lib/…/a"'
#     STATE          folder for all that Flower writes
#     OWNER          folder of the owner's policy (docs/owner.md); without it, every run may do what its code does
#     DATASET        the runs' dataset; where given, the node starts only if its data can be read as such
set -eu
umask 077  # personal models are the owner's alone
: "${SUPERLINK:?host:port}" "${CA:?ca.pem}" "${KEY:?private key}" "${NODE_CONFIG:?data-path, …}" "${STATE:?folder}"
mkdir -p "$STATE/empty"
STATE=$(realpath "$STATE") CA=$(realpath "$CA") KEY=$(realpath "$KEY")
export FLWR_HOME="$STATE/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
cd "$STATE/empty"  # Flower's processes would import what lies where they are started
exec florilegium device serve --node-config "$NODE_CONFIG" ${DATASET:+--dataset "$DATASET"} ${OWNER:+--owner "$OWNER"} \
    --superlink "$SUPERLINK" --root-certificates "$CA" --auth-supernode-private-key "$KEY"
