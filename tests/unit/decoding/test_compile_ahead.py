"""What a dry run of a program finds is what the program then launches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import EVERY_KIND, tiny_vae  # noqa: E402
from program_doubles import (  # noqa: E402
    ALL,
    CPU,
    LateTransfers,
    by_layers,
    compiled,
    compiled_tiles,
    family_of,
    in_tiles,
    source_of,
)

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv.triton import ahead  # noqa: E402
from hy3d_rocm.conv.triton.work import Target  # noqa: E402
from hy3d_rocm.decoding import compile_ahead  # noqa: E402
from hy3d_rocm.decoding.backends import attention  # noqa: E402
from hy3d_rocm.decoding.backends.triton import backend as fused  # noqa: E402
from hy3d_rocm.decoding.families import unproven_family  # noqa: E402
from hy3d_rocm.decoding.graph import ATTENTION, record  # noqa: E402
from hy3d_rocm.decoding.layers import ModuleWeights  # noqa: E402
from hy3d_rocm.decoding.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace  # noqa: E402
from hy3d_rocm.decoding.planning.compiled import Compiled  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job, MakeBackend  # noqa: E402
from hy3d_rocm.decoding.run import Run  # noqa: E402
from hy3d_rocm.tune.shapes import load_vae  # noqa: E402

pytestmark = pytest.mark.skipif(not _native.available, reason="programs need the C core")
DTYPE = torch.bfloat16
GPU = OperatorWorkspace(torch.device("cuda"))


def backend_on(device: Any) -> fused.TritonBackend:
    return fused.TritonBackend(ModuleWeights(DTYPE, device), device, Target("gfx1100", 48))


def key(kernel: ahead.Wanted) -> Any:
    return kernel.item.compiled_for, kernel.facts


def foretold(graph: Any, program: Any) -> set[Any]:
    found: list[ahead.Wanted] = []
    each = compile_ahead.each_kernel(found.append)
    compile_ahead.dry_run(graph, program, backend_on("meta"), DTYPE, GPU, each)
    assert len(set(map(key, found))) == len(found), "each kernel once"
    return set(map(key, found))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """What is launched on tensors in main memory; their kernels write zeros."""
    found: set[Any] = set()

    def run_launches(part: Any, tensors: Any, device: Any) -> None:
        for item in part.work.launches:
            facts = []
            for name, offset in item.operands:
                x = tensors[fused._names(len(tensors)).index(name)]
                address = x.data_ptr() + offset * x.element_size()
                facts.append(ahead.Facts(x.dtype, True, address % 16 == 0))
            found.add((item.compiled_for, tuple(facts)))
        for number in (0, 6, 7):  # out, parts, moments
            if tensors[number] is not None:
                tensors[number].zero_()

    monkeypatch.setattr(fused, "run_launches", run_launches)
    return found


@pytest.mark.parametrize(("kind", "encode"), how_much.in_turns(EVERY_KIND, (False, True)))
def test_the_kernels_of_a_program_are_foretold(kind: str, encode: bool, launched: set[Any]) -> None:
    family = family_of(kind, tiny_vae(kind).to(DTYPE))
    x = source_of(family, encode, 1 if family.is_image else 4, 3, 4).to(DTYPE)
    plain = record(family, encode)
    layers = by_layers(plain)
    spilled = {"slice_bytes": 60000, "is_host": 0, "may_spill": 1}
    least = compiled(layers, x, device_budget=1, **spilled).smallest_budget
    requests: list[tuple[Any, dict[str, Any]]] = [
        (layers, {"slice_bytes": ALL, "is_host": 0}), (layers, {"slice_bytes": 60000}),
        (layers, {"device_budget": least, **spilled}), (plain, {"chunk": 2}),
    ]  # fmt: skip
    turn = EVERY_KIND.index(kind) // 2 % 2  # in the gate two of the four
    for graph, request in how_much.of(requests[turn::2], requests):
        program = compiled(graph, x, **request).program
        launched.clear()
        run = Run(graph, backend_on(CPU), CPU, DTYPE, transfers=LateTransfers(1))  # type: ignore[arg-type]
        with torch.no_grad():
            for _ in run.section(program, 0, lambda r: x[:, :, slice(*r)]):
                pass
        assert launched
        assert foretold(graph, program) == launched


def test_attention_is_left_out_of_what_foretells(monkeypatch: pytest.MonkeyPatch) -> None:
    """On shapes torch would compose it, scores and all, in its own Python."""

    def attends(*_: Any) -> Any:
        raise AssertionError("attention ran on shapes")

    monkeypatch.setattr(attention, "_nn", SimpleNamespace(scaled_dot_product_attention=attends))
    family = family_of("hunyuan", tiny_vae("hunyuan").to(DTYPE))
    x, graph = source_of(family, False, 2, 3, 4).to(DTYPE), record(family)
    assert any(node.op == ATTENTION for node in graph.nodes)
    assert foretold(graph, compiled(graph, x).program)


@pytest.mark.parametrize("kind", ["hunyuan", "image", "ltx095"])
def test_the_kernels_of_tiles_are_foretold(kind: str, launched: set[Any]) -> None:
    """All of the first passes' sizes; borders may add some."""
    family = family_of(kind, tiny_vae(kind).to(DTYPE))
    x = source_of(family, False, 1 if family.is_image else 4, 9, 12).to(DTYPE)
    graph = record(family)
    program = compiled_tiles(graph, x).program
    out = torch.empty((1, *family.out_shape(tuple(x.shape))[1:]), dtype=DTYPE)
    in_tiles(graph, x, program, out, backend=backend_on(CPU))
    assert len(launched) > 3
    assert launched <= foretold(graph, program)


def test_another_budget_or_size_needs_no_other_kernel() -> None:
    """HunyuanVideo's VAE at full width on a gfx1100: what 33 frames of 640x608 compiled serves
    other sizes, and other budgets as long as they are met without tiles."""
    vae = load_vae("hunyuan", DTYPE)
    known: set[Any] = set()
    for latent, budget_gb in (
        ((9, 80, 76), 20), ((9, 80, 76), 6), ((9, 80, 76), 3), ((7, 68, 120), 20),
        ((9, 60, 104), 20), ((25, 96, 160), 20),
    ):  # fmt: skip
        job = Job(
            unproven_family(vae), (1, 16, *latent), torch.device("cuda", 0), DTYPE, DTYPE,
            MakeBackend("gfx1100"),
        )  # fmt: skip
        made = Compiled(job, Budget(budget_gb << 30, 1 << 50, False, ""), "streamed")
        found = foretold(made.graph, made.program)
        known = known or found
        assert len(found) > 20
        assert found <= known, (latent, budget_gb)
