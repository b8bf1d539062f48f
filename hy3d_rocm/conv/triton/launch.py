"""The Triton tier's entry points: whether it can, what it needs, the call (tiers/triton.py)."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from hy3d_rocm.conv.tiers.base import empty_result
from hy3d_rocm.conv.tiers.vendor import allows_tf32
from hy3d_rocm.conv.triton import ahead, configs, jit, plan
from hy3d_rocm.conv.triton.configs import Config
from hy3d_rocm.conv.triton.plan import Layout
from hy3d_rocm.conv.triton.steps import Steps, make_steps
from hy3d_rocm.conv.triton.work import Target
from hy3d_rocm.conv.verdict_store.records import Key, Machine, make_key, this_machine
from hy3d_rocm.conv.verdict_store.store import Store, store

if TYPE_CHECKING:
    from hy3d_rocm.conv.call import ConvCall, ConvSpec

# "unpacked" is the weight as the call has it, "weight" that which the kernels read: the same, or
# packed in the workspace, where "rows" and "sums" are too.
_OPERANDS = ("x0", "unpacked", "weight", "bias", "out", "rows", "sums")
_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}


def refusal(spec: ConvSpec) -> str | None:
    """Why this tier can't take a call like this, in a few words, or None."""
    if spec.device.type != "cuda":
        return f"the Triton kernels run on GPUs, and the call is on {spec.device.type}"
    name = _NAMES.get(spec.dtype)
    if name is None:
        return f"the kernel has no {spec.dtype}"
    arch = architecture(spec.device)
    if not configs.is_known(arch):
        return (
            f"the kernels were never checked for {arch} (docs/triton.md, 'A card that is not"
            " listed', says how to)"
        )
    if not configs.offered(arch, name):
        return f"no configuration for {name} on {arch} runs without spilling registers"
    return kernel_problem() or (plan.refusal(plan.problem(spec)) if min(spec.out_size) else None)


def workspace_bytes(spec: ConvSpec) -> int:
    """Bytes beside input, weight and output: rows, packed weight, partial sums. An upper bound."""
    return plan.most_bytes(plan.problem(spec)) if min(spec.out_size) else 0


@functools.cache
def triton_problem() -> str | None:
    """Why triton can't be imported, in a few words, or None. Nothing is imported."""
    stub = "a module called triton is loaded that is none (a package put a stub in its place)"
    try:
        found = importlib.util.find_spec("triton")
    except (ValueError, ImportError, AttributeError):  # sys.modules["triton"].__spec__ is None
        return stub
    if found is None:
        return "this Python has no triton (PyTorch for ROCm brings it on Linux)"
    loaded = sys.modules.get("triton")
    return stub if loaded is not None and not hasattr(loaded, "__path__") else None


@functools.cache
def kernel_problem() -> str | None:
    """Why this Triton can't have our kernels, in a few words, or None. Imports it (some 0.4 s)."""
    problem = triton_problem()
    if problem is not None:
        return problem
    try:
        kernel = importlib.import_module(plan.KERNELS)
        function = kernel.conv_rows.fn
    except Exception as error:  # noqa: BLE001 - broken and half-installed Tritons raise anything
        return f"Triton can't be imported ({type(error).__name__}: {error})"
    # What takes every attribute, as a mock does, is no compiler.
    return None if inspect.isfunction(function) else "the triton that is loaded is not Triton"


def architecture(device: torch.device) -> str:
    """ "gfx1100" or "sm_90"."""
    return ahead.architecture(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _units(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def target_of(device: torch.device) -> Target:
    """The Target of a GPU, with PyTorch's switch for TF32 as it is now."""
    return Target(architecture(device), _units(device), allows_tf32())


def run(call: ConvCall, config: Config | None = None) -> torch.Tensor:
    """The convolution, in the layout of the call. config: instead of the tuned or guessed one."""
    spec = call.spec
    if not min(spec.out_size):
        return empty_result(spec)  # an empty batch
    if config is None:
        config = config_for(spec)
    x, weight, bias = call.values()
    out = empty_result(spec)
    made = _steps_of(spec, config, x, weight, out)
    if spec.device.index == torch.cuda.current_device():
        _carry_out(made, x, weight, bias, out)
    else:
        with torch.cuda.device(spec.device):
            _carry_out(made, x, weight, bias, out)
    return out if spec.batched else out.squeeze(0)


def _steps_of(
    spec: ConvSpec, config: Config | None, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
) -> Steps:
    """The steps of a call, noted at its spec by what else they depend on."""
    tf32 = spec.dtype is torch.float32 and allows_tf32()
    # A Config's own hash is slow; the note keeps the object, so that no other has its id.
    noted = (
        x.stride(), weight.stride(), not x.data_ptr() & 15, not weight.data_ptr() & 15, tf32,
        id(config),
    )  # fmt: skip
    found: tuple[Steps, Config | None] | None = spec.notes.get(noted)
    if found is None:
        p = plan.problem(spec)
        layout, target = Layout.of(x, out, weight), target_of(spec.device)._replace(tile=config)
        made = make_steps(p, layout, _NAMES[spec.dtype], spec.has_bias, target)
        found = spec.notes[noted] = (made, config)
    return found[0]


def _carry_out(
    made: Steps, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """Allocates the workspace and launches. The host's time for a call is mostly spent here, so
    each tensor is asked for its address, and for little else."""
    rows_at, sums_at, size = made.offsets
    workspace, start = None, 0
    if size:
        workspace = torch.empty(size, dtype=torch.uint8, device=x.device)
        start = workspace.data_ptr()
        if made.is_uneven:
            _pack(made, weight, _part(workspace, 0, made.packed_elems, x.dtype))
    unpacked_at = weight.data_ptr()
    packed_at = start if made.packed_elems else unpacked_at
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    addresses = (
        x.data_ptr(), unpacked_at, packed_at, packed_at if bias is None else bias.data_ptr(),
        out.data_ptr(), start + rows_at, start + sums_at,
    )  # fmt: skip

    device = x.device.index
    form = device, tuple([address & 15 for address in addresses])
    ready = made.calls.get(form)
    done = 0 if ready is None else jit.launch_ready(ready, addresses, device)
    if done == len(made.launches):
        return

    packed, rows, sums = (
        None if workspace is None else _part(workspace, at, elements, dtype)
        for at, elements, dtype in (
            (0, made.packed_elems, x.dtype), (rows_at, made.rows_elems, x.dtype),
            (sums_at, made.sums_elems, torch.float32),
        )
    )  # fmt: skip
    tensors = (x, weight, packed if made.packed_elems else weight, bias, out, rows, sums)
    small = [t is None or jit.is_small(_reach_bytes(t)) for t in tensors]
    jit.launch_all(made, form, jit.Operands(_OPERANDS, addresses, small, device, tensors), done)


def _part(workspace: torch.Tensor, at: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    return workspace[at : at + elements * dtype.itemsize].view(dtype)


def _pack(made: Steps, weight: torch.Tensor, packed: torch.Tensor) -> None:
    """A weight that no kernel packs, into the workspace."""
    five = (weight if weight.dim() == 5 else weight.unsqueeze(2)).detach()
    lies = five.permute(plan.weight_axes(made.view.is_narrow))
    room = packed.view(*lies.shape[:4], -1)
    room[..., lies.shape[4] :] = 0
    room[..., : lies.shape[4]] = lies


def _reach_bytes(tensor: torch.Tensor) -> int:
    """From the first to the last element."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((n - 1) * s for n, s in sides) + 1) * tensor.element_size()


# Tiles that `hy3d-rocm tune` found best here: a record's detail names one.


def detail_of(config: Config) -> str:
    """A record's detail that names the tile."""
    return f"tile {config}"


def config_for(spec: ConvSpec) -> Config | None:
    """The tuned tile of a convolution, read from the store and noted at the spec while nothing
    changes there; None: the guess serves. A tile that is not offered any more (it would spill, or
    a new version dropped it) is left alone."""
    known = store()
    noted: tuple[Store, int, Config | None] | None = spec.notes.get("tile")
    generation = known.generation
    if noted is not None and noted[0] is known and noted[1] == generation:
        return noted[2]
    record = known.records(make_key(spec, this_machine(spec.device))).get("triton")
    found = None
    if record is not None and record.verdict == "ok":
        # The offered one: it brings its rate.
        every = configs.offered(architecture(spec.device), _NAMES[spec.dtype])
        found = next((c for c in every if detail_of(c) == record.detail), None)
    spec.notes["tile"] = (known, generation, found)
    return found


# The same of the fused kernels (decoding/backends/triton), a record a tile at what it was measured
# for.
FUSED = "fused"
_measured: dict[Machine, tuple[Store, int, configs.Measured | None]] = {}


def fused_key(kind: configs.Kind, device: torch.device) -> Key:
    """Where the tiles of fused products are kept."""
    dtype, outputs, length, taps = kind
    shape = f"{outputs} outputs of {taps} x {length}"
    return Key(FUSED, shape, dtype, "rows", *this_machine(device))


def measured(device: torch.device) -> configs.Measured | None:
    """The tiles of fused kernels that were measured on a GPU; the same object while there are no
    others."""
    known, machine = store(), this_machine(device)
    generation = known.generation
    noted = _measured.get(machine)
    if noted is not None and noted[0] is known and noted[1] == generation:
        return noted[2]
    arch, tiles = architecture(device), dict[configs.Kind, tuple[Config, ...]]()
    for key, records in known.of(FUSED, machine).items():
        outputs, taps, length = (int(n) for n in re.findall(r"\d+", key.shape))
        kind = key.dtype, outputs, length, taps
        found = []
        for config in configs.offered(arch, key.dtype):
            record = records.get(str(config))
            if record is not None and record.verdict == "ok" and record.seconds:
                computed = -(-outputs // config.block_n) * config.block_n
                found.append(replace(config, rate=computed / record.seconds))
        if found:
            tiles[kind] = tuple(found)
    made = configs.Measured(tiles) if tiles else None
    if noted is not None and repr(noted[2]) == repr(made):  # rates included
        made = noted[2]
    _measured[machine] = known, generation, made
    return made


def candidates(call: ConvCall) -> tuple[tuple[Config, ...], tuple[Config, ...]]:
    """The tiles that the guess takes, one, or two where boxes differ in size; and every other that
    makes sense for the call, the best guess first."""
    p, spec, target = plan.problem(call.spec), call.spec, target_of(call.spec.device)
    x = call.x if spec.batched else call.x.unsqueeze(0)
    out = torch.empty(spec.out_size, device="meta", memory_format=spec.memory_format)
    layout = Layout.of(x, out)
    made = make_steps(p, layout, _NAMES[spec.dtype], call.bias is not None, target)
    every = configs.offered(target.arch, _NAMES[spec.dtype])
    if plan.is_points(p, layout):
        ranked = configs.ranked_points(every, p.outputs, p.channels)
    else:
        positions = p.batch * p.out[0] * p.padded[1] * p.padded[2]
        view = made.view
        ranked = configs.ranked(
            every, positions, view.outputs, view.length, target.units, view.taps
        )
    return made.tiles, tuple(config for config in ranked if config not in made.tiles)
