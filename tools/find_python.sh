#!/bin/sh
# Prints the first Python on PATH that fits (3.10, 3.11 or 3.12, with venv and pip); PYTHON=... names the one to use.
set -u

fits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    candidates=$PYTHON
else
    candidates="python3.11 python3.10 python3.12 python3 python"
fi
for candidate in $candidates; do
    if fits "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done

{
    echo "error: no Python 3.10, 3.11 or 3.12 with the modules venv and ensurepip was found (tried: $candidates)."
    for candidate in $candidates; do
        version=$("$candidate" --version 2>/dev/null) && echo "  $candidate is $version"
    done
    echo "Install one (on Debian and Ubuntu: python3.11 and python3.11-venv), or name it: make ... PYTHON=/path/to/python3.11"
} >&2
exit 1
