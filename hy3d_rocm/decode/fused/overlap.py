"""Rows of the next box are made beside the products of this one, on a stream of their own.

The products leave whole compute units idle while their last tiles end; what fills them then is the
copy that would come next. Two boxes' rows share the workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from hy3d_rocm.decode.fused.launching import Operand
from hy3d_rocm.decode.fused.work import Work


class Beside:
    """A second stream of a GPU and the events between it and the caller's.

    is_first: its programs go before those of the caller's stream that have not begun.
    """

    def __init__(self, device: int, is_first: bool) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=-1 if is_first else 0)  # type: ignore[no-untyped-call]
        self.loaded = _event()
        self.used = (_event(), _event())

    def run(self, made: Work, operands: Mapping[str, Operand], launch: Callable[..., None]) -> None:
        """All launches. Whatever the caller's stream does afterwards comes after all of them: it
        waited for each box's rows."""
        main = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(main)
        box, is_loading = 0, False
        for item in made.launches:
            if item.kernel == "load_rows":
                if not is_loading and box >= 2:
                    self.stream.wait_event(self.used[box % 2])
                is_loading = True
                launch(item, operands, self.device, self.stream)
                continue
            if is_loading:
                self.loaded.record(self.stream)
                main.wait_event(self.loaded)
            launch(item, operands, self.device)
            if is_loading:
                self.used[box % 2].record(main)
                box, is_loading = box + 1, False


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
