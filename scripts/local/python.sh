# Sourced by the commands in scripts/: finds the checkout and a Python, keeps .venv up to date.
# Sets $checkout and $python. The caller's folder stays the working directory.

checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && { [ -f pyproject.toml ] || cd ..; } && pwd -P) || exit 1
python=$checkout/.venv/bin/python

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Prints the first Python on PATH that is 3.11 or newer.
find_python() {
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# What the installation depends on: the two files, this folder's place, and the Python.
fingerprint() {
    printf '%s\n' "$checkout" &&
        "$python" -c 'import sys; print(sys.version)' &&
        cksum <"$checkout/pyproject.toml" && cksum <"$checkout/constraints.txt"
}

# have EXTRA [EXTRA...]: makes sure that the checkout is installed in .venv with the first extra. The others hold
# at least as much, and having one of them is enough; '' stands for the run-time dependencies alone.
have() {
    extra=$1
    if [ -x "$python" ]; then
        now=$(fingerprint)
        for wider in "$@"; do
            stamp=$checkout/.venv/installed-${wider:-run-time}
            [ -r "$stamp" ] && [ "$(cat "$stamp")" = "$now" ] && return
        done
    fi
    install_into_venv "$extra"
}

install_into_venv() {
    if ! [ -x "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1; then
        base=$(find_python) || fail 'Python 3.11 or newer was not found on PATH; install it and try again.'
        said=$("$base" -m venv --clear "$checkout/.venv" 2>&1) || {
            printf '%s\n' "$said" >&2
            fail "$base cannot make $checkout/.venv; on Debian and Ubuntu, install the package python3-venv."
        }
    fi
    echo "Installing into $checkout/.venv (about a minute the first time) ..." >&2
    quiet=-qq
    [ -t 2 ] && quiet=
    rm -f "$checkout"/.venv/installed-* || exit 1
    # $quiet is one word or none.
    (cd "$checkout" && "$python" -m pip install --disable-pip-version-check $quiet \
        --constraint constraints.txt --editable ".${1:+[$1]}" >&2) ||
        fail 'The dependencies could not be installed; see above.'
    fingerprint >"$checkout/.venv/installed-${1:-run-time}"
}

# run MODULE ARGUMENTS...: becomes that module of the checkout.
run() {
    PYTHONPATH=$checkout${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
    exec "$python" -P -m "$@"
}
