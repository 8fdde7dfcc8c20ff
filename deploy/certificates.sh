#!/bin/sh
# For testing: makes a certificate authority of your own and a server certificate for the given names and addresses.
#
#     deploy/certificates.sh FOLDER HOST...
#
# FOLDER gets ca.pem (for every device and user), server.pem and server.key (for the SuperLink), valid for 90 days. The
# authority's own key, with which anybody could pose as the SuperLink, lies beside it in FOLDER-authority: keep it where
# no server reads it. Where your organisation has a certificate authority, use that one.
set -eu
folder=${1:?folder to write to}
folder=${folder%/}
shift
umask 077  # keys are their owner's alone
mkdir -p "$folder" "$folder-authority"
authority=$(realpath "$folder-authority")
cd "$folder"

names="DNS:localhost,IP:127.0.0.1"  # the SuperLink's own processes connect to it, too
for host in "$@"; do
    case $host in
        *[!0-9.]*) names="$names,DNS:$host" ;;
        *) names="$names,IP:$host" ;;
    esac
done

curve="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc"
# shellcheck disable=SC2086  # several words
openssl req -x509 $curve -days 90 -keyout "$authority/ca.key" -out ca.pem -subj "/CN=Florilegium test authority" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
# shellcheck disable=SC2086
openssl req $curve -keyout server.key -out server.csr -subj "/CN=SuperLink" 2>/dev/null
cat > server.ext <<END
subjectAltName=$names
basicConstraints=CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
END
openssl x509 -req -in server.csr -CA ca.pem -CAkey "$authority/ca.key" -CAserial "$authority/ca.srl" -CAcreateserial \
    -days 90 -out server.pem -extfile server.ext 2>/dev/null
rm server.csr server.ext
chmod 755 .
chmod 644 ca.pem server.pem
