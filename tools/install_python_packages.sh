#!/usr/bin/env bash
# Installs torch where there is none, then this project with its extras, editable, into the
# environment of the interpreter $1. The other arguments are the torch requirement in pip's words.
set -euo pipefail
python=$1
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Nothing is compiled ahead: of the packages' 15,000 files a run imports some 3,000.
pip_install() {
    "$python" -m pip install --no-compile --progress-bar off -q "$@"
}
if ! "$python" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
    echo "Python.h is missing: install your system's Python development package (Debian, Ubuntu: apt-get install python3-dev) to build the C core" >&2
    exit 1
fi
if "$python" -c 'import torch' 2>/dev/null; then
    echo "torch $("$python" -c 'import torch; print(torch.__version__)') is there and stays"
else
    echo "no torch in this environment; installing: $*"
    "$python" tools/download_size.py "$@"
    pip_install "$@"
fi
# The installed torch is pinned, so that no dependency can replace it.
constraint=$(mktemp)
trap 'rm -f "$constraint"' EXIT
"$python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >"$constraint"
echo "building the C core and installing hy3d_rocm with its demo, test and docs extras"
pip_install -c "$constraint" -e '.[cli,demo,docs,test]'

# Triton compiles the GPU kernels for AMD and interprets them on the CPU, without a GPU. It is no
# extra of pyproject.toml: builds of torch for ROCm and CUDA bring their own under other package
# names, and pip would write this one over it.
triton=3.6.0
if "$python" -c 'import triton' 2>/dev/null; then
    echo "triton $("$python" -c 'import triton; print(triton.__version__)') is there and stays"
elif "$python" -c 'import platform as p, sys; sys.exit((p.system(), p.machine()) != ("Linux", "x86_64") or not (3, 10) <= sys.version_info < (3, 15))'; then
    echo "installing triton $triton for the tests of the GPU kernels"
    pip_install --no-deps "triton==$triton" ||
        echo "triton could not be installed: the tests of the GPU kernels will be skipped"
else
    echo "no triton wheel for this platform (Linux x86-64 with CPython 3.10 to 3.14 has one): the tests of the GPU kernels will be skipped"
fi

# tinygrad brings AMD's own description of its instruction sets, by which the tests decode what
# Triton compiled and execute it on the CPU (docs/amd_truth.md). Its tables are version 0.14's.
tinygrad=0.14.0
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "installing tinygrad $tinygrad for the tests that execute AMD code"
    pip_install --no-deps "tinygrad==$tinygrad" ||
        echo "tinygrad could not be installed: the tests that execute AMD code will be skipped"
else
    echo "tinygrad needs Python 3.11: the tests that execute AMD code will be skipped"
fi
