"""After an exception: whether anything can still be done, and the sentence where nothing can."""

from __future__ import annotations

import sys

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv import errors
from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.errors import Classified, Kind
from hy3d_rocm.conv.recording import recorder
from hy3d_rocm.conv.stats import Named


def strip(error: Exception) -> Exception:
    """Drops the frames of an exception that is kept: they hold the call's tensors.

    What the caller was handling before (its context) is the caller's and stays as it is.
    """
    outer = sys.exc_info()[1]
    chain: BaseException | None = error
    while chain is not None and chain is not outer:
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__
    return error


def ask_device(call: ConvCall) -> list[Exception]:
    """The error of a lost device, if it is lost.

    After a kernel has crashed, cuDNN fails first, with a status that says nothing (seen:
    CUDNN_STATUS_*, while the next call of the runtime says "device-side assert triggered").
    """
    if call.spec.device.type != "cuda" or not memory.gpu_in_use():
        return []
    try:
        if not is_capturing(call.spec.device):
            torch.cuda.synchronize(call.spec.device)
    except RuntimeError as error:
        found = errors.classify(error)
        if found is not None and found.kind is Kind.DEVICE_LOST:
            return [error]
    return []


def is_capturing(device: torch.device) -> bool:
    """Inside the capture of a CUDA or HIP graph on the device's stream: nothing may wait for it."""
    if device.type != "cuda" or not memory.gpu_in_use():
        return False
    with torch.cuda.device(device):  # the current stream is that of the current device
        return torch.cuda.is_current_stream_capturing()


def can_retry(call: ConvCall) -> bool:
    """Not where something is recorded: a plain retry would lose what it records."""
    return not recorder() and not is_capturing(call.spec.device)


def translate(error: Exception, found: Classified, what: Named, places: str) -> Exception | None:
    """The sentence for a device error, chained to the original; None where there is none."""
    sentence: Exception | None = None
    if found.kind is Kind.DEVICE_MISMATCH:
        sentence = errors.mismatch_error(str(what), places, error)
    elif found.kind is Kind.DEVICE_LOST:
        sentence = errors.lost_error(str(what), found.reason, error)
    if sentence is not None:
        sentence.__cause__ = error
    return sentence
