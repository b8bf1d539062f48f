"""The sections of one video: weights placed before each, memory measured, a section repeated.

A section that runs out of memory is run again with more left free. It begins where it began the
first time (the caller puts its random generator and its caches back), so the video is the same;
the sections before it are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from hy3d_rocm.conv.errors import first_line, is_out_of_memory
from hy3d_rocm.framepack.card import Card
from hy3d_rocm.framepack.preservation import Preservation, Section, after
from hy3d_rocm.framepack.residency import Part, Placed, place
from hy3d_rocm.framepack.residency import move as move_part
from hy3d_rocm.units import size_text

logger = logging.getLogger("hy3d_rocm")

Answer = TypeVar("Answer")


class SectionRunner:
    """Runs the sections of one video on one card.

    parts: of the transformer (parts_of). state: what to leave free; it is replaced after each
    section. offload: where weights wait. what: what one of them is called in the log.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        device: torch.device,
        offload: torch.device,
        card: Card,
        state: Preservation,
        move: Callable[[Part, torch.device], None] = move_part,
        what: str = "section",
    ) -> None:
        self.parts = parts
        self.device = device
        self.offload = offload
        self.card = card
        self.state = state
        self.sections = 0
        self.repeats = 0
        self._move = move
        self._what = what
        self._said = ""

    def place(self, more_bytes: int = 0) -> Placed:
        """Has as many weights on the card as the state allows, and says so if it is new.

        more_bytes: to be left free too, for what is yet to be loaded.
        """
        placed = place(
            self.parts, self.device, self.offload, self.state.preserved_bytes + more_bytes,
            self.card.free, self.card.empty, self._move,
        )  # fmt: skip
        line = (
            f"{self.state.line()}; {size_text(placed.resident_bytes)} of the transformer's "
            f"{size_text(placed.total_bytes)} stay on {self.device}"
        )
        if line != self._said:
            self._said = line
            logger.info("%s", line)
        return placed

    def run(self, section: Callable[[], Answer], restore: Callable[[], None]) -> Answer:
        """What `section` answers; again after `restore` while it runs out of memory and there is
        more to give. Any other error, and the last of these, goes on."""
        while True:
            failure, measured = "", False
            try:
                self.place()
                self.card.start()
                measured = True
                answer = section()
            except Exception as error:
                if self.state.exhausted or not is_out_of_memory(error):
                    raise
                failure = first_line(error)
            # Not in the except block: there the error holds the tensors of the failed section.
            need = self.card.need() if measured else 0
            if not failure:
                self.sections += 1
                self.state = after(self.state, Section(need, self.card.retries()))
                return answer
            self._again(failure, need)
            restore()

    def _again(self, failure: str, need: int) -> None:
        self.card.empty()
        self.repeats += 1
        self.state = after(self.state, Section(need, out_of_memory=True))
        logger.warning(
            "hy3d_rocm: %s %d ran out of memory (%s): it is run again, with %s left free; "
            "what was made before is kept",
            self._what, self.sections + 1, failure, size_text(self.state.preserved_bytes),
        )  # fmt: skip
