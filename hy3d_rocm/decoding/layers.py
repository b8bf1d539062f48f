"""What a VAE's decoder or encoder is made of, for whoever runs it.

A family (families/) says once in which order its layers run: a plain function over an Engine. The
engine of every decode is the recorder (graph.py): the C core makes a program of what it records,
which says what is in memory when. A backend (backends/torch_ops.py's, or one above it) computes one
convolution on some frames, with the norm, the activation, the up-sampling and the padding before it
and the residual after it, so that none of these exists as a tensor of its own.

Everywhere: one sample, (1, C, T, H, W); triples are (T, H, W); frame numbers count from the start
of the video.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

Triple = tuple[int, int, int]
Range = tuple[int, int]  # first, one past the last
Handle = Any  # a value in an engine's own form


class StrangeModuleError(TypeError):
    """A module that is not what the layers can say; the text is a part of a sentence."""


@dataclass(frozen=True, eq=False)
class Norm:
    """Normalisation before a convolution; weights are read through Weights.

    kind "group": GroupNorm, moments over (T, H, W) of the whole video and the channels of a group.
    "frame": GroupNorm of each frame by itself, over (H, W) and the channels of a group (SeedVR2).
    The others at each position over the channels: "rms": x * rsqrt(mean(x^2) + eps); "l2": x /
    max(|x|, eps) * sqrt(C) (Wan's and HunyuanVideo 1.5's RMS_norm); "layer": LayerNorm.
    weight, bias: names of the module's parameters, None where it has none.
    scale, shift: (C,) of this decode, applied afterwards as y * (1 + scale) + shift (LTX's
    timestep).
    """

    kind: str
    module: Any
    eps: float
    groups: int = 1
    weight: str | None = "weight"
    bias: str | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None


@dataclass(frozen=True)
class Shuffle:
    """Channels to space and time after a convolution.

    order: how the convolution's channels are laid out: "channel first" is (C, rt, rh, rw) as LTX
    has it, "factor first" is (rt, rh, rw, C) as HunyuanVideo 1.5, "space first" is (rh, rw, rt, C)
    as SeedVR2, "time first" is (rt, C) as Wan's time_conv (factor (2, 1, 1)).
    drop: frames dropped at the start of the video after it (LTX drops rt - 1).
    first: another factor for the video's first frame, of whose channels the first ones stay, as
    many as the others have (HunyuanVideo 1.5 and SeedVR2: (1, 2, 2)).
    """

    factor: Triple
    order: str
    drop: int = 0
    first: Triple | None = None


@dataclass(frozen=True, eq=False)
class Conv:
    """norm -> act -> up -> pad -> convolve -> + bias -> shuffle -> + residual.

    module: has weight (O, C, kt, kh, kw), (O, C, kh, kw) (each frame by itself) or (O, C) (1x1x1),
    and bias or None.
    before, after: padding of the up-sampled input; modes: "zeros" or "replicate", one an axis, or
    "reflect" for rows and columns (torch computes that, no other backend). Of rows and columns they
    may be negative, more than -up: so many up-sampled ones are cropped at that side, whatever the
    mode (a strip of rows begins between the two copies of a row).
    up: nearest up-sampling; with keep_first the video's first frame stays one frame in time.
    skip_first: so many frames at the start of the video pass by (only `shuffle` of time may be set
    then): the convolution's own video begins behind them (Wan's time_conv).
    reread: so many of these, the last ones, are read all the same: the convolution's own video
    begins with them (1 in Wan's encoder).
    """

    module: Any
    before: Triple = (0, 0, 0)
    after: Triple = (0, 0, 0)
    modes: tuple[str, str, str] = ("zeros", "zeros", "zeros")
    stride: Triple = (1, 1, 1)
    norm: Norm | None = None
    act: str | None = None  # "silu"
    up: Triple = (1, 1, 1)
    keep_first: bool = False
    skip_first: int = 0
    reread: int = 0
    shuffle: Shuffle | None = None

    def with_row_padding(self, padding: Range) -> Conv:
        """The same on some of the source's rows, which are padded by so many."""
        before, after = self.before, self.after
        if (before[1], after[1]) == padding:
            return self
        return replace(
            self, before=(before[0], padding[0], before[2]), after=(after[0], padding[1], after[2])
        )


@dataclass(frozen=True, eq=False)
class Attention:
    """Self-attention of a middle block with norm and residual: x + out(softmax(q k^T) v).

    q, k, v, out: linear or 1x1 modules (weight (O, C[, 1, 1[, 1]])). fused: one module makes q, k
    and v in this order (then q is it, and k, v are None).
    span: "frame": each frame by itself; "causal": a frame sees itself and all before it; "video":
    all frames see each other (no mask at all).
    heads: number of heads; scores are divided by sqrt(head size).
    """

    norm: Norm
    q: Any
    k: Any
    v: Any
    out: Any
    span: str
    heads: int = 1
    rescale: float = 1.0  # the sum is divided by it (diffusers' rescale_output_factor)


@dataclass(frozen=True, eq=False)
class Local:
    """A function of single frames: run(frames, first) -> frames; first: number of frames[0].

    frames_of(n): frames of the result for a video of n frames; only the first frame may differ in
    how many it makes (HunyuanVideo 1.5's shortcut: 1 + 2 (n - 1)).
    """

    run: Callable[[Tensor, int], Tensor]
    frames_of: Callable[[int], int]


class Weights(Protocol):
    """Parameters on the device and in the type that is computed in. One per decode: asked again,
    it gives the same tensor. A host that casts weights itself (comfy.ops) brings its own."""

    def of(self, module: Any, name: str) -> Tensor | None:
        """`module`'s parameter or buffer `name`; None where it has none (a plain number as a
        stand-in for one, as Wan's RMS_norm has it for its bias, counts as none only if it is 0)."""


class ModuleWeights:
    """Weights over plain modules, which are only read: converted on first use, or used as they are.
    device "meta" gives shapes alone."""

    def __init__(self, dtype: torch.dtype, device: torch.device | str) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        # The module is kept with the tensor: its id stays taken for as long as it is a key.
        self._known: dict[tuple[int, str], tuple[Any, Tensor | None]] = {}

    def of(self, module: Any, name: str) -> Tensor | None:
        key = (id(module), name)
        if key not in self._known:
            self._known[key] = (module, self._converted(module, name))
        return self._known[key][1]

    def _converted(self, module: Any, name: str) -> Tensor | None:
        found = getattr(module, name, None)
        if found is None or (isinstance(found, (int, float)) and found == 0):
            return None
        if not isinstance(found, torch.Tensor):
            raise TypeError(
                f"{type(module).__name__}.{name} is a {type(found).__name__}: a parameter or "
                "buffer was expected; this VAE can only be decoded whole"
            )
        dtype = self.dtype if found.is_floating_point() else found.dtype
        if self.device.type == "meta":
            return torch.empty(found.shape, dtype=dtype, device="meta")
        return found.detach().to(device=self.device, dtype=dtype)


@dataclass(frozen=True)
class Pieces:
    """Frames first .. first + n of an activation as tensors (1, C, t, H, W) in order.

    total: frames of the whole video, None while its end is not known (only where nothing after the
    last frame is asked for).
    """

    tensors: tuple[Tensor, ...]
    first: int
    total: int | None

    @property
    def frames(self) -> Range:
        """first, one past the last frame that is there."""
        return self.first, self.first + sum(t.shape[2] for t in self.tensors)


@dataclass(frozen=True)
class Moments:
    """Per channel of some frames: how many positions, and (2, C), mean and sum of squared
    deviations, float64 on the device."""

    count: int
    rows: Tensor

    @property
    def mean(self) -> Tensor:
        return self.rows[0]

    @property
    def deviations(self) -> Tensor:
        return self.rows[1]


class Engine(Protocol):
    """What a family calls its layers on. A handle may be given to as many calls as read it."""

    def conv(self, x: Handle, layer: Conv, *, add: Handle | None = None) -> Handle: ...

    def attention(self, x: Handle, layer: Attention) -> Handle: ...

    def local(self, x: Handle, layer: Local) -> Handle: ...

    def add(self, x: Handle, y: Handle) -> Handle: ...
