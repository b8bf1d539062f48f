"""C functions of arithmetic instructions, compiled when they are first wanted.

Those of opcodes.txt, which our kernels use, are compiled together; any other alone. Libraries are
kept in build/gfx, by what they were made of.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.dev.gfx import opcodes, translate
from tools.dev.gfx.decode import INSTRUCTION_SETS

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "build" / "gfx"
_FLAGS = ("-O3", "-std=c11", "-D_GNU_SOURCE", "-fwrapv", "-ffp-contract=off", "-march=native",
          "-fPIC", "-shared", "-w")  # fmt: skip
_BY_HAND = ("v_perm_b32", "v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16", "v_pk_mov_b32")
# Instructions whose lanes depend on one another, or that concern no lane's own value, and those of
# control that are encoded as arithmetic ones: lower.py and wave.c have them.
_ACROSS = ("v_readlane", "v_readfirstlane", "v_writelane", "v_permlane", "v_mfma", "v_wmma",
           "v_accvgpr_")  # fmt: skip
_CONTROL = ("s_wait", "s_barrier")


def is_across(name: str) -> bool:
    return name.startswith(_ACROSS)


def generated(tables: str, names: Iterable[str]) -> dict[str, str]:
    """Those of some instructions whose functions are generated, and the pseudo-code of each."""
    texts = opcodes.pseudo_code(tables)
    functions = {opcodes.function_of(name) for name in names}
    apart = (*_ACROSS, *_CONTROL, *_BY_HAND)
    return {name: texts[name] for name in functions if name in texts and not name.startswith(apart)}


def compiled(name: str, source: str) -> ctypes.CDLL:
    """A library of a C text that may include alu.h and wave.h; RuntimeError with the compiler's
    words if it has errors."""
    headers = "".join((HERE / header).read_text() for header in ("alu.h", "wave.h"))
    compiler = os.environ.get("CC", "cc")
    made_of = "\0".join((source, headers, compiler, *_FLAGS, _processor()))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:24]
    path = BUILD / f"{name}-{digest}.so"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            written, made = Path(folder) / "source.c", Path(folder) / "made.so"
            written.write_text(source)
            command = [compiler, *_FLAGS, f"-I{HERE}", str(written), "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
            made.replace(path)
    return ctypes.CDLL(str(path))


@functools.cache
def _processor() -> str:
    """What -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    return next((line for line in text.splitlines() if line.startswith("flags")), "")


@functools.cache
def wave() -> ctypes.CDLL:
    """wave.c."""
    return compiled("wave", (HERE / "wave.c").read_text())


_known: dict[str, int] = {}


def addresses(texts: Mapping[str, str]) -> dict[str, int]:
    """Of instructions and their pseudo-code the addresses of their functions."""
    found = {}
    for name, text in texts.items():
        symbol = translate.symbol(text)
        if symbol not in _known:
            sources = _listed()
            if symbol not in sources:
                sources = {symbol: translate.translated(name, text)}
            library = compiled("alu", '#include "alu.h"\n' + "\n".join(sources.values()))
            _known.update({made: _address(library, made) for made in sources})
        found[name] = _known[symbol]
    return found


@functools.cache
def _listed() -> dict[str, str]:
    """The functions of the instructions of opcodes.txt, by their symbol."""
    found: dict[str, str] = {}
    for arch, names in opcodes.listed().items():
        for name, text in generated(INSTRUCTION_SETS[arch], names).items():
            symbol = translate.symbol(text)
            found.setdefault(symbol, translate.translated(name, text))
    return dict(sorted(found.items()))


def by_hand(name: str) -> int:
    """The address of a function that wave.c has; 0 if it has none of this instruction."""
    return _address(wave(), f"gfx_{name.removeprefix('v_')}") if name in _BY_HAND else 0


def _address(library: ctypes.CDLL, symbol: str) -> int:
    return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
