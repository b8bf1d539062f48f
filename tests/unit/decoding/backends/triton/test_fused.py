"""The fused backend, interpreted on the CPU: a share of tests/long/check_fused.py, and what it
promises beside numbers."""

from __future__ import annotations

from typing import Any

import check_fused
import check_fused_gfx
import check_gfx
import interpreted_checks
import pytest
import torch
import warm_start
from program_doubles import graph_of, rules
from torch.utils._python_dispatch import TorchDispatchMode
from triton_device import INTERPRETER

from hy3d_rocm.conv import attention
from hy3d_rocm.conv.triton.configs import Config
from hy3d_rocm.conv.triton.work import Target
from hy3d_rocm.decoding import layers
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.backends.triton.backend import TritonBackend
from hy3d_rocm.decoding.memory.steps import StepWorkspace

pytest.importorskip("triton", reason="no triton in this environment")

COUNT, SEED = 6, 7


@pytest.mark.timeout(300)
def test_random_layers_equal_the_plain_reading_and_stay_within_the_bound() -> None:
    if warm_start.IS_THERE:
        asked = {"seed": SEED, "first": 0, "count": COUNT, "step": 1, "device": INTERPRETER}
        (result,) = interpreted_checks.results(("check_fused", asked))
    else:
        result = check_fused.spawn(SEED, 0, COUNT, workers=1)
    assert not result["failed"], "\n".join(result["failed"])
    assert result["cases"] == COUNT
    assert result["addresses"] > 100_000
    assert 0.0 < result["worst_of_bound"] <= 1.0


def test_the_layers_cover_what_the_kernels_can_do() -> None:
    made = [check_fused.random_case(SEED, index) for index in range(400)]
    assert {case.dtype for case in made} == set(check_fused.DTYPES)
    assert {case.norm for case in made} == set(check_fused.NORMS)
    assert {mode for case in made for mode in case.modes} == {"zeros", "replicate"}
    assert {case.weight_dims for case in made} == {5, 4, 2}
    assert {case.layouts for case in made} == {"last", "plain", "odd"}
    orders = {case.shuffle[1] for case in made if case.shuffle}
    assert orders == {"channel first", "factor first", "space first", "time first"}
    for flag in ("silu", "moments", "keep_first", "open_end", "bias", "scaled"):
        assert {getattr(case, flag) for case in made} == {True, False}
    assert any(max(case.stride) > 1 for case in made)
    assert any(case.cuts for case in made)
    assert any(case.add for case in made)
    assert {case.into for case in made} == {None, "last", "plain", "odd", "add"}
    for mixed in ((-1, 1), (1, -1), (-1, -1)):  # of strips whose taps are summed
        assert any(
            (case.before[1], case.after[1]) == mixed and case.kernel == (3, 3, 3) for case in made
        )


def test_what_the_kernels_cannot_compute_is_delegated_and_counted() -> None:
    module = torch.nn.Conv3d(4, 4, 3, dtype=torch.float64)
    layer = layers.Conv(module, before=(1, 1, 1), after=(1, 1, 1))
    x = torch.rand(1, 4, 2, 5, 6, dtype=torch.float64)
    source = layers.Pieces((x,), 0, 2)
    backend = TritonBackend(check_fused.Plain(), "cpu")
    with torch.no_grad():
        out, _ = backend.convolve(layer, source, (0, 2))
        wanted = torch.nn.functional.conv3d(x, module.weight, module.bias, padding=1)
    assert torch.equal(out, wanted)
    assert backend.delegated == {"the fused kernels have no torch.float64": 1}


def test_shapes_alone_go_through_without_a_launch() -> None:
    module = torch.nn.Conv3d(32, 64, 3, dtype=torch.bfloat16, device="meta")
    layer = layers.Conv(module, (2, 1, 1), (0, 1, 1), ("replicate",) * 3, up=(2, 2, 2),
                        keep_first=True, act="silu")  # fmt: skip
    x = torch.empty(1, 32, 3, 8, 8, dtype=torch.bfloat16, device="meta")
    backend = TritonBackend(check_fused.Plain("meta"), "meta", Target("sm_90", 132))
    out, moments = backend.convolve(layer, layers.Pieces((x,), 0, 3), (0, 5), moments=True)
    assert out.shape == (1, 64, 5, 16, 16)
    assert out.is_contiguous(memory_format=torch.channels_last_3d)
    assert moments is not None
    assert moments.count == 5 * 16 * 16


def test_a_missing_frame_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "run_launches", lambda part, *_: part.work.launches)
    module = torch.nn.Conv3d(8, 8, 3)
    layer = layers.Conv(module, (2, 1, 1), (0, 1, 1))
    x = torch.rand(1, 8, 2, 4, 4)
    backend = TritonBackend(check_fused.Plain(), "cpu", Target("gfx1100", 4))
    with pytest.raises(ValueError, match=r"frame 1 of the source is read .* only 2 to 3 are there"):
        backend.convolve(layer, layers.Pieces((x,), 2, 9), (3, 4))


class Counting(TorchDispatchMode):
    """Adds up what torch.empty takes."""

    taken = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.empty:
            self.taken += out.untyped_storage().nbytes()
        return out


def test_the_workspace_is_never_more_than_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "run_launches", lambda *_: None)
    for index in range(80):
        case = check_fused.random_case(SEED, index)
        made = check_fused.build(case, SEED, real=True)
        machine = Target("gfx1100", 4, rows_bytes=case.rows_bytes, tile=Config.parse(case.tile))
        backend = TritonBackend(check_fused.Plain(), "cpu", machine)
        layer, affine = made["layer"], made["affine"]
        call = (layer, check_fused.pieces_of(case, made["x"], made["frames"]), made["frames"])
        said, _ = backend.workspace(*call)
        backend.convolve(*call, affine=affine)  # packs the weight
        with Counting() as mode:
            out, _ = backend.convolve(*call, affine=affine, moments=case.shuffle is None)
        workspace = mode.taken - out.untyped_storage().nbytes()
        assert workspace <= said, f"seed {SEED}, index {index}"
        said, _ = backend.workspace(*call, into=True)
        with Counting() as mode:
            backend.convolve(*call, affine=affine, add=out, out=out)
        assert mode.taken <= said, f"seed {SEED}, index {index}"


@pytest.mark.parametrize(
    ("arch", "dtype", "width", "composed"),
    [("gfx1100", torch.float16, 264, 0), ("gfx1100", torch.float32, 264, 1),
     ("gfx1100", torch.float16, 260, 1), ("gfx1030", torch.float16, 264, 1)],
)  # fmt: skip
def test_no_scores_are_planned_where_the_kernel_attends(
    monkeypatch: pytest.MonkeyPatch, arch: str, dtype: torch.dtype, width: int, composed: int
) -> None:
    """HunyuanVideo, 129 frames 544x960: scores and float32 copies would be 2.2 GB of the plan."""
    monkeypatch.setattr(attention, "trusts", lambda _, size: size <= attention.LARGEST_TRUSTED)
    norm = layers.Norm("l2", torch.nn.Linear(1, width, dtype=dtype), 1e-12, weight=None)
    projections = (torch.nn.Linear(width, width, dtype=dtype) for _ in range(4))
    layer = layers.Attention(norm, *projections, "causal")
    x = torch.zeros(1, width, 3, 4, 4, dtype=dtype)
    graph = graph_of(lambda engine, x: engine.attention(x, layer), x)
    backend = TritonBackend(check_fused.Plain(), "cpu", Target(arch, 4))
    (place,) = StepWorkspace(graph, backend, rules(), dtype).request["places"]
    number = next(n for n, node in enumerate(graph.nodes) if node.width)
    assert place[5][number][3] == composed


def test_the_heaviest_store_compiles_for_amd_and_spills_nothing() -> None:
    asked = list(check_fused_gfx.subset())
    assert {arch for arch, _ in asked} == {"gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201"}
    lines = check_gfx.check(asked, workers=1)
    assert {line.function for line in lines} == {
        "load_rows",
        "conv_rows",
        "combine_moments",
        "attend",
        "group_factors",
        "pack_weight",
    }
    assert [words for line in lines for words in line.wrong] == []


def test_a_form_is_found_once_and_each_layer_has_its_own_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[tuple[Any, Any]] = []
    monkeypatch.setattr(fused, "run_launches", lambda *given: launched.append(given[:2]))
    monkeypatch.setattr(fused, "_forms", {})
    x = torch.rand(1, 48, 3, 6, 6).contiguous(memory_format=torch.channels_last_3d)
    call = layers.Pieces((x,), 0, 3), (0, 3)

    def form_of(bias: bool, weighted: bool, kind: str = "rms", tile: int = 64) -> Any:
        module, norm = torch.nn.Conv3d(48, 64, 3, bias=bias), torch.nn.Module()
        norm.register_parameter("weight", torch.nn.Parameter(torch.rand(48)) if weighted else None)
        layer = layers.Conv(
            module, (2, 1, 1), (0, 1, 1), norm=layers.Norm(kind, norm, 1e-6), act="silu"
        )
        machine = Target("gfx1100", 4, tile=Config(tile, 64, 16, 4, 2))
        backend = TritonBackend(check_fused.Plain(), "cpu", machine)
        with torch.no_grad():
            backend.convolve(layer, *call)
        (packs, tensors), (part, _) = launched
        launched.clear()
        assert packs.work is part.packing
        assert tensors[0] is part.weight
        assert tensors[-1].data_ptr() == module.weight.data_ptr()
        assert (part.bias is None) is not bias
        assert (part.factors is None) is not weighted
        assert not weighted or torch.equal(part.factors[0], norm.weight.detach())
        return part.work

    first = form_of(bias=True, weighted=True)
    assert form_of(bias=True, weighted=True) is first
    assert len(fused._forms) == 1
    others = [
        form_of(bias=False, weighted=True), form_of(bias=True, weighted=False),
        form_of(bias=True, weighted=True, kind="layer"),
        form_of(bias=True, weighted=True, tile=128),
    ]  # fmt: skip
    assert len({id(work) for work in (first, *others)}) == 5
    assert len(fused._forms) == 5
    loads = [item for item in first.launches if item.kernel == "load_rows"]
    assert {item.constants[-1] for item in loads} == {48}, "48 channels are made as 64"


def test_weights_are_packed_once_and_again_when_they_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[str] = []
    monkeypatch.setattr(fused, "run_launches", lambda part, *_: launched.append(kind_of(part)))
    module = torch.nn.Conv3d(16, 32, 3)
    layer = layers.Conv(module, (2, 1, 1), (0, 1, 1))
    backend = TritonBackend(check_fused.Plain(), "cpu", Target("gfx1100", 4))
    for frames in (2, 2, 3):  # of the last the form is another, the weight is not
        x = torch.rand(1, 16, frames, 6, 6).contiguous(memory_format=torch.channels_last_3d)
        backend.convolve(layer, layers.Pieces((x,), 0, frames), (0, frames))
    assert launched == ["PackWork", "Work", "Work", "Work"]
    launched.clear()
    backend.forget_weights()
    assert all(part.weight is None for known in backend._known.values() for part in known.parts)
    for _ in range(2):
        backend.convolve(layer, layers.Pieces((x,), 0, 3), (0, 3))
    assert launched == ["PackWork", "Work", "Work"]


def kind_of(part: Any) -> str:
    return type(part.work).__name__


@pytest.mark.parametrize(
    ("arch", "size", "dtype", "expected"),
    [("gfx1100", 512, torch.bfloat16, True), ("gfx1201", 384, torch.float16, True),
     ("gfx942", 1024, torch.bfloat16, True), ("gfx1100", 256, torch.bfloat16, False),
     ("gfx1100", 388, torch.bfloat16, False), ("gfx1100", 512, torch.float32, False),
     ("gfx1030", 512, torch.float16, False), ("sm_90", 512, torch.bfloat16, True),
     ("sm_86", 512, torch.bfloat16, False)],
)  # fmt: skip
def test_large_heads_are_attended_by_the_kernel_where_it_was_checked(
    arch: str, size: int, dtype: torch.dtype, expected: bool
) -> None:
    backend = TritonBackend(check_fused.Plain("meta"), "meta", Target(arch, 4))
    assert backend.attends(dtype, size) is expected
