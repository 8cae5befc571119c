#!/bin/sh
# Prints the first Python that fits, with venv and pip: 3.10, 3.11 or 3.12 on PATH, which Alpa's environment takes; with
# `current` 3.12 or later, which the newest jax takes, on PATH or of pyenv. PYTHON=... names the one to use.
set -u

if [ "${1:-}" = current ]; then
    lowest=12 highest=99 wanted="3.12 or later" option=PYTHON_CURRENT newest=python3.13
    own=${PYENV_ROOT:-$HOME/.pyenv}/versions
    usual="python3.14 python3.13 python3.12 python3 $own/3.14.*/bin/python $own/3.13.*/bin/python $own/3.12.*/bin/python"
else
    lowest=10 highest=12 wanted="3.10, 3.11 or 3.12" option=PYTHON newest=python3.11
    usual="python3.11 python3.10 python3.12 python3 python"
fi

fits() {
    "$1" -c "import sys, venv, ensurepip; sys.exit(not (3, $lowest) <= sys.version_info[:2] <= (3, $highest))" >/dev/null 2>&1
}

candidates=${PYTHON:-$usual}
for candidate in $candidates; do
    if fits "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done

{
    echo "error: no Python $wanted with the modules venv and ensurepip was found (tried: $candidates)."
    for candidate in $candidates; do
        version=$("$candidate" --version 2>/dev/null) && echo "  $candidate is $version"
    done
    echo "Install one (on Debian and Ubuntu: $newest and $newest-venv), or name it: make ... $option=/path/to/$newest"
} >&2
exit 1
