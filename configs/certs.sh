#!/usr/bin/env bash
# Makes an authority and a certificate for each named node, in the folder `certs` beside this script, with openssl 3:
#
#     configs/certs.sh node-1 node-2 node-3
#
# For trying out: the authority's private key lies beside the certificates. Run again, it makes everything anew, the authority
# too, so name from the start all nodes that are ever to meet.
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: $0 NODE..." >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")"
umask 077
mkdir -p certs
cd certs

readonly days=365
new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
extensions() { printf 'basicConstraints=critical,%s\nkeyUsage=critical,%s\n' "$1" "$2"; }

new_key ca.key
openssl req -new -key ca.key -subj "/CN=ratemesh authority" |
    openssl x509 -req -key ca.key -days "$days" -out ca.pem -extfile <(extensions CA:TRUE keyCertSign)

for node in "$@"; do
    new_key "$node.key"
    openssl req -new -key "$node.key" -subj "/CN=$node" |
        openssl x509 -req -CA ca.pem -CAkey ca.key -days "$days" -out "$node.pem" -extfile <(
            extensions CA:FALSE digitalSignature
            printf 'extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=DNS:%s\n' "$node"
        )
done
