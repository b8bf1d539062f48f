"""The C core. Private: use the functions of hy3d_rocm, which check, convert and explain.

Arrays come in by `__dlpack__` or the buffer protocol, without a copy: f32, f64, f16, bf16 (by
DLPack), one to five dimensions, in CPU memory. ValueError for invalid arguments and shapes,
TypeError for objects of the wrong kind, MemoryError for failed allocations, Hy3dError for the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, final, overload

_T = TypeVar("_T")
_Three = tuple[int, ...] | list[int]  # three numbers (T, H, W)
_Frames = tuple[Any, ...] | list[Any]
_PadModes = str | tuple[str, ...]  # "zeros" or "replicate", for all axes or one each
_Rule = Literal["_execution_device", "accelerate hook", "device", "first parameter", "default"]

class Hy3dError(RuntimeError):
    status: int
    name: str

@final
class CancelFlag:
    """A flag that any thread may raise; a running conv3d looks at it once per grain."""

    def __init__(self) -> None: ...
    def request(self) -> None: ...
    def reset(self) -> None: ...
    @property
    def requested(self) -> bool: ...

@final
class PreparedWeights:
    """Weights transformed once, for any number of conv3d calls, at once too."""

    @property
    def format(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

_Node = tuple[int | tuple[int, ...], ...]
_Pair = tuple[int, int]
_Machine = tuple[_Pair, _Three, float, float, float, float]
_Step = tuple[
    int, int, int, int, _Pair, _Pair, _Pair, _Pair, int, int, _Pair, _Pair,
    tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int,
]  # fmt: skip
_Reason = Literal[
    "out of memory", "out of host memory", "no kernel", "not finite", "refused", "cancelled"
]

@final
class Schedule:
    """The candidates of a decode, and the one that was taken. ValueError while a workspace function
    runs that it asks."""

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The fields of hy3d_candidate; strategy, order and status by name."""
    @property
    def smallest_budget(self) -> int: ...
    @property
    def program(self) -> Program | None: ...

@final
class Program:
    """A schedule's program. ValueError once a fallback has given it up."""

    @property
    def candidate(self) -> dict[str, Any]: ...
    @property
    def cut(self) -> dict[str, int]: ...
    @property
    def weights(self) -> tuple[int, ...]:
        """Ranks share rows in this ratio."""
    @property
    def shares(self) -> tuple[_Pair, ...]:
        """The output's rows of each rank."""
    @property
    def input_rows(self) -> tuple[_Pair, ...]:
        """The input's rows that each rank's slices have."""
    @property
    def prefix_bytes(self) -> int: ...
    @property
    def copies_bytes(self) -> int: ...
    @property
    def tiles(self) -> dict[str, Any] | None:
        """How tiles are placed on the cut's value: what schedule_plan takes; None without tiles."""
    @property
    def sections(self) -> tuple[dict[str, Any], ...]:
        """The fields of hy3d_section but for where its slices begin."""
    def steps(self, section: int, /) -> tuple[_Step, ...]:
        """op, node, slice, flags, own, frames, reads, rows, drop, peer, read_rows, row_padding,
        numbers of the slices that are the source, the other operand and free afterwards, macs,
        workspace_bytes."""
    def step(self, section: int, index: int, /) -> _Step:
        """One of steps(section), of which sections[section]["steps"] says how many there are."""
    def kept(self, section: int, /) -> tuple[int, ...]:
        """Of each step: bytes that it makes and that stay until the end."""
    def slices(self, section: int, /) -> tuple[tuple[int, int, _Pair, _Pair, int, int], ...]:
        """node, is_keys, frames, rows, bytes, host_bytes."""
    def prepared(self) -> tuple[_Pair, ...]:
        """Of each node: the layout that its first convolution in the program can use prepared
        weights in (0: none, or not the C convolution's) and their bytes."""
    def start(self, wanted: int, /) -> int:
        """The input's frame where a chunk begins from which on the output's frames from `wanted`
        on come with the same bits; 0 where they depend on the whole video."""
    def fallback(
        self, attempts: int, reason: _Reason, can_widen: bool = False
    ) -> Literal["step again", "begin again", "wider", "stop"]:
        """What comes after a step failed that was tried so often. After "begin again" the schedule
        has another program. Exceptions of the workspace function."""

def compile_schedule(
    nodes: tuple[_Node, ...] | list[_Node],
    *,
    workspace: Callable[[_Step, tuple[int, int, int, int], bool], tuple[int, ...] | None],
    inside: Callable[
        [int, int, bool, tuple[int, int, int, int], _Pair, bool, _Pair, _Pair], tuple[int, ...]
    ] = ...,
    alike: tuple[int, ...] = ...,
    places: tuple[tuple[Any, ...], ...] = (),
    size: _Three,
    element_bytes: int,
    input_bytes: int = 0,
    source_bytes: int = 0,
    result_bytes: int = 0,
    kept_bytes: int = 0,
    most_shape_bytes: int = 0,
    device_budget: int = 0,
    host_budget: int = 0,
    device_room: int = 0,
    margin_bytes: int = 0,
    margin_permille: int = 0,
    is_unified: int = 0,
    is_host: int = 0,
    may_spill: int = 0,
    may_repack: int = 0,
    compiles_all: int = 0,
    strategies: int = 0,
    unit: _Three = ...,
    busy_positions: int = 0,
    device: _Machine,
    host: _Machine = ...,
    copy_bytes_per_second: float,
    halos: tuple[tuple[int, int, int], ...] = (),
    only_level: int = 0,
    statistic_passes: int = 0,
    own_bytes: int = -1,
    rank: int = 0,
    ranks: int = 0,
    weights: tuple[int, ...] = ...,
    device_budgets: tuple[int, ...] = ...,
    link_bytes_per_second: float = ...,
) -> Schedule:
    """The candidates for a graph; nodes have the fields of hy3d_node in their order, a request
    those of hy3d_schedule_request, machines and halos theirs as tuples in their order.

    workspace(step, (channels, frames, rows, columns) of its source, on_host) -> (workspace_bytes,
    kept_bytes, shape_bytes, shape); the slices of such a step are -1 each. own_bytes -2: it is
    asked for the bytes of the VAE's own code too, by the step of node OUTPUT, where these decide;
    None: nobody can tell them. places: the device, and the host beside it; each has the fields of
    hy3d_place but for layers, which come last: a tuple of tuples as hy3d_layer, one a node. What
    steps take there the core knows, and asks inside(node, part, on_host, size of the source,
    row_padding, is_made, reads, makes), as hy3d_call, -> (workspace_bytes, is_in_place,
    shape_bytes, shape). weights and device_budgets: of each rank; without, the core shares the
    rows, and all have device_budget. alike: of each node the first one of which workspace and
    inside say the same; else itself. What they raise is raised. ValueError names a node or an
    argument; Hy3dError HY3D_ERR_UNSUPPORTED, HY3D_ERR_OVERFLOW. Where nothing fits there is no
    error, and no program.
    """

def graph_sizes(
    nodes: tuple[_Node, ...] | list[_Node], size: _Three
) -> tuple[tuple[int, int, int, int], ...]:
    """(channels, frames, rows, columns) of each node's value for an input of (T, H, W)."""

def conv3d(
    x: Any,
    weight: Any,
    bias: Any,
    out: Any,
    stride: _Three,
    dilation: _Three,
    pad_before: _Three,
    pad_after: _Three,
    pad_modes: _PadModes,
    groups: int,
    threads: int = 0,
    workspace_limit: int | None = None,
    cancel: CancelFlag | None = None,
    accuracy: str = "exact",
    prepared: PreparedWeights | None = None,
    frames: _Frames | None = None,
    scale: Any = None,
    shift: Any = None,
    activation: str | None = None,
    upsample: _Three | None = None,
    residual: Any = None,
    pairs: int = 0,
) -> tuple[str, int, int]:
    """x (N, C, T, H, W), weight (Cout, C / groups, kT, kH, kW), bias (Cout) or None, into out.

    Returns (strategy, threads, workspace bytes). threads 0: the context's maximum.
    workspace_limit: at most so many bytes; None: 64 MB a thread; below what one grain needs it is
    refused, 0 too. Neither changes a bit of the result. The GIL is released. Hy3dError
    HY3D_ERR_CANCELLED, HY3D_ERR_WORKSPACE_TOO_SMALL, HY3D_ERR_BLAS_UNAVAILABLE.

    accuracy "exact" (the direct sum) or "fast" (Winograd where it is expected to be faster).
    prepared: of weight, in the layout that conv3d_format gives; never another result.
    frames: where x is None, its frames, each (C, H, W) or None for zeros; batch is then 1.
    scale, shift: f32 (C), x * scale + shift; then activation "silu"; padding comes after both.
    upsample: (T, H, W) nearest repeats of x before all that. residual: out's sizes and type, added
    before rounding; may be out itself. pairs: 1 where frames 0 and 1, 2 and 3, ... are the same
    array, the last perhaps alone; 2 where frame 0 is alone, 1 and 2, 3 and 4, ... are; 0: neither.
    """

def route(
    setting: tuple[float, ...], candidates: Sequence[tuple[float, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...], int, int, int, tuple[int, ...], tuple[int, ...], bool]:
    """Which tiers compute a convolution: hy3d_route_choose, its records as tuples of their fields
    in the header's order.

    Gives order, reasons, twin, preferred, probe, unmeasured, spare, is_cramped. ValueError: a
    number that stands for nothing, or a tier twice.
    """

class KnownCalls:
    """Calls of convolutions that go straight to PyTorch, and how often they did. For one thread,
    but for take().

    capsule: `torch.Tensor.__dlpack_c_exchange_api__`, by which tensors are read, or None: then no
    call has a key. types: those of tensors that are nothing more. flags: functions that give a
    bool, which is part of a key. holds: functions; where one gives what is true
    nothing goes straight.
    clock: gives seconds.
    """

    def __new__(
        cls,
        capsule: object,
        types: tuple[type, ...],
        flags: tuple[Callable[[], object], ...],
        holds: tuple[Callable[[], object], ...],
        clock: Callable[[], float],
    ) -> KnownCalls: ...
    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """function(*arguments), where the call is known and nothing holds it back.

        Else bytes, the call's key: function, flags, and what the arguments of a conv2d or conv3d
        are, without their values. None where they have none (a tensor of another type, one without
        memory of its own, a number that is none, an argument too many).
        """

    def add(self, key: bytes, who: Any) -> None:
        """Calls of this key go straight from now on."""

    def take(self) -> list[tuple[Any, int, float, float]]:
        """(who, calls, seconds, the longest call's) since the last time; what failed is not in."""

    def failed(self) -> tuple[Any, float] | None:
        """(who, start by the clock) of a function that has just raised, once; else None."""

class Admission:
    """What stays in a cache that is smaller than what is asked of it (include/hy3d/cache.h). A key
    is ((low, high), layout): a fingerprint and the number of a layout."""

    def __new__(cls, limit_bytes: int) -> Admission: ...
    def request(self, key: tuple[tuple[int, int], int]) -> bool: ...
    def reserve(self, key: tuple[tuple[int, int], int], nbytes: int) -> bool: ...
    def put(self, key: tuple[tuple[int, int], int]) -> bool: ...
    def cancel(self, key: tuple[tuple[int, int], int]) -> None: ...
    def drop(self, key: tuple[tuple[int, int], int]) -> bool: ...
    def has(self, key: tuple[tuple[int, int], int]) -> bool: ...
    def clear(self) -> int: ...
    def info(self) -> tuple[int, int, int, int, int]:
        """(clock, limit_bytes, used_bytes, entries, evicted)."""

class Rates:
    """What measurements on one device say about estimates. work: the fields of hy3d_route_work."""

    def learn(self, tier: int, work: tuple[float, ...], seconds: float) -> None: ...
    def seconds(self, tier: int, work: tuple[float, ...]) -> float | None: ...

def conv3d_format(
    in_size: _Three,
    in_channels: int,
    out_channels: int,
    kernel: _Three,
    stride: _Three,
    dilation: _Three,
    pad_before: _Three,
    pad_after: _Three,
    pad_modes: _PadModes,
    groups: int,
    dtype: str,
    accuracy: str,
    upsample: _Three | None = None,
    batch: int = 1,
    pairs: int = 0,
) -> tuple[int, str, int]:
    """(format, name, bytes) of the layout that a convolution takes its weights in.

    (0, "none", 0): as they are, nothing to prepare. in_size counts up-sampled positions. dtype
    "f32", "f64", "f16" or "bf16". pairs as conv3d's. Follows from the arguments and the CPU level
    alone.
    """

def conv3d_prepare(
    weight: Any,
    format: int,  # noqa: A002
    threads: int = 0,
    cancel: CancelFlag | None = None,
) -> PreparedWeights:
    """weight (Cout, C, kT, kH, kW), f32, f16 or bf16, in that layout. The GIL is released.

    MemoryError, ValueError (no layout of this build, or not of these sizes).
    """

def fingerprint(array: Any, threads: int = 0) -> tuple[int, int] | None:
    """Two numbers that stand for all bytes of an array, its type, sizes and strides.

    None where its elements have gaps between them or share memory. Other bytes give the same
    numbers with a probability below 2^-63. One pass over the memory; the GIL is released.
    """

def conv3d_out_size(
    in_size: _Three,
    kernel: _Three,
    stride: _Three,
    dilation: _Three,
    pad_before: _Three,
    pad_after: _Three,
) -> tuple[int, int, int]:
    """Output size (T, H, W); ValueError where the kernel does not fit into the padded input."""

@overload
def resolve_device(obj: object) -> tuple[Any, _Rule]: ...
@overload
def resolve_device(obj: object, default: _T) -> tuple[Any | _T, _Rule]:
    """The device as found on obj (or default) and the rule that found it."""

def seed_image(seed: int, index: int) -> int: ...
def schedule_plan(
    *,
    latent: _Three,
    factor: _Three,
    causal: int = 0,
    overlap: _Three = (0, 0, 0),
    halo: _Three = (0, 0, 0),
    min_tile: _Three = (1, 1, 1),
    fixed_bytes: int = 0,
    bytes_per_voxel: int = 0,
    bytes_per_token_pair: int = 0,
    resident_bytes: int = 0,
    budget_bytes: int = 0,
    max_in_flight: int = 1,
    level: int = -1,
    shrink: int = 0,
) -> dict[str, Any]:
    """The fields of hy3d_tiles_plan; "desc" is a dictionary of these arguments.

    Hy3dError HY3D_ERR_BUDGET_TOO_SMALL names the smallest budget that would do.
    """

def schedule_tile(plan: dict[str, Any], index: int) -> dict[str, tuple[int, int, int]]:
    """Tile `index` of a plan that schedule_plan gave: the fields of hy3d_tile."""

def schedule_window(length: int, ramp_before: int, ramp_after: int) -> memoryview:
    """`length` float32 blend weights (format "f"); neighbours' windows sum to exactly 1."""

def blend_accumulate(tile: Any, window_t: Any, window_h: Any, window_w: Any, out: Any) -> None:
    """out += tile * window_t * window_h * window_w, both (N, C, T, H, W), f32, f64, f16 or bf16.

    A window is None (all ones) or a contiguous 1-D f32 array. Sums in f32, in f64 where tile or out
    is f64. The GIL is released.
    """

def channel_moments(
    x: Any, mean: Any, deviations: Any, threads: int = 0, cancel: CancelFlag | None = None
) -> None:
    """Of x (N, C, T, H, W), f32, f16 or bf16: mean and sum of squared deviations of each channel
    into f64 arrays (C), summed in f64. threads 0: the context's maximum. The GIL is released."""

def rasterize(
    clip: Any,
    faces: Any,
    prior: Any,
    face_index: Any,
    barycentric: Any,
    depth: Any,
    rule: str = "topleft",
    threads: int = 0,
    cancel: CancelFlag | None = None,
) -> None:
    """clip f32 (V, 4), faces i32 (F, 3), all arrays C-contiguous. Into face_index i32 (H, W) the
    face seen + 1, 0 where none; barycentric f32 (H, W, 3) or None; depth f32 (H, W) of Z/W, +inf
    where nothing, or None. prior None or f32 (H, W) of Z/W: nearer fragments are dropped. rule
    "compat" or "topleft", see include/hy3d/raster.h. The GIL is released."""

def interpolate(
    attributes: Any,
    faces: Any,
    face_index: Any,
    barycentric: Any,
    out: Any,
    threads: int = 0,
    cancel: CancelFlag | None = None,
) -> None:
    """attributes f32 (V, C), faces i32 (F, 3), face_index i32 (N), barycentric f32 (N, 3), all
    C-contiguous: out f32 (N, C) gets the attributes of face face_index - 1, 0 where that is 0."""

def scatter(
    values: Any,
    uv: Any,
    weights: Any,
    texture: Any,
    total: Any,
    filter: str = "linear",  # noqa: A002 (a keyword that callers know)
    threads: int = 0,
    cancel: CancelFlag | None = None,
) -> None:
    """values f32 (N, C) at uv f32 (N, 2), u along columns, 0 and 1 the centres of the first and the
    last texel; weights None or f32 (N): texture f32 (H, W, C) gets weighted means (0 where there is
    nothing), total f32 (H, W) the sums of weights. Points outside 0..1 are left out."""

def vertex_normals(
    positions: Any,
    faces: Any,
    normals: Any,
    weighting: str = "area",
    threads: int = 0,
    cancel: CancelFlag | None = None,
) -> None:
    """positions f32 (V, 3), faces i32 (F, 3): normals f32 (V, 3) of length 1, or 0 where there is
    no direction. weighting: "area" or "angle"."""

def inpaint_vertices(
    texture: Any,
    mask: Any,
    positions: Any,
    uvs: Any,
    faces: Any,
    uv_faces: Any,
    method: str = "smooth",
    cancel: CancelFlag | None = None,
) -> int:
    """texture f32 (H, W, C) and mask u8 (H, W) are changed: texels of vertices (v = 1 is row 0)
    where the mask is 0 get colours from neighbours over the mesh. positions f32 (V, 3), uvs f32
    (U, 2), faces and uv_faces i32 (F, 3). Returns how many vertices had no colour and got one."""

def cpu_info() -> dict[str, Any]:
    """level (in use), detected (the best), levels (all up to it), max_threads."""

def blas_info() -> dict[str, Any]:
    """available, text (what it is), error (why there is none). Loads the library."""

def peak_run(threads: int, rounds: int) -> float:
    """Chains of f32 multiply-adds in registers at the CPU level in use, eight grains a thread of
    `rounds` x 768 operations; how many operations that were. The GIL is released. threads 0: the
    context's maximum. rounds: 1 to 2**22."""

def trim() -> None:
    """Frees the workspace that is kept from call to call (256 MB at most)."""
