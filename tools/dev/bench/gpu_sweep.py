"""Every tile that the Triton tier offers for a layer, timed beside the one that it takes."""

from __future__ import annotations

import functools

from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.tune.measure import Timed, Watch, attempt, interleave
from tools.dev.bench.gpu_cells import Cell

# The name under which the tier's own choice takes part.
_TAKEN = ""


def sweep(cell: Cell, call: ConvCall, watch: Watch, series_s: float) -> None:
    """Fills the cell's `sweep` and `chosen_tiles`; leaves them where the tier refuses the call."""
    from hy3d_rocm.conv.triton import launch

    spec = call.spec
    if launch.refusal(spec) is not None:
        return
    guess, others = launch.candidates(call)
    cell.chosen_tiles = tuple(map(str, guess))
    functions = {_TAKEN: functools.partial(launch.run, call)}
    for config in (*guess, *others):
        functions[str(config)] = functools.partial(launch.run, call, config)
    timed = {name: Timed() for name in functions}
    for name, function in functions.items():
        attempt(timed[name], function, spec.device)  # compiled, or known not to run
    running = {n: f for n, f in functions.items() if timed[n].reason is None}
    interleave(running, timed, watch, spec.device, series_s)
    cell.sweep = {n: t.seconds for n, t in timed.items() if t.seconds is not None}


def sweep_text(cell: Cell) -> str:
    """'took 256x128x64w8s4g8, 5.31 ms; best 128x256x64w8s4g8, 5.10 ms (4 % lost); ...'."""
    taken = cell.sweep.get(_TAKEN)
    tiles = sorted((s, name) for name, s in cell.sweep.items() if name != _TAKEN)
    if taken is None or not tiles:
        return "no tile ran"
    best, name = tiles[0]
    others = ", ".join(f"{n} {s * 1e3:.3g}" for s, n in tiles[1:6])
    took = " and ".join(cell.chosen_tiles)
    return (
        f"took {took}, {taken * 1e3:.3g} ms; best {name}, {best * 1e3:.3g} ms"
        f" ({max(0.0, taken / best - 1):.0%} lost); then {others or 'none'}"
    )
