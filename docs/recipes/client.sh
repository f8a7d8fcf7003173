#!/bin/sh
# curl: with-forgelet.sh sh client.sh
set -eu
ready() { # KEY
    sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p" "$FORGELET_READY_FILE"
}
gitlab() { # PATH [OPTION ...]; the token goes through standard input, because process lists show options
    path=$1 && shift
    printf 'header = "PRIVATE-TOKEN: %s"\n' "$(ready root_token)" | curl -fsS -K - "$@" "$(ready api_url)/$path"
}
curl -fsS -X POST "$(ready url)/-/testing/reset"
gitlab projects -d name=hello >/dev/null
gitlab projects/root%2Fhello | grep -q 'path_with_namespace.*root/hello'
echo "made root/hello"
