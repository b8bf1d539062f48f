"""Heads that torch's fused kernels are not trusted with on AMD cards."""

from __future__ import annotations

from typing import Any

import pytest
from live_storages import LiveStorages

torch = pytest.importorskip("torch")
F = pytest.importorskip("torch.nn.functional")

import hy3d_rocm  # noqa: E402
from hy3d_rocm.conv import attention  # noqa: E402
from hy3d_rocm.decoding import faults  # noqa: E402
from hy3d_rocm.decoding.backends.attention import weigh  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace  # noqa: E402


def operands(*size: int, dtype: Any = torch.float32) -> list[Any]:
    rng = torch.Generator().manual_seed(3)
    return [torch.randn(size, generator=rng).to(dtype) for _ in range(3)]


def assert_near(
    made: Any, q: Any, k: Any, v: Any, scale: float | None = None, more: Any = None
) -> None:
    """To what float64 gives. A score's roundings: of its products, of both operands' scaling, of
    what is added. Then an exponential's, those of sums over the keys, and of the result."""
    wide = [t.double() for t in (q, k, v)]
    more = {n: m.double() if n == "attn_mask" and m.is_floating_point() else m
            for n, m in (more or {}).items()}  # fmt: skip
    expected = F.scaled_dot_product_attention(*wide, scale=scale, **more)
    if more.get("enable_gqa"):
        wide[1] = wide[1].repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    unit = 2**-53 if made.dtype is torch.float64 else 2**-24
    size, keys = k.shape[-1], k.shape[-2]
    sizes = (wide[0].abs() @ wide[1].abs().mT).max() * (scale or size**-0.5)
    off = torch.expm1(2 * (size + 8) * unit * sizes) + 4 * (keys + 8) * unit
    off = off + torch.finfo(made.dtype).eps
    assert made.shape == expected.shape
    assert (made.double() - expected).abs().max() <= off * wide[2].abs().max()


@pytest.fixture
def untrusted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As if the CPU were an AMD card; how many queries each product had."""
    rows: list[int] = []
    math = torch._scaled_dot_product_attention_math

    def counted(q: Any, *rest: Any, **more: Any) -> Any:
        rows.append(q.shape[-2])
        return math(q, *rest, **more)

    monkeypatch.setattr(attention, "trusts", lambda _, size: size <= attention.LARGEST_TRUSTED)
    monkeypatch.setattr(torch, "_scaled_dot_product_attention_math", counted)
    return rows


@pytest.mark.parametrize(
    ("device", "size", "hip", "expected"),
    [("cuda", 257, "7.1", False), ("cuda", 256, "7.1", True), ("cuda", 512, None, True),
     ("cpu", 512, "7.1", True), ("meta", 512, "7.1", True)],
)  # fmt: skip
def test_only_large_heads_on_rocm_are_not_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, device: str, size: int, hip: str | None, expected: bool
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    assert attention.trusts(device, size) is expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_some_queries_at_a_time_give_what_torch_gives(
    monkeypatch: pytest.MonkeyPatch, untrusted: list[int], dtype: Any, scale: float | None
) -> None:
    q, k, v = operands(2, 3, 50, 320, dtype=dtype)
    wide = max(4, q.element_size())
    monkeypatch.setattr(attention, "SCORE_BYTES", 2 * 3 * 50 * wide * 7)  # of seven queries
    made = attention.composed(q, k, v, scale=scale)
    assert untrusted == [7] * 7 + [1]
    assert made.dtype is dtype
    assert_near(made, q, k, v, scale)


def test_protect_keeps_large_heads_from_the_fused_kernels(untrusted: list[int]) -> None:
    large, small = operands(1, 1, 20, 512), operands(1, 1, 20, 256)
    with hy3d_rocm.protect():
        made = F.scaled_dot_product_attention(*large)
        F.scaled_dot_product_attention(*small)
    assert untrusted == [20]
    torch.testing.assert_close(made, F.scaled_dot_product_attention(*large))


def test_a_pipeline_behind_the_proxy_is_kept_from_them(
    monkeypatch: pytest.MonkeyPatch, untrusted: list[int]
) -> None:
    """A diffusers pipeline decodes by its VAE, whose one attention has a head of 512."""
    large = operands(1, 1, 20, 512)

    class Pipeline:
        device = torch.device("cpu")

        def __call__(self, **_: Any) -> Any:
            return F.scaled_dot_product_attention(*large)

    hy3d_rocm.PipelineProxy(Pipeline())()
    assert untrusted == []  # this torch is no ROCm build
    monkeypatch.setattr(torch.version, "hip", "7.1")
    made = hy3d_rocm.PipelineProxy(Pipeline())()
    assert untrusted == [20]
    torch.testing.assert_close(made, F.scaled_dot_product_attention(*large))


def test_a_vaes_own_code_is_kept_from_them_too(untrusted: list[int]) -> None:
    large = operands(1, 1, 20, 512)
    with faults.LayerByLayer(lambda: None):
        F.scaled_dot_product_attention(query=large[0], key=large[1], value=large[2])
    assert untrusted == [20]


def test_a_decodes_attention_is_kept_from_them(untrusted: list[int]) -> None:
    q, k, v = operands(1, 2, 20, 512)
    target = torch.empty(2, 20, 512)
    weigh(q, k, v, target)
    assert untrusted == [20]
    torch.testing.assert_close(target[None], F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["causal", "seen", "added", "of keys", "of videos"])
def test_masks_are_cut_as_queries_are_and_go_to_no_fused_kernel(
    monkeypatch: pytest.MonkeyPatch, untrusted: list[int], dtype: Any, kind: str
) -> None:
    """HunyuanVideo's VAE has a mask in diffusers: all scores at once would be gigabytes."""
    q, k, v = operands(2, 3, 50, 320, dtype=dtype)
    monkeypatch.setattr(attention, "SCORE_BYTES", 2 * 3 * 50 * max(4, q.element_size()) * 7)
    rng = torch.Generator().manual_seed(4)
    mask = {
        "causal": None,
        "seen": torch.rand(50, 50, generator=rng) < 0.7,
        "added": torch.randn(3, 50, 50, generator=rng).to(dtype),
        "of keys": torch.rand(2, 1, 1, 50, generator=rng) < 0.7,
        "of videos": torch.rand(2, 1, 50, 50, generator=rng) < 0.7,
    }[kind]
    more = {"is_causal": True} if mask is None else {"attn_mask": mask}
    with hy3d_rocm.protect():
        made = F.scaled_dot_product_attention(q, k, v, **more)
    assert untrusted == [7] * 7 + [1]
    assert_near(made, q, k, v, None, more)


def test_torchs_switches_stay_for_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda: Any = torch.backends.cuda
    seen = []

    def asked(*_: Any, **__: Any) -> Any:
        seen.append((cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()))
        return torch.zeros(1, 1, 20, 512), None

    monkeypatch.setattr(attention, "trusts", lambda *_: False)
    monkeypatch.setattr(torch, "_scaled_dot_product_attention_math", asked)
    large = operands(1, 1, 20, 512)
    attention.call(F.scaled_dot_product_attention, tuple(large), {"is_causal": True})
    assert seen == [(True, True)]


def test_what_autograd_wants_again_is_recorded(untrusted: list[int]) -> None:
    q, k, v = operands(1, 1, 20, 512, dtype=torch.float64)
    found = []
    for function in (attention.call, lambda func, args, more: func(*args, **more)):
        with torch.enable_grad():
            given = [t.clone().requires_grad_() for t in (q, k, v)]
            function(
                F.scaled_dot_product_attention, tuple(given), {"is_causal": True}
            ).sum().backward()
        found.append([t.grad for t in given])
    assert untrusted == [20]
    torch.testing.assert_close(*found)


def test_heads_that_share_keys_are_counted(
    monkeypatch: pytest.MonkeyPatch, untrusted: list[int]
) -> None:
    q, (k, v, _) = operands(1, 4, 20, 320)[0], operands(1, 2, 30, 320)
    monkeypatch.setattr(attention, "SCORE_BYTES", 4 * 30 * 4 * 15)
    made = attention.call(F.scaled_dot_product_attention, (q, k, v), {"enable_gqa": True})
    assert untrusted == [15, 5]
    assert_near(made, q, k, v, None, {"enable_gqa": True})


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_no_queries_and_no_keys_are_as_with_torch(
    untrusted: list[int], queries: int, keys: int
) -> None:
    q, k = torch.ones(1, 2, queries, 320), torch.ones(1, 2, keys, 320)
    made = attention.call(F.scaled_dot_product_attention, (q, k, k), {})
    assert len(untrusted) == 1
    assert torch.equal(made, F.scaled_dot_product_attention(q, k, k))


def test_values_of_larger_heads_than_queries_are_not_trusted_either(untrusted: list[int]) -> None:
    q, k, _ = operands(1, 1, 20, 64)
    _, _, v = operands(1, 1, 20, 512)
    with hy3d_rocm.protect():
        made = F.scaled_dot_product_attention(q, k, v)
    assert untrusted == [20]
    assert_near(made, q, k, v)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_torchs_own_affair(untrusted: list[int]) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4, 320), torch.ones(2, 5, 320)])
    with hy3d_rocm.protect():
        made = F.scaled_dot_product_attention(nested, nested, nested)
    assert untrusted == []
    assert [tuple(part.shape) for part in made.unbind()] == [(2, 4, 320), (2, 5, 320)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scores_of_half_types_are_in_float32_under_autocast(
    untrusted: list[int], dtype: Any
) -> None:
    """In float16 these scores are infinite; the type is the one that torch's own gives there."""
    q, k, v = operands(1, 2, 20, 320, dtype=dtype)
    q, k = (300 * t.abs() for t in (q, k))
    with torch.autocast("cpu", torch.float16), hy3d_rocm.protect():
        made = F.scaled_dot_product_attention(q, k, v)
    assert untrusted == [20]
    assert made.dtype is torch.float16
    assert (q.half().double() @ k.half().double().mT).min() * 320**-0.5 > 65504
    assert_near(made, q.half(), k.half(), v.half())


def test_float64_stays_under_autocast(untrusted: list[int]) -> None:
    q, k, v = operands(1, 2, 20, 320, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16), hy3d_rocm.protect():
        made = F.scaled_dot_product_attention(q, k, v)
    assert made.dtype is torch.float64
    assert_near(made, q, k, v)


def test_scores_are_in_float32_where_torch_may_reduce_in_half_types(untrusted: list[int]) -> None:
    q, k, v = operands(1, 2, 20, 320, dtype=torch.float16)
    q, k = (300 * t.abs() for t in (q, k))
    cuda: Any = torch.backends.cuda
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        made = attention.composed(q, k, v)
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(False)
    assert_near(made, q, k, v)


@pytest.mark.parametrize("scope", [hy3d_rocm.protect, lambda: faults.LayerByLayer(lambda: None)])
def test_what_is_compiled_in_the_scope_is_kept_from_them(
    monkeypatch: pytest.MonkeyPatch, scope: Any
) -> None:
    monkeypatch.setattr(attention, "trusts", lambda _, size: size <= attention.LARGEST_TRUSTED)
    asked: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        asked.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    large = operands(1, 1, 20, 512)
    torch._dynamo.reset()
    function = torch.compile(
        lambda *args: F.scaled_dot_product_attention(*args), backend=backend, fullgraph=True
    )
    with scope():
        made = function(*large)
    torch._dynamo.reset()
    assert torch._scaled_dot_product_attention_math in asked
    assert F.scaled_dot_product_attention not in asked
    assert_near(made, *large)


def test_the_bytes_that_are_planned_hold_scores_and_copies(
    monkeypatch: pytest.MonkeyPatch, untrusted: list[int]
) -> None:
    q, k, v = operands(1, 2, 100, 512, dtype=torch.bfloat16)
    monkeypatch.setattr(attention, "SCORE_BYTES", 2 * 100 * 4 * 10)  # of ten queries
    scores, copies = 2 * 10 * 100 * 4, 3 * (10 + 100) * 2 * 512 * 4
    rules = OperatorWorkspace(torch.device("cpu"))
    assert rules.attention(q, k, v, None) == 2 * scores + copies + q.nbytes
    assert rules.composes(torch.bfloat16, 512)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("score_bytes", [1 << 14, 1 << 30])
@pytest.mark.parametrize(
    "kind", ["plain", "large values", "tokens before heads", "shared keys", "mask"]
)
def test_no_more_memory_is_taken_than_planned(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, score_bytes: int, kind: str
) -> None:
    monkeypatch.setattr(attention, "SCORE_BYTES", score_bytes)
    q, k, v = operands(2, 3, 60, 320, dtype=dtype)
    if kind == "large values":
        v = operands(2, 3, 60, 1024, dtype=dtype)[2]
    if kind == "tokens before heads":
        q, k, v = (t.transpose(1, 2) for t in operands(2, 60, 3, 320, dtype=dtype))
    if kind == "shared keys":
        k, v = k[:, :1], v[:, :1]
    mask = torch.ones(2, 3, 60, 60, dtype=torch.bool) if kind == "mask" else None
    known = [q, k, v] if mask is None else [q, k, v, mask]
    with LiveStorages(known, torch.device("cpu")) as watch:
        made = attention.composed(q, k, v, mask)
    assert watch.peak - made.nbytes <= attention.composed_bytes(q, k, v, mask)
