#!/bin/sh
# Run a program with a server for tests; FORGELET_READY_FILE names the server's ready file. The exit status is the
# program's:
#
#   with-forgelet.sh mvn test
set -eu
folder=$(mktemp -d)
mkfifo "$folder/hold"
forgelet up --testing --until-eof --ready-file "$folder/ready.json" <"$folder/hold" >"$folder/log" 2>&1 &
server=$!
exec 3>"$folder/hold" # the server ends when this pipe closes: with this shell, however it ends
trap 'exec 3>&-; wait "$server" || true; rm -r "$folder"' EXIT
trap 'exit 130' INT TERM
until [ -e "$folder/ready.json" ]; do
    kill -0 "$server" 2>/dev/null || { cat "$folder/log" >&2 && exit 1; }
    sleep 0.05
done
FORGELET_READY_FILE="$folder/ready.json" "$@" 3>&-
