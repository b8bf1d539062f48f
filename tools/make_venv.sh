#!/usr/bin/env bash
# Makes a virtual environment at $1 with whatever this machine offers for it.
set -euo pipefail
venv=$1
for python in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    [ -n "$python" ] && command -v "$python" >/dev/null || continue
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || continue
    found=$python
    break
done
if [ -z "${found:-}" ]; then
    echo "hy3d_rocm needs Python 3.11 or newer; none is on the PATH. Name one: make PYTHON=/path/to/python3.11" >&2
    exit 1
fi
echo "making a virtual environment in $venv with $("$found" --version)"
if "$found" -m venv "$venv" 2>/dev/null && [ -x "$venv/bin/pip" ]; then
    exit 0
fi
rm -rf "$venv"
# Debian splits ensurepip off; virtualenv brings its own pip.
bootstrap=$(mktemp -d)
trap 'rm -rf "$bootstrap"' EXIT
if "$found" -m pip install -q --target "$bootstrap" virtualenv 2>/dev/null &&
    PYTHONPATH=$bootstrap "$found" -m virtualenv -q "$venv"; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq python3-venv python3-dev
    "$found" -m venv "$venv" && exit 0
fi
echo "could not make a virtual environment: install your system's python3-venv package (Debian, Ubuntu: apt-get install python3-venv python3-dev), or activate one before you call make" >&2
exit 1
