"""A driver for Triton whose GPU is the emulator (machine.py): kernels are compiled for an AMD
architecture and their machine code is executed, launched by the code that launches on a card.

    with driver.install("gfx1100") as device:
        ...                                   # launches of any tensors in main memory
    print(device.launches)

Both ways to launch lead here: Triton's own (JITFunction.run), and that of conv/triton/jit.py, which
calls a compiled kernel with addresses. Of the latter's addresses it is noted in jit.bind, in
launch._carry_out and in run_launches of the fused backend which tensors they belong to: a launch
may touch the tensors that it was given, and nothing else.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hy3d_rocm.conv.triton.configs import wave_size
from tools.dev.gfx import host, machine

CACHE = Path(__file__).resolve().parents[3] / "build" / "triton-gfx"
# As struct's letters: what Triton's launcher declares for each type (ty_to_cpp of its driver.py).
# It cuts float32 to bf16, and rounds to the other types.
_LETTERS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H",
    "u32": "I", "u64": "Q", "fp16": "e", "bf16": "H", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
# What each of our kernels writes, by parameter; of a kernel that is not here anything.
WRITES = {
    "conv_rows": {"out", "parts"}, "conv_points": {"out"}, "add_parts": {"out"},
    "load_rows": {"y"}, "load_rows_and_weight": {"y", "packed"}, "combine_moments": {"out"},
    "draw_faces": {"keys", "tiles", "status"}, "draw_tiles": {"keys", "doubts"},
    "settle_tiles": {"keys"}, "read_keys": {"face_index", "barycentric", "depth"},
    "check_vertices": {"status"}, "check_indices": {"status"}, "interpolate_pixels": {"out"},
}  # fmt: skip
_LDS_BYTES, _MOST_THREADS, _MOST_ACROSS, _SMALL_BYTES = 65536, 1024, 2**32 - 1, 2**31 - 1


class LaunchError(RuntimeError):
    """A launch that a card would refuse, or would carry out with other values than were meant."""


class Kernel(NamedTuple):
    """All that a kernel is compiled for: parameters with their types, constants, and what is known
    of values (Triton's letters: D, divisible by 16; S, a tensor below 2 GiB)."""

    name: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    letters: tuple[tuple[str, str], ...]
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, variant: Any) -> Kernel:
        """That of a variant as tools/dev/compile.py takes it."""
        letters = {name: "".join(sorted(text)) for name, text in variant.attributes.items() if text}
        return cls(
            variant.function, tuple(variant.signature.items()), tuple(variant.constexprs.items()),
            tuple(letters.items()), variant.num_warps, variant.num_stages,
        )  # fmt: skip


@dataclass(frozen=True)
class Launched:
    """A launch that was carried out. values: of the parameters but constants, pointers as
    addresses; direct: whether addresses came, instead of tensors."""

    kernel: Kernel
    grid: tuple[int, int, int]
    values: Mapping[str, int | float]
    direct: bool
    counts: machine.Counts


class Span(NamedTuple):
    """Memory of one tensor."""

    address: int
    size: int


class Device:
    """The architecture in place, what was launched on it, and which memory the next launch is given
    (a span a pointer, or None: then by its tensors)."""

    _numbers = itertools.count()

    def __init__(self, arch: str) -> None:
        self.arch, self.wave_size = arch, wave_size(arch)
        self.number = f"{arch}, {next(self._numbers)}"  # kernels of one are no other's
        self.launches: list[Launched] = []
        self.instructions: set[str] = set()  # names, of all that was loaded
        self.given: list[Span | None] | None = None
        self.spans_of: Callable[[Sequence[int]], Sequence[Span | None]] | None = None
        self._changes = host.Changes()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Puts everything back as it was."""
        self._changes.undo()
        _forget()


def install(arch: str, cache: Path = CACHE) -> Device:
    """Makes `arch` the GPU of this process, until the Device is left or removed. cache: of what is
    compiled. RuntimeError under Triton's interpreter, which compiles nothing."""
    if os.environ.get("TRITON_INTERPRET"):
        raise RuntimeError("TRITON_INTERPRET is set: kernels would be interpreted, not compiled")
    from triton.runtime.driver import driver

    device = Device(arch)
    changes = device._changes
    changes.set(driver, "_active", Driver(device))
    host.prepare_torch(changes)
    changes.set_variable("TRITON_CACHE_DIR", str(cache))
    _watch(device, changes)
    _forget()
    return device


def _forget() -> None:
    """The package keeps ready calls with its launches, and these in caches."""
    from hy3d_rocm.conv.triton import steps, work
    from hy3d_rocm.decoding.backends.triton import launches

    made = steps.make_steps, work.work_of, launches.attention_of, launches.factors_of
    for cached in (*made, launches.pack_of):
        cached.cache_clear()


def _watch(device: Device, changes: host.Changes) -> None:
    """Notes the tensors of each launch where the package still has them."""
    from hy3d_rocm.conv.triton import jit, launch
    from hy3d_rocm.decoding.backends.triton import backend

    plain_launch, plain_bind = jit.launch, jit.bind
    plain_carry, plain_run = launch._carry_out, backend.run_launches

    def noted_launch(item: Any, operands: Any) -> Any:
        spans, before = [_span(tensor) for tensor in operands.tensors], device.spans_of
        device.spans_of = lambda _: spans
        device.given = [spans[operands.names.index(name)] for name, _ in item.operands]
        try:
            return plain_launch(item, operands)
        finally:
            device.spans_of, device.given = before, None

    def noted_bind(item: Any, compiled: Any, at: Sequence[tuple[int, int]]) -> Any:
        call = plain_bind(item, compiled, at)
        if call is None:
            return None

        def noted_call(addresses: Sequence[int], stream: int) -> None:
            if device.spans_of is None:
                raise LaunchError(f"{item.kernel} came with addresses of no known tensors")
            spans = device.spans_of(addresses)
            device.given = [spans[number] for number, _ in at]
            try:
                call(addresses, stream)
            finally:
                device.given = None

        return noted_call

    def noted_carry(made: Any, x: Any, weight: Any, bias: Any, out: Any) -> None:
        def spans_of(addresses: Sequence[int]) -> Sequence[Span | None]:
            packed, item = made.packed_elems, made.p.itemsize
            of_weight = Span(addresses[2], packed * item) if packed else _span(weight)
            of_bias = of_weight
            if bias is not None:  # it may have been made contiguous
                of_bias = Span(addresses[3], bias.numel() * bias.element_size())
            rows = Span(addresses[5], made.rows_elems * item)
            sums = Span(addresses[6], made.sums_elems * 4)
            return [_span(x), _span(weight), of_weight, of_bias, _span(out), rows, sums]

        device.spans_of = spans_of
        try:
            plain_carry(made, x, weight, bias, out)
        finally:
            device.spans_of = None

    def noted_run(part: Any, tensors: Sequence[Any], index: int | None) -> None:
        spans = [_span(tensor) for tensor in tensors]
        device.spans_of = lambda _: spans
        try:
            plain_run(part, tensors, index)
        finally:
            device.spans_of = None

    changes.set(jit, "_compiled", {})
    changes.set(jit, "_direct", jit._Direct())
    changes.set(jit, "launch", noted_launch)
    changes.set(jit, "bind", noted_bind)
    changes.set(launch, "_carry_out", noted_carry)
    changes.set(backend, "run_launches", noted_run)


def _span(tensor: Any) -> Span | None:
    return None if tensor is None else Span(*host.reach(tensor))


class Launcher:
    """One compiled kernel's launches, called as triton.backends.amd.driver.HIPLauncher is."""

    def __init__(self, src: Any, metadata: Any, device: Device) -> None:
        names, types = list(src.signature), list(src.signature.values())
        wrong = [t for t in types if t != "constexpr" and t not in _LETTERS and t[:1] != "*"]
        if wrong:
            raise LaunchError(f"{src.fn.__name__}: arguments of the type {wrong[0]} are not packed")
        if metadata.launch_cooperative_grid or metadata.profile_scratch_size:
            raise LaunchError(f"{src.fn.__name__} is launched in a way that is not emulated")
        self.device = device
        self.parameters = tuple(zip(names, types, strict=True))
        constants = {names[at]: value for (at,), value in src.constants.items()}
        letters = {names[at]: _letters_of(known) for (at,), known in src.attrs.items() if known}
        self.kernel = Kernel(
            src.fn.__name__, self.parameters, tuple(constants.items()), tuple(letters.items()),
            metadata.num_warps, metadata.num_stages,
        )  # fmt: skip
        self.letters = letters
        self.layout = kernarg_layout(types)

    def __call__(
        self, x: int, y: int, z: int, stream: int, program: Any, packed_metadata: Any,
        launch_metadata: Any, enter: Any, leave: Any, *args: Any,
    ) -> None:  # fmt: skip
        try:
            num_warps, num_ctas, shared = packed_metadata
            if enter is not None:
                enter(launch_metadata)
            if num_ctas != 1:
                raise LaunchError(f"{self.kernel.name}: {num_ctas} work-groups a cluster")
            if x * y * z:
                self._run((x, y, z), num_warps * self.device.wave_size, program, shared, args)
            if leave is not None:
                leave(launch_metadata)
        except RuntimeError:
            raise
        except Exception as error:
            # jit.py takes the others for another Triton's way to launch.
            raise LaunchError(f"{self.kernel.name}: {type(error).__name__}: {error}") from error

    def _run(
        self, grid: tuple[int, int, int], threads: int, program: Any, shared: int,
        args: Sequence[Any],
    ) -> None:  # fmt: skip
        name, device = self.kernel.name, self.device
        if len(args) != len(self.parameters):
            raise LaunchError(f"{name}: {len(args)} arguments for {len(self.parameters)}")
        if min(grid) < 0 or grid[0] * threads > _MOST_ACROSS or threads > _MOST_THREADS:
            raise LaunchError(f"{name}: {threads} threads in a grid of {grid}")
        if shared > min(_LDS_BYTES, program.lds_bytes):
            raise LaunchError(f"{name}: {shared} bytes of LDS, {program.lds_bytes} at load")
        given, device.given = device.given, None
        values, pointers, direct = {}, [], False
        for (parameter, kind), value in zip(self.parameters, args, strict=True):
            if kind == "constexpr":
                self._check_constant(parameter, value)
                continue
            values[parameter] = value
            if kind[0] == "*":
                direct = direct or isinstance(value, int)
                values[parameter] = _address(value)
                span = _span(value) if hasattr(value, "data_ptr") else None
                pointers.append((parameter, span))
        if given is not None:
            pointers = [(n, span) for (n, _), span in zip(pointers, given, strict=True)]
        self._check_letters(values, dict(pointers))
        check_layout(name, self.layout, program)
        kinds = [kind for _, kind in self.parameters if kind != "constexpr"]
        block = pack(kinds, values.values()).ljust(program.kernarg_bytes, b"\0")
        counts = program.run(grid, threads, block, self._memory(pointers, values))
        device.launches.append(Launched(self.kernel, grid, values, direct, counts))

    def _check_constant(self, name: str, value: Any) -> None:
        """Constants come with each launch; they must be those of the compiled kernel."""
        compiled = dict(self.kernel.constants)[name]
        if value != compiled or isinstance(value, str) != isinstance(compiled, str):
            raise LaunchError(
                f"{self.kernel.name}: {name} is {value!r}, but was compiled as {compiled!r}"
            )

    def _check_letters(self, values: Mapping[str, Any], spans: Mapping[str, Span | None]) -> None:
        """What the compiler was told must hold: a card would not notice, or read elsewhere."""
        for name, text in self.letters.items():
            if "D" in text and name in values and values[name] % 16:
                raise LaunchError(
                    f"{self.kernel.name}: {name} is {values[name]:#x}, and was compiled for"
                    " multiples of 16"
                )
            span = spans.get(name)
            if "S" in text and span is not None and span.size > _SMALL_BYTES:
                raise LaunchError(
                    f"{self.kernel.name}: {name} has {span.size} bytes, and was compiled for less"
                    " than 2 GiB"
                )

    def _memory(
        self, pointers: Iterable[tuple[str, Span | None]], values: Mapping[str, Any]
    ) -> machine.Memory:
        written = WRITES.get(self.kernel.name)
        merged: dict[Span, tuple[list[str], bool]] = {}
        for name, span in pointers:
            if span is None and values[name]:
                raise LaunchError(f"{self.kernel.name}: {name} is an address of no known tensor")
            if span is None or not span.size:
                continue
            names, writable = merged.get(span, ([], False))
            writable = writable or written is None or name in written
            merged[span] = ([*names, name], writable)
        memory = machine.Memory()
        for span, (names, writable) in merged.items():
            memory.add(span.address, span.size, ", ".join(names), writable)
        return memory


def _letters_of(known: Any) -> str:
    """Triton's letters, sorted, of what HIPBackend.parse_attr made of them."""
    found = {"tt.divisibility": "D", "tt.pointer_range": "S"}
    return "".join(sorted(found[name] for name, _ in known))


def _address(value: Any) -> int:
    """A pointer argument as Triton's launcher takes it: an address, None, or a tensor."""
    if value is None:
        return 0
    return value if isinstance(value, int) else int(value.data_ptr())


def kernarg_layout(types: Iterable[str]) -> list[tuple[int, int, str]]:
    """Offset, size and AMD's kind of each argument: a C struct of them, constants left out, and two
    pointers for Triton's own scratch memory at the end."""
    found, at = [], 0
    for kind in (*(kind for kind in types if kind != "constexpr"), "*i8", "*i8"):
        size = 8 if kind[0] == "*" else struct.calcsize(_LETTERS[kind])
        at = -(-at // size) * size
        found.append((at, size, "global_buffer" if kind[0] == "*" else "by_value"))
        at += size
    return found


def pack(types: Sequence[str], values: Iterable[Any]) -> bytes:
    """The block of arguments. LaunchError for a number that its type does not hold."""
    block, layout = bytearray(), kernarg_layout(types)
    every = zip((*types, "*i8", "*i8"), (*values, 0, 0), layout, strict=True)
    for kind, value, (offset, _, _) in every:
        block += bytes(offset - len(block))
        try:
            if kind == "bf16":
                (value,) = struct.unpack("<I", struct.pack("<f", value))
                value >>= 16
            elif kind == "i1":
                value = bool(value)
            block += struct.pack("<Q" if kind[0] == "*" else "<" + _LETTERS[kind], value)
        except (struct.error, OverflowError) as error:
            raise LaunchError(f"{value!r} as an argument of the type {kind}: {error}") from None
    return bytes(block)


def check_layout(name: str, layout: Sequence[tuple[int, int, str]], program: Any) -> None:
    """LaunchError unless the code object describes its arguments as they are packed."""
    described = [
        (arg.offset, arg.size, arg.kind)
        for arg in program.arguments
        if not arg.kind.startswith("hidden_")
    ]
    end = layout[-1][0] + layout[-1][1]
    if described != list(layout) or program.kernarg_bytes < end:
        both = itertools.zip_longest(layout, described)
        packed, wanted = next(((a, b) for a, b in both if a != b), (end, program.kernarg_bytes))
        raise LaunchError(
            f"{name}: arguments are packed as {packed}, and the code object has {wanted}"
        )


class Utilities:
    """What Triton asks HIPUtils for."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def load_binary(self, name: str, code: bytes, shared: int, _: Any) -> tuple[Any, ...]:
        """(module, function, registers, spilled ones, most threads)."""
        program = machine.Program.load(code, self.device.arch)
        if program.name != name or program.wave_size != self.device.wave_size:
            raise LaunchError(
                f"{name} in waves of {self.device.wave_size} was compiled, {program.name} in waves"
                f" of {program.wave_size} loaded"
            )
        for one in program.instructions:
            self.device.instructions |= {one.name, one.second} - {""}
        # Triton's LDS is sized by the launch; the code object says 0.
        program.lds_bytes = max(program.lds_bytes, shared)
        return program, program, 0, 0, _MOST_THREADS

    def get_device_properties(self, _: Any) -> dict[str, Any]:
        device = self.device
        return {
            "max_shared_mem": _LDS_BYTES, "arch": device.arch, "warpSize": device.wave_size,
            "multiprocessor_count": 1,
        }  # fmt: skip


class Driver:
    """What Triton asks its active driver for, as HIPDriver answers."""

    def __init__(self, device: Device) -> None:
        from triton.backends.compiler import GPUTarget

        self.device, self.utils = device, Utilities(device)
        self._target = GPUTarget("hip", device.arch, device.wave_size)

    def launcher_cls(self, src: Any, metadata: Any) -> Launcher:
        return Launcher(src, metadata, self.device)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> str:
        return self.device.number

    def get_current_stream(self, _: Any) -> int:
        return 0
