"""`torchrun -m hy3d_rocm decode`: one of several processes that decode together (docs/scale.md)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hy3d_rocm.conv.protection import protect
from hy3d_rocm.decoding.executor import decode_with_report
from hy3d_rocm.decoding.group import TIMEOUT_SECONDS, Group, GroupLostError, group_of, set_variables
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.tools import loading

COMPLETE = "complete"  # there is nothing to decode


def are_several() -> bool:
    """Whether torchrun has started more than this process. Others set WORLD_SIZE and RANK, too."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def joined(arguments: argparse.Namespace) -> Iterator[Group]:
    """The group of all processes. arguments.device becomes this one's: the GPU of its number on
    this machine where no other was asked for."""
    if arguments.device in (None, "auto", "cuda") and torch.cuda.is_available():
        arguments.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    device = loading.pick_device(arguments.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    set_variables()
    backend = None if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_SECONDS))
    group = group_of(dist.group.WORLD, device)
    assert group is not None, "there are several ranks"
    yield group
    if not group.lost:  # one that is lost waits for who is gone
        dist.destroy_process_group()


class Beginning:
    """Around all that comes before a decode: where one rank fails in it, all raise. group: None
    where there is one rank."""

    def __init__(self, group: Group | None) -> None:
        self.group = group
        self._is_over = group is None

    def ready(self, told: str = "") -> str:
        """This rank has what it needs; gives what rank 0 tells."""
        if self.group is None:
            return told
        self._is_over = True
        try:
            first: str = self.group.meet("what is decoded", values=told)[0]
        except GroupLostError:
            if self.group.rank:
                raise
            return told  # the decode says it, and is done alone
        return first

    def __enter__(self) -> Beginning:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.group is not None and isinstance(error, Exception) and not self._is_over:
            self.group.meet("what is decoded", error)


def follow(
    beginning: Beginning, vae: Any, latents: Any, arguments: argparse.Namespace, cancel: Any
) -> None:
    """The decode, on a rank that gets no frames."""
    if beginning.ready() == COMPLETE:
        return
    options = DecodeOptions(chunk_size=arguments.chunk_size)
    with protect():
        decode_with_report(
            vae, latents, arguments.budget, arguments.strategy, arguments.precision,
            cancel=cancel, options=options, group=beginning.group,
        )  # fmt: skip
