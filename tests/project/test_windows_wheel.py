"""The wheel for Windows: what it takes of Python, and that its check sees what it shall see.

`make wheel-windows` builds and checks the whole; `make wheel-windows-test` runs it under wine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import check_windows_wheel as check
import pytest
from places import ROOT

from hy3d_rocm import _core

COMPILER = "x86_64-w64-mingw32-gcc"
HOOK = "import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])"


def plain(name: str) -> str:
    """The name that headers from Python 3.13 on have for a function of older ones."""
    return re.sub("^_(.+)_SizeT$", r"\1", name)


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm of binutils")
def test_the_list_of_pythons_names_is_what_the_extension_takes() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", _core.__file__], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    taken = {plain(name) for name in names if re.match("_?Py", name)}
    assert {plain(name) for name in check.allowed_names()} == taken


def test_those_names_are_in_the_stable_abi_of_python_3_11() -> None:
    abi3info = pytest.importorskip("abi3info")
    stable = {symbol.name: found for table in (abi3info.FUNCTIONS, abi3info.DATAS)
              for symbol, found in table.items()}  # fmt: skip
    names = check.allowed_names()
    assert len(names) > 100
    assert not names - stable.keys()
    assert not [n for n in names if (stable[n].added.major, stable[n].added.minor) > (3, 11)]


def test_what_is_data_is_named_so() -> None:
    text = (ROOT / "tools" / "windows" / "python3.def").read_text()
    data = set(re.findall(r"^(\w+) DATA$", text, re.M))
    assert data == {n for n in check.allowed_names() if re.search("^PyExc_|_Type$|Struct$", n)}


HEADERS = """
Time/Date\t\tThu Jan  1 00:00:00 1970
\t\t\t\t\tHIGH_ENTROPY_VA
\t\t\t\t\tDYNAMIC_BASE
\t\t\t\t\tNX_COMPAT
 0007d000\t0007d03c 00000000 00000000 0007d744 0007e0c8

\tDLL Name: KERNEL32.dll
\tvma:  Hint/Ord Member-Name Bound-To
\t7e4a0\t    0  AcquireSRWLockExclusive

 0007d028\t0007d2a4 00000000 00000000 0007eb30 0007e330

\tDLL Name: python3.dll
\tvma:  Hint/Ord Member-Name Bound-To
\t7f12e\t    1  PyBool_FromLong

[Ordinal/Name Pointer] Table
\t[   0] PyInit__core

"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", None),
        ("KERNEL32", "libgcc_s_seh-1", "needs libgcc_s_seh-1.dll"),
        ("KERNEL32", "python311", "needs python311.dll"),
        ("KERNEL32", "api-ms-win-crt-heap-l1-1-0", None),
        ("PyBool_FromLong", "PyUnicode_FromKindAndData", "takes ['PyUnicode_FromKindAndData']"),
        ("\tDLL Name: python3.dll", "\tDLL Name: msvcrt.dll", "takes nothing of python3.dll"),
        ("PyInit__core", "hy3d_conv3d", "exports ['hy3d_conv3d']"),
        ("Thu Jan  1 00:00:00 1970", "Thu Nov 26 15:00:00 2026", "has a date"),
        ("NX_COMPAT", "", "is not NX_COMPAT"),
    ],
)
def test_a_wrong_dll_is_told_by_its_headers(old: str, new: str, fault: str | None) -> None:
    found = list(check.core_faults(HEADERS.replace(old, new) if old else HEADERS))
    assert [text.startswith(str(fault)) for text in found] == ([] if fault is None else [True])


@pytest.mark.parametrize(
    ("line", "avx", "aligned"),
    [
        ("  37: \tvmovaps 0x40(%rsp),%ymm1", True, True),
        ("  37: \tvmovdqa64 %zmm1,(%rax)", True, True),
        ("  37: \tvmovaps %ymm2,%ymm1", True, False),
        ("  37: \tvmovups 0x40(%rsp),%ymm1", True, False),
        ("  37: \tkmovw  %k1,%eax", True, False),
        ("  37: \tshlx   %rax,%rbx,%rcx", True, False),
        ("  37: \tverr   %ax", False, False),
        ("  37: \tmovaps %xmm1,(%rax)", False, False),
        ("  37: \ttzcnt  %rax,%rbx", False, False),
    ],
)
def test_instructions_of_avx_are_known_by_their_names(line: str, avx: bool, aligned: bool) -> None:
    assert bool(check.AVX.search(line + " ")) == avx
    assert bool(check.ALIGNED.search(line)) == aligned


def test_a_record_that_lies_is_told(tmp_path: Path) -> None:
    empty = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    rows = [f"a.py,{empty},0", f"b.py,{empty},0", f"d.py,{empty},1", "it.dist-info/RECORD,,", ""]
    wheel = tmp_path / "it.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("a.py", "")
        packed.writestr("c.py", "")
        packed.writestr("d.py", "d")
        packed.writestr("it.dist-info/RECORD", "\n".join(rows))
    with zipfile.ZipFile(wheel) as packed:
        assert sorted(check.record_faults(packed)) == [
            "b.py: in RECORD alone",
            "c.py: in the wheel alone",
            "d.py: RECORD has another digest",
        ]


@pytest.mark.timeout(600)  # some 100 files to compile, one after the other
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER}")
def test_the_wheel_without_a_blas_is_what_it_must_be(tmp_path: Path) -> None:
    # From a copy: objects of two builds in one folder would be taken for each other's.
    source = tmp_path / "source"
    made = shutil.ignore_patterns("_vendor", "*.so", "__pycache__")
    for name in ("csrc", "include", "tools", "hy3d_rocm"):
        shutil.copytree(ROOT / name, source / name, ignore=made)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    told = {"_PYTHON_HOST_PLATFORM": "win-amd64", "CC": COMPILER, "HY3D_BLAS": "system",
            "SOURCE_DATE_EPOCH": "1700000000"}  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", HOOK, str(tmp_path)],
        cwd=source, env={**os.environ, **told}, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    (objects,) = (source / "build").glob("temp.*")
    assert list(check.faults(wheel, objects)) == []
