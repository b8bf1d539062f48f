"""Tensor descriptors, which conv_rows reads through on Hopper (never on AMD: see configs.py).

Triton's own launcher encodes each descriptor anew and looks at all arguments for more of them, some
10 us a launch. Triton 3.6 is short-cut here: what its functions make of a descriptor is kept by
address, and its C launcher is called with that. Where anything of it looks otherwise, its launcher
does everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hy3d_rocm.conv.triton.jit import Launch

Block = tuple[list[int], list[int], list[int]]  # sizes, strides, block

# A caching allocator gives the same few addresses again and again.
_KEPT = 16


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
    """A compiled kernel with two descriptors as a function of addresses and stream, or None where
    this Triton isn't one whose launcher is known. at: as in jit.bind.
    """
    found = _launcher_of(compiled, len(item.blocks))
    if found is None:
        return None
    launch, head, expand, metas = found
    function, packed = compiled.function, compiled.packed_metadata
    (x, y, z), rest = item.grid, (*item.numbers, *item.constants)
    (n0, d0), (n1, d1), *others = at
    kept: list[dict[int, list[Any]]] = [{}, {}]

    def made(i: int, address: int) -> list[Any]:
        if len(kept[i]) >= _KEPT:
            kept[i] = {}
        arguments: list[Any] = expand(descriptor(Base(address), item.blocks[i]), metas[i])
        kept[i][address] = arguments
        return arguments

    def call(addresses: Sequence[int], stream: int) -> None:
        first, second = addresses[n0] + d0, addresses[n1] + d1
        launch(
            x, y, z, stream, function, *head, packed, None, None, None,
            *(kept[0].get(first) or made(0, first)), *(kept[1].get(second) or made(1, second)),
            *[addresses[number] + offset for number, offset in others], *rest,
        )  # fmt: skip

    return call


def _launcher_of(compiled: Any, count: int) -> tuple[Any, tuple[Any, ...], Any, Any] | None:
    """Of Triton 3.6's CudaLauncher: the C function, what it is called with after the kernel, what
    expands a descriptor to arguments, and the descriptors' facts. None for anything else.
    """
    try:
        import triton
        from triton.backends.nvidia import driver

        run = compiled.run
        if not triton.__version__.startswith("3.6.") or type(run) is not driver.CudaLauncher:
            return None
        if run.global_scratch_size or run.profile_scratch_size:
            return None  # it allocates memory for each launch
        names = run.launch.__code__.co_freevars
        cells = [cell.cell_contents for cell in run.launch.__closure__]
        inside = dict(zip(names, cells, strict=True))
        metas = inside["tensordesc_meta"]
        if inside["tensordesc_indices"] != set(range(count)) or len(metas) != count or count != 2:
            return None
        if any(meta is None for meta in metas):
            return None
        head = (run.launch_cooperative_grid, run.launch_pdl, None, None)
        return inside["launcher"], head, driver.make_tensordesc_arg, metas
    except (ImportError, AttributeError, KeyError, TypeError, ValueError):
        return None
