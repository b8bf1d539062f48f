"""Kills `hy3d-rocm decode --resume` at random moments, starts it again until it ends, compares.

    python tests/long/check_resume.py --count 200 [--seed 1] [--decoder double] [--out npy]

Each trial is a decode that is killed (SIGKILL) one to four times, half of them by the clock, half
at a random call of a function of hy3d_rocm.cli or .decode, also between two calls that take
no time. In the end the file has to have the same bytes as the one of a decode that nobody
disturbed, and its frames are decoded and compared. "double" puts frames that are cheap to make in
the place of the VAE's, so that the kills fall on the writing; "vae" is the command as it is, with a
tiny Wan VAE. A failure prints how to replay that trial.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

SEGMENT_FRAMES = 4  # instead of 32: more borders in a video that is decoded in a second
LATENT_FRAMES = 9  # 33 frames; a decode in chunks goes on in the middle of 35 or more (graph.py)
PATIENCE_SECONDS = 300.0
# What `hy3d-rocm decode` imports on its way.
COMMAND = (
    "cli.decode", "conv.protection", "conv.triton.jit", "decoding.executor", "decoding.families",
    "decoding.backends.triton.backend", "decoding.planning.planner", "frames.sinks", "tools.runs",
)  # fmt: skip


class ResumeError(AssertionError):
    """A decode that was killed ended otherwise than one that was not."""


@dataclass(frozen=True)
class Job:
    """One command line, and what an undisturbed run of it gave."""

    folder: Path
    suffix: str
    decoder: str

    @property
    def out(self) -> Path:
        return self.folder / f"clip.{self.suffix}"

    @property
    def arguments(self) -> list[str]:
        return [
            "decode", str(self.folder / "latents.safetensors"), "--vae", str(self.folder / "vae"),
            "--out", str(self.out), "--strategy", strategy(), "--device", "cpu", "--resume",
            "--overwrite",
        ]  # fmt: skip


def strategy() -> str:
    """The one that gives frames as they are done."""
    from hy3d_rocm.decoding.checks import STRATEGIES

    return "streamed" if "streamed" in STRATEGIES else "tiled"


def make_inputs(folder: Path, latent_frames: int = LATENT_FRAMES) -> None:
    """A tiny Wan VAE as diffusers saves it, and a latent."""
    from diffusers import AutoencoderKLWan
    from safetensors.torch import save_file

    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    vae.save_pretrained(folder / "vae")
    save_file({"latents": torch.randn(1, 4, latent_frames, 2, 3)}, folder / "latents.safetensors")


def cheap_deliver(
    vae: Any, latents: Any, sink: Any, choice: Any, plan: Any = None, progress: Any = None,
    cancel: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """In the place of cli.decode.deliver: frames that follow from the latent, three at a time, from
    the first one wanted on."""
    from hy3d_rocm.decoding.report import DecodeReport

    b, _, t, h, w = latents.shape
    shape = (b, 3, (t - 1) * 4 + 1, h * 8, w * 8)
    frames = latents.repeat_interleave(4, 2)[:, :3, 3:].repeat_interleave(8, 3)
    frames = (frames.repeat_interleave(8, 4) / 3).clamp(-1, 1)
    report = DecodeReport("double", tuple(latents.shape), shape, "cpu", "float32", 0, "")
    try:
        sink.begin(shape, frames.dtype, {"strategy": "double", "level": 1})
        for first in range(sink.first_wanted(0) // 3 * 3, shape[2], 3):
            sink.put(0, first, frames[:, :, first : first + 3])
        return sink.finish(), report
    except BaseException:
        sink.abort()
        raise


def run_command(job: Job, kill_at_call: int | None = None, count_to: Path | None = None) -> int:
    """The command in this process, which is a child. kill_at_call: kills itself at that call of a
    function of hy3d_rocm.cli or .decode; count_to: a file for how many there are."""
    from hy3d_rocm import cli
    from hy3d_rocm.cli import decode
    from hy3d_rocm.frames import sinks

    sinks.SEGMENT_FRAMES = SEGMENT_FRAMES
    if job.decoder == "double":
        decode.deliver = cheap_deliver
    calls = 0
    mine = tuple(str(ROOT / "hy3d_rocm" / name) for name in ("cli", "decode"))

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        if event in ("call", "return") and frame.f_code.co_filename.startswith(mine):
            calls += 1
            if calls == kill_at_call:
                os.kill(os.getpid(), signal.SIGKILL)

    if kill_at_call is not None or count_to is not None:
        sys.setprofile(count)
    code = cli.main(job.arguments)
    sys.setprofile(None)
    if count_to is not None:
        count_to.write_text(str(calls))
    return code


def import_all() -> None:
    """What the command imports on its way, so that children have it from their parent."""
    for name in COMMAND:
        importlib.import_module(f"hy3d_rocm.{name}")


@contextmanager
def forked(work: Callable[[], int], log: Path) -> Iterator[int]:
    """A child that does `work` and ends with its result; what it writes goes to `log`."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            code = work()
        except BaseException:  # noqa: BLE001  the child must never come back into the parent's code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    try:
        yield child
    finally:
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def wait(child: int, seconds: float) -> int | None:
    """A child's wait status once it has ended; None if it has not within `seconds`."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def run_once(job: Job, kill: tuple[str, float] | None, count_to: Path | None = None) -> bool:
    """Starts the command; whether it ended by itself. kill: ("clock", seconds) or ("call", n)."""
    how, when = kill or ("", 0.0)
    log = job.folder / "log"
    call = int(when) if how == "call" else None
    with forked(lambda: run_command(job, call, count_to), log) as child:
        status = wait(child, when if how == "clock" else PATIENCE_SECONDS)
        if status is None:
            if how != "clock":
                raise ResumeError(f"the decode hung: {log.read_text()}")
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and kill is not None:
        return False
    if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != 0:
        raise ResumeError(f"the decode ended with status {status}: {log.read_text()}")
    return True


@dataclass(frozen=True)
class Undisturbed:
    """What a decode gives that nobody kills."""

    content: bytes
    frames: Any
    seconds: float
    calls: int


def undisturbed(job: Job) -> Undisturbed:
    began = time.monotonic()
    run_once(job, None)
    seconds = time.monotonic() - began
    content, frames = job.out.read_bytes(), read_frames(job.out)
    run_once(job, None, job.folder / "calls")
    if job.out.read_bytes() != content:
        raise ResumeError("two undisturbed decodes differ")
    return Undisturbed(content, frames, seconds, int((job.folder / "calls").read_text()))


def read_frames(path: Path) -> Any:
    import numpy as np

    if path.suffix == ".npy":
        return np.load(path)
    import av

    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def trial(job: Job, number: int, seed: int, known: Undisturbed) -> int:
    """One decode, killed and started again until it ends. How often it was killed."""
    import numpy as np

    rng = random.Random(f"{seed} {number}")
    job.out.unlink(missing_ok=True)
    how, killed = rng.choice(("clock", "call")), 0
    for _ in range(rng.randint(1, 4)):
        when = rng.uniform(0, known.seconds) if how == "clock" else rng.randint(1, known.calls)
        if run_once(job, (how, when)):
            break
        killed += 1
        if job.out.exists() and job.out.read_bytes() != known.content:
            raise ResumeError("a file that is not complete had the output's name")
    else:
        run_once(job, None)
    if not np.array_equal(read_frames(job.out), known.frames):
        raise ResumeError("the frames differ from those of an undisturbed decode")
    if job.out.read_bytes() != known.content:
        raise ResumeError("the frames are equal, but not the file's bytes")
    left = [f.name for f in job.folder.iterdir() if ".partial" in f.name]
    if left:
        raise ResumeError(f"a complete decode left {left}")
    return killed


def check(
    folder: Path, count: int, seed: int = 1, decoder: str = "vae", suffix: str = "mp4",
    first: int = 0, latent_frames: int = LATENT_FRAMES,
) -> int:  # fmt: skip
    """`count` trials; how many kills there were in all. ResumeError at the first that fails."""
    import_all()
    torch.set_num_threads(1)  # children are forks: a pool of threads would not be in them
    if not (folder / "vae").exists():
        make_inputs(folder, latent_frames)
    job = Job(folder, suffix, decoder)
    known = undisturbed(job)
    killed = 0
    for number in range(first, first + count):
        try:
            killed += trial(job, number, seed, known)
        except ResumeError as error:
            raise ResumeError(
                f"trial {number} ({decoder}, {suffix}; replay: --seed {seed} --first {number} "
                f"--count 1 --decoder {decoder} --out {suffix} "
                f"--latents {latent_frames}): {error}"
            ) from error
    return killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--latents", type=int, default=LATENT_FRAMES, help="latent frames")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--decoder", choices=("vae", "double"), default="vae")
    parser.add_argument("--out", choices=("mp4", "mkv", "npy"), default="mp4")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="check_resume_"))
    began = time.monotonic()
    try:
        killed = check(
            folder, arguments.count, arguments.seed, arguments.decoder, arguments.out,
            arguments.first, arguments.latents,
        )  # fmt: skip
    except ResumeError as error:
        print(f"FAILED: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{arguments.count} decodes ({arguments.decoder}, {arguments.out}) killed {killed} times: "
        f"the same bytes and frames as undisturbed, {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
