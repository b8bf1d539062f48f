"""Compile Triton kernels for AMD architectures ahead of time, on a machine with any GPU or none.

    compiled = compile_variant(variant, "gfx1100")        # in this process
    for compiled in compile_all(jobs, workers=2): ...     # in child processes, as they finish

Triton's AMD backend needs no driver and no device: it goes from the kernel's source to AMDGCN
assembly and an object file by the LLVM it brings. Results are kept in Triton's own cache, which is
keyed by source, constants, options and compiler, so a second run costs milliseconds. Children are
used because LLVM ends the process on some errors ("ran out of registers"), and a configuration that
takes minutes has to be cut off: both are one failed job here.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hy3d_rocm.conv.triton.configs import wave_size
from tools.dev import isa

# The architectures that every configuration is checked for: CDNA2, CDNA3, RDNA2, RDNA3 (Navi 31 and
# 32), RDNA3.5 (Strix Halo), RDNA4 (Navi 44 and 48).
GFX_TARGETS = (
    "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201",
)  # fmt: skip
_LIMIT_SECONDS = 120.0
# Handed to a plain interpreter: no file of the host program is imported again.
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tools.dev import compile as c; c.serve()"
)


class CompileError(RuntimeError):
    """A kernel that does not compile for an architecture; the text is the compiler's."""


class Variant(Protocol):
    """A kernel with its constants: what `variants.py` enumerates.

    `module` and `function` name a @triton.jit function. `signature` maps each parameter to Triton's
    type ("*fp16", "i32", "i64", "constexpr"). `constexprs` maps parameters to plain values.
    `attributes` maps parameters to what the launcher finds out about their values: "D" divisible by
    16, "S" a tensor below 2 GiB (Triton's own letters).
    """

    @property
    def module(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def signature(self) -> Mapping[str, str]: ...
    @property
    def constexprs(self) -> Mapping[str, Any]: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...
    @property
    def num_warps(self) -> int: ...
    @property
    def num_stages(self) -> int: ...


@dataclass(frozen=True)
class Job:
    """One variant for one architecture as plain data, so that a child process can have it.

    `options` are further options of Triton's AMD backend ("waves_per_eu", "kpack", ...).
    """

    arch: str
    module: str
    function: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    attributes: Mapping[str, str]
    num_warps: int
    num_stages: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compiled:
    """The result of a job: assembly and Triton's metadata, or the error in words."""

    job: Job
    asm: str
    shared_bytes: int
    seconds: float
    error: str | None = None

    def isa(self) -> isa.Isa:
        """What the kernel asks of the hardware; CompileError where there is none."""
        if self.error is not None:
            raise CompileError(self.error)
        return isa.parse(self.asm, shared_bytes=self.shared_bytes, num_warps=self.job.num_warps)


def make_job(variant: Variant, arch: str) -> Job:
    """The variant as plain data for one architecture."""
    wave_size(arch)
    return Job(
        arch=arch, module=variant.module, function=variant.function,
        signature=dict(variant.signature), constexprs=dict(variant.constexprs),
        attributes=dict(variant.attributes), num_warps=variant.num_warps,
        num_stages=variant.num_stages, options=dict(getattr(variant, "options", {})),
    )  # fmt: skip


def compile_variant(variant: Variant, arch: str) -> Compiled:
    """The variant compiled in this process. CompileError carries the compiler's words."""
    compiled = run_job(make_job(variant, arch))
    if compiled.error is not None:
        raise CompileError(compiled.error)
    return compiled


def _texts(constexprs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """JITFunction takes constants that are texts for letters, too. It matters to the cache's key
    alone: what is compiled here is found there, when it is launched."""
    return [(name, value) for name, value in constexprs.items() if isinstance(value, str)]


def _source(job: Job) -> Any:
    """Triton's AST source of a job: the kernel, its types, its constants, what is known of them."""
    from triton.backends.amd.compiler import HIPBackend
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(job.module), job.function)
    attributes = {
        (function.arg_names.index(name),): HIPBackend.parse_attr(letters)
        for name, letters in (*job.attributes.items(), *_texts(job.constexprs))
    }
    # Triton asks for every parameter's type in the order of the function.
    signature = {name: job.signature[name] for name in function.arg_names}
    return ASTSource(function, signature, dict(job.constexprs), attributes)


def run_job(job: Job) -> Compiled:
    """The job done in this process; what the compiler raises becomes `Compiled.error`."""
    import triton
    from triton.backends.compiler import GPUTarget

    start = time.perf_counter()
    options = {"num_warps": job.num_warps, "num_stages": job.num_stages, **job.options}
    try:
        target = GPUTarget("hip", job.arch, wave_size(job.arch))
        kernel = triton.compile(_source(job), target=target, options=options)
    except Exception as error:  # noqa: BLE001 - LLVM, MLIR and the front end raise what they like
        text = f"{type(error).__name__}: {error}".strip()
        return Compiled(job, "", 0, time.perf_counter() - start, text)
    asm, shared = kernel.asm["amdgcn"], int(kernel.metadata.shared)
    return Compiled(job, asm, shared, time.perf_counter() - start)


def serve() -> None:
    """The child's side: a job a line on stdin, its result a line on stdout.

    Whatever the compiler prints goes to stderr: stdout's descriptor is moved out of its way.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        compiled = run_job(Job(**json.loads(line)))
        result = {key: value for key, value in vars(compiled).items() if key != "job"}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


class _Child:
    """A compiler process: started when first asked, and again after it died."""

    def __init__(self, limit_seconds: float, environment: Mapping[str, str]) -> None:
        self._limit = limit_seconds
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, job: Job) -> Compiled:
        start = time.perf_counter()
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        expired = threading.Event()
        timer = threading.Timer(self._limit, self._expire, (process, expired))
        timer.start()
        try:
            process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            return Compiled(job=job, **json.loads(line))
        code = process.wait()
        self.close()
        ended = f"the compiler ended its process (exit status {code})"
        why = f"cut off after {self._limit:g} s" if expired.is_set() else ended
        return Compiled(job, "", 0, time.perf_counter() - start, why)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _CHILD, json.dumps(sys.path)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=self._environment,
        )  # fmt: skip

    @staticmethod
    def _expire(process: subprocess.Popen[bytes], expired: threading.Event) -> None:
        expired.set()
        process.kill()

    def close(self) -> None:
        """Ends the child; it holds nothing that a kill could lose."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def compile_all(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    limit_seconds: float = _LIMIT_SECONDS,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Compiled]:
    """Each job's result as it comes, from `workers` child processes (all CPUs when None).

    `cache_dir` replaces Triton's cache folder; `progress` is told (done, of). Leaving the iterator
    early ends the children.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    results: queue.SimpleQueue[Compiled | BaseException] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    stop = threading.Event()
    count = min(workers or os.cpu_count() or 1, len(jobs))
    # Interpreted kernels can't be compiled, and the parent may be testing with the interpreter.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if cache_dir is not None:
        environment["TRITON_CACHE_DIR"] = str(cache_dir)
    children = [_Child(limit_seconds, environment) for _ in range(count)]
    threads = [
        threading.Thread(target=_work, args=(child, waiting, results, stop), daemon=True)
        for child in children
    ]
    for thread in threads:
        thread.start()
    try:
        for done in range(len(jobs)):
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            if progress is not None:
                progress(done + 1, len(jobs))
            yield result
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _work(
    child: _Child,
    waiting: queue.SimpleQueue[Job],
    results: queue.SimpleQueue[Compiled | BaseException],
    stop: threading.Event,
) -> None:
    try:
        while not stop.is_set():
            results.put(child.run(waiting.get_nowait()))
    except queue.Empty:
        pass
    except Exception as error:  # noqa: BLE001 - raised again by the consumer
        results.put(error)
    finally:
        child.close()
