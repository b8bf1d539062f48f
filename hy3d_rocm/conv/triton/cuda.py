"""Kernels on NVIDIA's cards: tensor descriptors (on Hopper; see configs.py), and a shorter way to
Triton's launcher, since small layers take as long as their host.

Triton 3.6's own launcher encodes each descriptor anew and looks at all arguments for more of them,
some microseconds a launch. Here its C launcher is called with what its function made of a
descriptor at the same address before. Where anything looks otherwise, its launcher does everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hy3d_rocm.conv.triton.item import Block, Launch

# A caching allocator gives the same few addresses again and again.
_KEPT = 8


class Base:
    """An address where a tensor is expected."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def descriptor(base: Any, block: Block) -> Any:
    """A TensorDescriptor without its checks, which look at a real tensor and take their time."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    made = TensorDescriptor.__new__(TensorDescriptor)
    made.base, made.padding = base, "zero"
    made.shape, made.strides, made.block_shape = block
    return made


def bind(
    item: Launch, compiled: Any, at: Sequence[tuple[int, int]]
) -> Callable[[Sequence[int], int], None] | None:
    """A compiled kernel as a function of addresses and stream, or None where this Triton isn't one
    whose launcher is known. at: as in jit.bind.
    """
    known = _launcher_of(compiled)
    if known is None:
        return None
    launch, head = known
    (x, y, z), rest = item.grid, (*item.numbers, *item.constants)
    if not item.blocks:

        def call(addresses: Sequence[int], stream: int) -> None:
            pointers = [addresses[number] + offset for number, offset in at]
            launch(x, y, z, stream, *head, *pointers, *rest)

        return call
    found = _expanded(launch, item)
    if found is None or len(item.blocks) != 2:
        return None
    launch_c, (first, second) = found
    (n0, d0), (n1, d1), *others = at

    def call_with_descriptors(addresses: Sequence[int], stream: int) -> None:
        a, b = addresses[n0] + d0, addresses[n1] + d1
        pointers = [addresses[number] + offset for number, offset in others]
        launch_c(
            x, y, z, stream, *head, *(first.get(a) or first.make(a)),
            *(second.get(b) or second.make(b)), *pointers, *rest,
        )  # fmt: skip

    return call_with_descriptors


class _Expanded(dict[int, list[Any]]):
    """The arguments that Triton makes of one of a launch's descriptors, by address."""

    def __init__(self, expand: Callable[[Any, Any], list[Any]], block: Block, facts: Any) -> None:
        super().__init__()
        self._expand, self._block, self._facts = expand, block, facts

    def make(self, address: int) -> list[Any]:
        if len(self) >= _KEPT:
            self.clear()
        made = self._expand(descriptor(Base(address), self._block), self._facts)
        self[address] = made
        return made


def _launcher_of(compiled: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """What the CudaLauncher of Triton 3.6 calls, and with what between stream and arguments. None
    for any other, and where it allocates memory for each launch.
    """
    try:
        import triton
        from triton.backends.nvidia import driver

        run = compiled.run
        is_known = triton.__version__.startswith("3.6.") and type(run) is driver.CudaLauncher
        if not is_known or run.global_scratch_size or run.profile_scratch_size:
            return None
        head = (
            compiled.function, run.launch_cooperative_grid, run.launch_pdl, None, None,
            compiled.packed_metadata, None, None, None,
        )  # fmt: skip
        return run.launch, head
    except (ImportError, AttributeError):
        return None


def _expanded(launch: Any, item: Launch) -> tuple[Any, list[_Expanded]] | None:
    """What is wrapped for descriptors: the C launcher, and what expands each descriptor. None where
    this looks otherwise than in Triton 3.6.
    """
    from triton.backends.nvidia import driver

    try:
        names = launch.__code__.co_freevars
        cells = [cell.cell_contents for cell in launch.__closure__]
        inside = dict(zip(names, cells, strict=True))
        facts, expand = inside["tensordesc_meta"], driver.make_tensordesc_arg
        count = len(item.blocks)
        if (
            inside["tensordesc_indices"] != set(range(count))
            or len(facts) != count
            or None in facts
        ):
            return None
        pairs = zip(item.blocks, facts, strict=True)
        return inside["launcher"], [_Expanded(expand, block, fact) for block, fact in pairs]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
