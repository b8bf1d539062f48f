#!/usr/bin/env bash
# Installs torch where there is none, then this project with its extras, editable, into the
# environment of the interpreter $1. The other arguments are the torch requirement in pip's words.
set -euo pipefail
python=$1
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1
if ! "$python" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
    echo "Python.h is missing: install your system's Python development package (Debian, Ubuntu: apt-get install python3-dev) to build the C core" >&2
    exit 1
fi
if "$python" -c 'import torch' 2>/dev/null; then
    echo "torch $("$python" -c 'import torch; print(torch.__version__)') is there and stays"
else
    echo "no torch in this environment; installing: $*"
    "$python" tools/download_size.py "$@"
    "$python" -m pip install --progress-bar off -q "$@"
fi
# The installed torch is pinned, so that no dependency can replace it.
constraint=$(mktemp)
trap 'rm -f "$constraint"' EXIT
"$python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >"$constraint"
echo "building the C core and installing hy3d_rocm with its demo and test extras"
"$python" -m pip install --progress-bar off -q -c "$constraint" -e '.[cli,demo,test]'
