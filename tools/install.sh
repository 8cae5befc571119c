#!/bin/sh
# Makes .venv with everything pinned, Alpa 0.2.3, the patches and this project; leaves the stamp file that `make` looks at.
# Alpa is installed without its dependencies: its wheel pins jax==0.3.22, which its own fork provided.
set -eu
cd "$(dirname "$0")/.."

stamp=.venv/installed
python=$(sh tools/find_python.sh)
wanted=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
present=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)

rm -f "$stamp"
if [ "$present" != "$wanted" ]; then
    echo "Making .venv with Python $wanted"
    "$python" -m venv --clear .venv
fi

pip() {
    .venv/bin/python -m pip "$@" --disable-pip-version-check
}
pip install --requirement requirements.txt
pip install --no-deps alpa==0.2.3
pip install --no-deps --no-build-isolation --editable ./patches --editable .
.venv/bin/python -c 'import alpa, alpa_dejavu'
.venv/bin/python -m alpa_dejavu.cli._warm_up
printf '%s\n' "$PWD" > "$stamp"
echo "Installed into $PWD/.venv"
