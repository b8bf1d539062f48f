"""Launching a code object on the emulated machine."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from tools.dev.gfx import alu, code_object, lower
from tools.dev.gfx.decode import INSTRUCTION_SETS, Instruction, UnknownInstructionError, decode
from tools.dev.gfx.opcodes import GENERATIONS

_FAULTS = ("", "bounds", "hazard", "unsupported", "end")
_NONE = lower.NONE
MOST_STEPS = 2_000_000_000


class Fault(RuntimeError):  # noqa: N818 - what hardware calls it
    """A launch that real hardware might do anything with, or that is not modelled.

    kind: "bounds", "hazard" (a load that was not waited for, a missing barrier, a matrix operand
    that is not as it must be), "unsupported", "end" (no end was reached).
    """

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Counts:
    """What a launch did. instructions: executed by all waves (a wave's lanes count once)."""

    instructions: int


class _Range(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("last", ctypes.c_uint64),
                ("writable", ctypes.c_uint32), ("padding", ctypes.c_uint32))  # fmt: skip


class _Launch(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_void_p), ("count", ctypes.c_uint64), ("entry", ctypes.c_uint64),
        ("kernarg", ctypes.c_uint64), ("ranges", ctypes.c_void_p), ("range_count", ctypes.c_uint64),
        ("most_steps", ctypes.c_uint64), ("generation", ctypes.c_uint32),
        ("wave_size", ctypes.c_uint32), ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32), ("lds_bytes", ctypes.c_uint32),
        ("kernarg_register", ctypes.c_uint32), ("preload_register", ctypes.c_uint32),
        ("preload_count", ctypes.c_uint32), ("preload_offset", ctypes.c_uint32),
        ("group_register", ctypes.c_uint32 * 3), ("ieee", ctypes.c_uint32),
        ("seed", ctypes.c_uint32),
    )  # fmt: skip


class _Report(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_uint64), ("fault", ctypes.c_uint32),
        ("step", ctypes.c_uint32), ("group", ctypes.c_uint32 * 3), ("wave", ctypes.c_uint32),
        ("text", ctypes.c_char * 232),
    )  # fmt: skip


class Memory:
    """What a launch may touch: stretches of this process's memory."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, bool, str]] = []

    def add(self, address: int, size: int, name: str = "", writable: bool = True) -> None:
        """`size` bytes from `address` on. What several stretches share may be written if one of
        them may."""
        if size > 0:
            self.ranges.append((address, address + size, writable, name))


class Program:
    """A kernel, decoded and ready to run.

    Attributes: name; wave_size; kernarg_bytes; arguments; lds_bytes, of static LDS: whoever
    launches with dynamic LDS sets it to the sum.
    """

    def __init__(self, found: code_object.CodeObject, arch: str) -> None:
        self.arch = arch
        self.object = found
        self.name = found.name
        self.wave_size = found.wave_size
        self.kernarg_bytes = found.kernarg_bytes
        self.lds_bytes = found.lds_bytes
        self.arguments = found.arguments
        if found.round_mode != (0, 0) or found.denormal_mode != (3, 3):
            raise lower.UnsupportedError(
                f"{arch}: {found.name} rounds as {found.round_mode} and treats denormals as"
                f" {found.denormal_mode}: only rounding to nearest with denormals is modelled"
            )
        if found.scratch_bytes:
            raise lower.UnsupportedError(f"{arch}: {found.name} uses scratch memory")
        try:
            self.instructions = list(decode(found.code, arch))
        except UnknownInstructionError as error:
            raise lower.UnsupportedError(
                f"{arch}: {found.name}: unknown instruction, {error}"
            ) from error
        self._runs = 0
        self._steps, self._origins, self._first = lower.lower(self.instructions, arch)

    @classmethod
    def load(cls, data: bytes, arch: str) -> Program:
        """The only kernel of a code object (an ELF, as Triton's "hsaco")."""
        return cls(code_object.read(data, GENERATIONS[INSTRUCTION_SETS[arch]]), arch)

    def run(
        self, grid: tuple[int, int, int], threads: int, kernarg: bytes, memory: Memory, *,
        most_steps: int = MOST_STEPS,
    ) -> Counts:  # fmt: skip
        """Runs `grid` workgroups of `threads` work-items. What nobody set holds noise, in each
        launch other noise.

        Fault if the launch touches memory that it was not given, or breaks a rule of the hardware.
        """
        if len(kernarg) < self.kernarg_bytes:
            raise ValueError(f"{len(kernarg)} bytes of arguments of {self.kernarg_bytes}")
        self._runs += 1
        found, generation = self.object, GENERATIONS[INSTRUCTION_SETS[self.arch]]
        arguments = ctypes.create_string_buffer(kernarg, len(kernarg))
        at = ctypes.addressof(arguments)
        ranges = [(at, at + len(kernarg), False, "arguments"), *memory.ranges]
        given = (_Range * len(ranges))(*(_Range(a, b, w, 0) for a, b, w, _ in ranges))
        launch = _Launch(
            steps=ctypes.addressof(self._steps), count=len(self._steps),
            entry=self._first[found.entry], kernarg=at, ranges=ctypes.addressof(given),
            range_count=len(ranges), most_steps=most_steps, generation=generation,
            wave_size=self.wave_size, threads=threads, lds_bytes=self.lds_bytes,
            kernarg_register=_NONE if found.kernarg_register is None else found.kernarg_register,
            preload_register=found.preload[0], preload_count=found.preload[1],
            preload_offset=found.preload[2], ieee=found.ieee, seed=self._runs,
        )  # fmt: skip
        launch.grid[:] = grid
        launch.group_register[:] = [_NONE if g is None else g for g in found.group_registers]
        report = _Report()
        alu.wave().gfx_run(ctypes.byref(launch), ctypes.byref(report))
        if report.fault:
            raise Fault(self._told(report, ranges), _FAULTS[report.fault])
        return Counts(report.steps)

    def _told(self, report: Any, ranges: list[tuple[int, int, bool, str]]) -> str:
        where: Instruction | str = "no instruction"
        if report.step < len(self._origins):
            where = self._origins[report.step]
        given = ", ".join(f"{name} {a:#x}..{b:#x}" for a, b, _, name in ranges)
        beside = f" ({given})" if _FAULTS[report.fault] == "bounds" else ""
        group = ", ".join(map(str, report.group))
        return (
            f"{self.arch} {self.name}: {report.text.decode()} at {where}, wave {report.wave} of"
            f" workgroup ({group}){beside}"
        )
