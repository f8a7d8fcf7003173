# Sourced by the commands in scripts/: finds the checkout and a Python, keeps a virtual environment for each version.
# Sets $checkout, $base (the Python that was found), $venv and $python. The caller's folder stays the working directory.

checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && { [ -f pyproject.toml ] || cd ..; } && pwd -P) || exit 1

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Prints what the command says of itself: the comment that it begins with.
help() {
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p;}' "$0"
}

# Prints the version of a Python that is new enough.
version_of() {
    "$1" -I -S -c 'import sys; sys.version_info < (3, 11) and sys.exit(1); print("%d.%d.%d" % sys.version_info[:3])' \
        2>/dev/null
}

find_python() {
    if [ -n "${FORGELET_PYTHON-}" ]; then
        base=$FORGELET_PYTHON
        version=$(version_of "$base") || fail "FORGELET_PYTHON: $base is no Python from 3.11 on."
        return
    fi
    for base in python3 python3.14 python3.13 python3.12 python3.11 python; do
        version=$(version_of "$base") && return
    done
    fail 'Python 3.11 or newer was not found on PATH; install it and try again.'
}

find_python
venv=$checkout/.venv/$version
python=$venv/bin/python

# What the installation depends on: this folder's place and two files. Not the commit, after which a checkout's version
# is named: it is that of the day of the installation, and a new one for each commit would cost more than it tells.
fingerprint() {
    printf '%s\n' "$checkout" && cksum <"$checkout/pyproject.toml" && cksum <"$checkout/constraints.txt"
}

# have EXTRAS [EXTRAS...]: makes sure that the checkout is installed in $venv with the first extras. The others hold
# at least as much, and having one of them is enough; '' stands for the run-time dependencies alone.
have() {
    is_installed "$@" && return
    mkdir -p "$checkout/.venv" || exit 1
    (alone && { is_installed "$@" || install_into_venv "$1"; }) 9>"$checkout/.venv/lock" || exit 1
}

is_installed() {
    [ -x "$python" ] || return
    now=$(fingerprint)
    for wider in "$@"; do
        stamp=$venv/installed-${wider:-run-time}
        [ -r "$stamp" ] && [ "$(cat "$stamp")" = "$now" ] && return
    done
    return 1
}

# Waits for another command that installs, and keeps others waiting until file 9 is closed.
alone() {
    "$base" -I -S -c 'import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("Another command is installing forgelet; waiting for it ...", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)' >/dev/null
}

install_into_venv() {
    if has_pip; then
        echo "Installing what has changed into $venv; this takes up to a minute." >&2
    else
        echo "Installing forgelet into $venv; this takes one to two minutes the first time." >&2
    fi
    now=$(fingerprint)
    for stamp in "$venv"/installed-*; do # others with the same versions stay: pip adds, and removes nothing
        [ -r "$stamp" ] && [ "$(cat "$stamp")" != "$now" ] && rm -f "$stamp"
    done
    said=
    if counted build ".${1:+[$1]}"; then
        printf '%s\n' "$now" >"$venv/installed-${1:-run-time}"
    elif [ -n "$said" ]; then
        printf '%s\n' "$said" >&2
        fail "$base cannot make $venv; on Debian and Ubuntu, install the package python3-venv."
    else
        fail 'The dependencies could not be installed; see above.'
    fi
}

has_pip() {
    [ -x "$python" ] && "$python" -m pip --version >/dev/null 2>&1
}

# Says in $said why it cannot make $venv.
build() {
    has_pip || said=$("$base" -m venv --clear "$venv" 2>&1) || return
    said=
    (cd "$checkout" && "$python" -m pip install --disable-pip-version-check -qq --constraint constraints.txt \
        --editable "$1" >&2)
}

# counted COMMAND...: runs it, and shows the seconds that pass on a terminal.
counted() {
    [ -t 2 ] || { "$@"; return; }
    seconds=0
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 1))
        printf '%s s\r' "$seconds" >&2
    done &
    "$@"
    status=$?
    kill $! 2>/dev/null
    printf '\033[K' >&2
    return "$status"
}

# beside EXTRA: as `have`, in an environment of its own, whose Python it prints: for what does not go together with the
# plug-ins of the tests.
beside() (
    venv=$venv-$1
    python=$venv/bin/python
    have "$1"
    printf '%s' "$python"
)

# run MODULE ARGUMENTS...: becomes that module of the checkout.
run() {
    # Set in images of containers, it has each process compile the sources anew, which takes longer than all else.
    unset PYTHONDONTWRITEBYTECODE
    PYTHONPATH=$checkout${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
    exec "$python" -P -m "$@"
}
