# Find the checkout and a Python, and keep a virtual environment for each version. The commands in scripts/ source this
# file. It sets $checkout, $base (the Python that was found), $venv and $python, and keeps the working directory.

checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && { [ -f pyproject.toml ] || cd ..; } && pwd -P) || exit 1

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Print the help of the command, which is the comment at its beginning.
help() {
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p;}' "$0"
}

# Print the version of a Python; fail if it is too old.
version_of() {
    "$1" -I -S -c 'import sys; sys.version_info < (3, 11) and sys.exit(1); print("%d.%d.%d" % sys.version_info[:3])' \
        2>/dev/null
}

find_python() {
    if [ -n "${FORGELET_PYTHON-}" ]; then
        base=$FORGELET_PYTHON
        version=$(version_of "$base") || fail "FORGELET_PYTHON: $base is not Python 3.11 or newer."
        return
    fi
    for base in python3 python3.14 python3.13 python3.12 python3.11 python; do
        version=$(version_of "$base") && return
    done
    fail 'Python 3.11 or newer was not found on PATH; install it and try again.'
}

only_help=
case " $* " in *' --help '* | *' -h '*) only_help=yes ;; esac

find_python
venv=$checkout/.venv/$version
python=$venv/bin/python

# Print what the installation depends on: the path of this folder, and two files. The commit is part of a checkout's
# version but does not count: an installation for each commit would cost more than the right version is worth.
fingerprint() {
    printf '%s\n' "$checkout" && cksum <"$checkout/pyproject.toml" && cksum <"$checkout/constraints.txt"
}

# have EXTRAS [EXTRAS...]: install the checkout in $venv with the first extras, unless it is installed with any of the
# extras, since the others contain the first; '' stands for only the run-time dependencies. For somebody who only asks
# for help, print what can be said without an installation.
have() {
    is_installed "$@" && return
    [ -z "$only_help" ] || { help && echo 'After the first run, --help lists all options.' && exit; }
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

# Wait for another command that installs, and let others wait until file 9 is closed.
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
    for stamp in "$venv"/installed-*; do # stamps of the same versions stay valid, since pip does not remove packages
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

# Create $venv and install into it; $said is the reason if $venv cannot be created.
build() {
    has_pip || said=$("$base" -m venv --clear "$venv" 2>&1) || return
    said=
    (cd "$checkout" && "$python" -m pip install --disable-pip-version-check -qq --constraint constraints.txt \
        --editable "$1" >&2)
}

# counted COMMAND...: run the command, and show the seconds that pass if there is a terminal.
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

# beside EXTRA: install as `have` does, but in a separate environment, and print its Python. It is for packages that are
# not compatible with the plug-ins of the tests.
beside() (
    venv=$venv-$1
    python=$venv/bin/python
    have "$1"
    printf '%s' "$python"
)

# run MODULE ARGUMENTS...: replace this process with that module of the checkout.
run() {
    # Images of containers set this variable; each process would compile the sources anew, which takes very long.
    unset PYTHONDONTWRITEBYTECODE
    PYTHONPATH=$checkout${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
    exec "$python" -P -m "$@"
}
