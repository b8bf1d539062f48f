"""`hy3d-rocm plan`: how a decode would go, without a GPU and without weights; with --program its
steps as a table, too: what each reads, makes and frees, and what lies in memory.

Bytes of steps are counted here anew, by the rules of include/hy3d/schedule.h; the largest of them
is the peak that the candidate states.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from hy3d_rocm import meter
from hy3d_rocm.decoding import graph
from hy3d_rocm.decoding.backends.triton.backend import refusal
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.memory.budget import NO_LIMIT, Budget, make_budget, parse_budget
from hy3d_rocm.decoding.planning import jobs
from hy3d_rocm.decoding.planning.compiled import Compiled
from hy3d_rocm.decoding.precision import PRECISIONS
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.decoding.run import OPS, OVERWRITE, ProgramStep
from hy3d_rocm.diagnose.env.shown import printable
from hy3d_rocm.tools import loading
from hy3d_rocm.tools.planning import Explained, explain
from hy3d_rocm.units import aligned, brief, size_text, whole_number


def run_plan_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    try:
        found, rules = _explained(arguments)
        if arguments.json:
            sys.stdout.write(json.dumps(_described(found, rules, arguments.program)) + "\n")
        else:
            for line in _lines(found, rules, arguments.program):
                sys.stdout.write(f"{printable(line)}\n")
    except (OSError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        sys.stderr.write(f"hy3d-rocm plan: {error}\n")
        return 1
    if found.plan is None and not arguments.json:
        sys.stderr.write(f"hy3d-rocm plan: {found.why}\n")
    return 0 if found.plan is not None else 1


def _explained(arguments: argparse.Namespace) -> tuple[Explained, str]:
    """The plan, and in words whose rules the layers' memory goes by."""
    on_cpu = arguments.device == "cpu"
    dtype = PRECISIONS[arguments.dtype or "auto"] or (torch.float32 if on_cpu else torch.bfloat16)
    room = _budget(arguments, on_cpu)
    options = DecodeOptions(chunk_size=arguments.chunk_size, cpu_offload=not arguments.no_offload)
    backend, rules = _rules(arguments.device, dtype)
    device = torch.device("cpu" if on_cpu else "cuda")
    with torch.no_grad():
        vae = torch.nn.Module.to(loading.bare_vae(arguments.vae), dtype)
        family = family_for(vae)
        shape = _shape(arguments, family)
        job = jobs.Job(family, shape, device, dtype, dtype, backend)
        return explain(job, room, arguments.strategy, options), rules


def _rules(device: str, dtype: torch.dtype) -> tuple[Any, str]:
    """What computes the layers, and in words whose rules that are. ValueError (a sentence) for a
    device that is none."""
    if device == "cpu":
        made = jobs.best_backend(torch.device("cpu"), dtype)
        whose = "the C convolution's" if made.computes_natively else "torch's operators'"
        return made, f"{whose} rules"
    if device == "gpu":
        return jobs.host_backend, (
            "torch's operators' rules on a GPU (--device gfx1100, or another architecture, asks "
            "the fused kernels)"
        )
    if not re.fullmatch(r"gfx[0-9a-f]{3,4}|sm_[0-9]{2,3}", device):
        raise ValueError(
            f"--device {brief(device)}: give cpu, gpu, or the name of an architecture such as "
            "gfx1100 or sm_90"
        )
    reason = refusal(torch.device("cuda"), dtype, device)
    if reason is None:
        return jobs.MakeBackend(device), f"the fused kernels' rules on {device}"
    return jobs.host_backend, f"torch's operators' rules on a GPU ({reason})"


def _budget(arguments: argparse.Namespace, on_cpu: bool) -> Budget:
    """Of this machine's host on the CPU; of a GPU that is not here what is given."""
    request, host = parse_budget(arguments.budget), parse_budget(arguments.host_budget)
    if on_cpu:
        if arguments.host_budget is not None:
            raise ValueError("--host-budget: on the CPU all memory is one budget: give --budget")
        return make_budget(arguments.budget, meter.machine_of(torch.device("cpu")))
    for name, given in (("--budget", request), ("--host-budget", host)):
        if isinstance(given, float):
            raise ValueError(
                f"{name}: a share needs a GPU whose memory can be looked at: give a size such as "
                "6GB"
            )
    said = [
        f"{size_text(given, 2)} on {where} as given" if isinstance(given, int)
        else f"{where} without a limit"  # nobody can look at what is free there
        for where, given in (("the device", request), ("the host", host))
    ]  # fmt: skip
    sizes = [given if isinstance(given, int) else NO_LIMIT for given in (request, host)]
    return Budget(sizes[0], sizes[1], False, "; ".join(said))


def _shape(arguments: argparse.Namespace, family: Any) -> tuple[int, ...]:
    """(B, C, T, H, W). ValueError (a sentence) for a latent that this VAE does not take."""
    channels = int(family.latent_channels)
    text = arguments.latent
    if text is None:
        width, height = arguments.size
        return loading.latent_shape(family, arguments.frames, height, width)
    sizes = tuple(map(whole_number, re.split("[xX]", text)))
    if not 3 <= len(sizes) <= 5 or not all(sizes):
        raise ValueError(
            f"--latent {brief(text)}: give three whole numbers of 1 or more, frames x rows x "
            "columns of the latent, such as 9x40x64 (with channels 16x9x40x64)"
        )
    if len(sizes) > 3 and sizes[-4] != channels:
        raise ValueError(
            f"--latent {brief(text)} has {sizes[-4]} channels, but this {family.name} VAE decodes "
            f"{channels}: give {'x'.join(map(str, sizes[-3:]))}"
        )
    if family.is_image and sizes[-3] != 1:
        raise ValueError(
            f"--latent {brief(text)}: {family.name} makes single images: give 1x"
            f"{'x'.join(map(str, sizes[-2:]))}"
        )
    batch = sizes[0] if len(sizes) == 5 else 1
    return batch, channels, *sizes[-3:]


def _lines(found: Explained, rules: str, program: bool) -> list[str]:
    lines = found.lines()
    lines.insert(2, f"what layers take: by {rules}")
    if program and found.plan is not None and found.plan.compiled is not None:
        lines += ["", *table(found.plan.compiled)]
    return lines


def _described(found: Explained, rules: str, program: bool) -> dict[str, Any]:
    told = found.describe() | {"rules": rules}
    if program and found.plan is not None and found.plan.compiled is not None:
        told["program"] = list(sections_of(found.plan.compiled))
    return told


# hy3d_section_kind
_PREFIX, _TILE = 1, 3
_KINDS = ("all of it", "up to the cut", "statistics from a part", "a tile")
_NODES = {
    graph.INPUT: "input", graph.CONV: "conv", graph.ATTENTION: "attention", graph.MAP: "map",
    graph.ADD: "add", graph.OPAQUE: "own code", graph.OUTPUT: "output",
}  # fmt: skip
_HEADS = (
    "step", "operation", "node", "what", "frames", "rows", "reads", "makes", "frees", "workspace",
    "on the device",
)  # fmt: skip


def sections_of(compiled: Compiled) -> Iterator[dict[str, Any]]:
    """The sections of the program in order, each JSON-able, with its `steps`; of tiles of one size
    the first has them, and those after it say whose they are (`as_section`).

    A step's device_bytes and host_bytes are what lies there after it (on the CPU, all in
    device_bytes), peak_bytes what lies on the device while it runs.
    """
    program, walk = compiled.program, _Walk(compiled)
    known: dict[Any, int] = {}
    for number, section in enumerate(program.sections):
        steps, slices = program.steps(number), program.slices(number)
        told = {
            "section": number, "kind": _KINDS[section["kind"]], "size": list(section["size"]),
            "tile": section["tile"] if section["kind"] == _TILE else None,
            "pass": section["pass"], "rows": list(section["rows"]),
            "columns": list(section["columns"]), "as_section": None, "steps": [],
        }  # fmt: skip
        walk.begin(section, slices)
        kept = program.kept(number)
        walked = [walk.step(at, ProgramStep._make(step), kept[at]) for at, step in enumerate(steps)]
        told["peak_bytes"] = max(step["peak_bytes"] for step in walked)
        key = section["kind"], tuple(section["size"]), steps
        if key in known:
            yield told | {"as_section": known[key]}
        else:
            known[key] = number
            yield told | {"steps": walked}


class _Walk:
    """Follows what lies where."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled, self.program = compiled, compiled.program
        candidate = self.program.candidate
        # All memory is one where the host computes.
        self._is_one = candidate["on_host"] or compiled.job.device.type == "cpu"
        self._kept: dict[int, int] = {}  # by the steps that left it
        self._own = candidate["device_bytes"] or candidate["host_bytes"]
        self._host = compiled.job.host_bytes
        self._prefix = 0
        self._is_prefix = False
        self._first = 0
        # node, is_keys, frames, rows, bytes, host_at of each
        self._slices: tuple[tuple[int, int, Any, Any, int, int], ...] = ()
        self._there: set[int] = set()

    def begin(
        self, section: dict[str, Any], slices: tuple[tuple[int, int, Any, Any, int, int], ...]
    ) -> None:
        """A section starts, with nothing."""
        self._slices, self._there = slices, set()
        self._is_prefix = section["kind"] == _PREFIX
        self._first = section["first_step"]

    def step(self, at: int, step: ProgramStep, kept: int) -> dict[str, Any]:
        """The step in words, and what lies in memory. kept: what it leaves until the end."""
        op = OPS[step.op]
        told = {
            "step": at, "operation": op, "node": step.node, "what": self._what(step.node),
            "frames": list(step.frames), "rows": list(step.rows),
            "reads": [*step.sources, *step.others], "makes": step.slice if makes(op) else None,
            "of": None if makes(op) or step.slice < 0 else step.slice,
            "frees": list(step.frees), "workspace_bytes": step.workspace_bytes, "macs": step.macs,
        }  # fmt: skip
        if op == "opaque" and step.slice < 0:  # the VAE's own code: nothing is known inside
            return told | {"peak_bytes": self._own, "device_bytes": 0, "host_bytes": self._host}
        self._kept[self._first + at] = kept
        over = None
        if step.flags & OVERWRITE:
            over = (step.sources if op == "add" else step.others)[0]
            self._there.discard(over)
        if step.slice >= 0 and (makes(op) or op == "load"):
            self._there.add(step.slice)
        elif op == "emit" and self._is_prefix:
            self._prefix = self.program.prefix_bytes
        peak = self._device() + step.workspace_bytes
        if op == "drop":
            self._there.discard(step.slice)
        self._there.difference_update(step.frees)
        return told | {
            "peak_bytes": peak, "device_bytes": self._device(),
            "host_bytes": 0 if self._is_one else self._beside(),
        }  # fmt: skip

    def _device(self) -> int:
        there = sum(self._slices[n][4] for n in self._there) + sum(self._kept.values())
        return there + (self._beside() if self._is_one else 0)

    def _beside(self) -> int:
        return self._host + self._prefix + self.program.copies_bytes

    def _what(self, number: int) -> str:
        """The node in a few words: "conv 3x3x3 512>256", "attention 512"."""
        nodes = self.compiled.graph.nodes
        node = nodes[number]
        words = [_NODES[node.op]]
        if node.op == graph.CONV:
            words.append("x".join(map(str, node.kernel)))
        before = nodes[node.source].channels if node.source >= 0 else node.channels
        words.append(str(node.channels) if before == node.channels else f"{before}>{node.channels}")
        return " ".join(words)


def makes(op: str) -> bool:
    """Whether a step of that operation makes its slice."""
    return op not in ("emit", "store", "drop", "load", "moments", "reduce", "send")


def table(compiled: Compiled) -> Iterator[str]:
    """The program's lines: of each section a heading and a row for each step."""
    where = "in memory" if _Walk(compiled)._is_one else _HEADS[-1]
    for section in sections_of(compiled):
        size = "x".join(map(str, section["size"]))
        line = f"section {section['section']}: {section['kind']}"
        if section["tile"] is not None:
            number = f", pass {section['pass']}" if section["pass"] else ""
            line += f" ({section['tile']}{number})"
        line += f", of {size}"
        if section["as_section"] is not None:
            yield f"{line}: the steps of section {section['as_section']}"
            continue
        yield line
        rows = [(*_HEADS[:-1], where), *map(_row, section["steps"])]
        yield from aligned(rows, words=(1, *range(3, 9), *range(11, len(_HEADS))))
    candidate = compiled.program.candidate
    moved = candidate["stored_bytes"], candidate["loaded_bytes"]
    yield (
        f"{candidate['steps']} steps, {candidate['macs'] / 1e9:.1f} G multiply-accumulates, "
        f"{size_text(moved[0], 2)} to the host, {size_text(moved[1], 2)} back"
    )


def _row(step: dict[str, Any]) -> tuple[str, ...]:
    made = step["makes"] if step["makes"] is not None else step["of"]
    return (
        str(step["step"]), step["operation"], str(step["node"]), step["what"],
        _range(step["frames"]), _range(step["rows"]), _numbers(step["reads"]),
        "" if made is None or made < 0 else str(made) if step["of"] is None else f"({made})",
        _numbers(step["frees"]), size_text(step["workspace_bytes"]),
        size_text(step["device_bytes"]),
    )  # fmt: skip


def _range(pair: list[int]) -> str:
    return f"{pair[0]}..{pair[1]}"


def _numbers(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
