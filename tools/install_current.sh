#!/bin/sh
# Makes .venv-current with the newest packages that were tried, without Alpa; leaves the stamp file that `make` looks at.
set -eu
cd "$(dirname "$0")/.."

stamp=.venv-current/installed
python=$(sh tools/find_python.sh current)

rm -f "$stamp"
echo "Making .venv-current with $("$python" --version)"
"$python" -m venv --clear .venv-current
pip() {
    .venv-current/bin/python -m pip "$@" --disable-pip-version-check --quiet
}
pip install --requirement requirements-current.txt
pip install --no-deps --no-build-isolation --editable .
.venv-current/bin/python -m alpa_dejavu.cli._warm_up
printf '%s\n' "$PWD" > "$stamp"
echo "Installed into $PWD/.venv-current"
