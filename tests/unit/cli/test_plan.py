"""`hy3d-rocm plan`: candidates and programs, without a GPU and without weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm import _native, cli  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not _native.available, reason="programs are the C core's"),
]

Capture = pytest.CaptureFixture[str]
SMALL = ("--latent", "3x8x8")
NO_LIMIT = 1 << 40


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """Folders that hold a tiny VAE's config.json, and nothing else."""

    def make(kind: str) -> str:
        vae = tiny_vae(kind)
        vae.save_config(tmp_path / kind)
        assert [path.name for path in (tmp_path / kind).iterdir()] == ["config.json"]
        return str(tmp_path / kind)

    return make


def described(capsys: Capture, *words: str, code: int = 0) -> dict[str, Any]:
    assert cli.main(["plan", *words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def job_of(kind: str, shape: tuple[int, int, int], device: str) -> Any:
    from hy3d_rocm.decoding.families import family_for
    from hy3d_rocm.decoding.planning.jobs import Job, best_backend, host_backend

    family = family_for(tiny_vae(kind))
    place, dtype = torch.device(device), torch.float32
    backend = best_backend(place, dtype) if device == "cpu" else host_backend
    return Job(family, (1, family.latent_channels, *shape), place, dtype, dtype, backend)


def budget_of(device: int, host: int, unified: bool) -> Any:
    from hy3d_rocm.decoding.memory.budget import Budget

    return Budget(device, host, unified, "given")


def wide_job() -> Any:
    """Of HunyuanVideo's real width, so that there is something to spill."""
    from hy3d_rocm.decoding.families import family_for
    from hy3d_rocm.decoding.planning.jobs import Job, host_backend
    from hy3d_rocm.tools.loading import bare_vae

    family, half = family_for(bare_vae("hunyuan").to(torch.bfloat16)), torch.bfloat16
    return Job(family, (1, 16, 9, 40, 64), torch.device("cuda"), half, half, host_backend)


# What the table says of memory


@pytest.mark.parametrize("kind", ["hunyuan", "wan", "hunyuan15", "ltx"])
@pytest.mark.parametrize("strategy", ["streamed", "tiled", "cpu"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_largest_that_the_table_counts_is_the_peak_that_the_candidate_states(
    kind: str, strategy: str, device: str
) -> None:
    from hy3d_rocm.cli.plan import sections_of
    from hy3d_rocm.decoding.planning.compiled import Compiled

    job = job_of(kind, (5, 8, 8), device)
    compiled = Compiled(job, budget_of(NO_LIMIT, NO_LIMIT, device == "cpu"), strategy)
    candidate = compiled.program.candidate
    sections = list(sections_of(compiled))
    steps = [step for section in sections for step in section["steps"]]
    beside = strategy == "cpu" and device != "cpu"
    stated = candidate["host_bytes" if beside else "device_bytes"]
    assert max(section["peak_bytes"] for section in sections) == stated
    assert steps[0]["operation"] == "enter"
    if device != "cpu" and not beside:
        assert max(step["host_bytes"] for step in steps) == candidate["host_bytes"]


def test_the_table_follows_slices_that_leave_for_the_host() -> None:
    from hy3d_rocm.cli.plan import sections_of, table
    from hy3d_rocm.decoding.planning.compiled import Compiled

    job = wide_job()
    full = Compiled(job, budget_of(NO_LIMIT, NO_LIMIT, False), "streamed").plan()
    room = budget_of(full.need.device_bytes * 2 // 3, NO_LIMIT, False)
    compiled = Compiled(job, room, "streamed")
    candidate = compiled.program.candidate
    assert candidate["stored_bytes"] > 0
    (section,) = sections_of(compiled)
    assert section["peak_bytes"] == candidate["device_bytes"]
    assert max(step["host_bytes"] for step in section["steps"]) == candidate["host_bytes"]
    moved = [s["operation"] for s in section["steps"] if s["operation"] in ("store", "load")]
    assert {"store", "load"} == set(moved)
    lines = list(table(compiled))
    assert lines[0].startswith("section 0: all of it, of 9x40x64")
    assert len(lines) == len(section["steps"]) + 3  # heading, names of columns, sums
    assert re.search(r"to the host, [\d.]+ [kMG]?B back$", lines[-1])


def test_every_slice_of_the_table_is_made_before_it_is_read_and_freed_once() -> None:
    from hy3d_rocm.cli.plan import sections_of
    from hy3d_rocm.decoding.planning.compiled import Compiled

    room = budget_of(NO_LIMIT, NO_LIMIT, True)
    for section in sections_of(Compiled(job_of("wan", (5, 8, 8), "cpu"), room, "tiled")):
        there: set[int] = set()
        for step in section["steps"]:
            assert set(step["reads"]) <= there, step
            if step["makes"] is not None and step["makes"] >= 0:
                there.add(step["makes"])
            assert set(step["frees"]) <= there, step
            there -= set(step["frees"])
        assert not there


# The command


@pytest.mark.parametrize("name", ["hunyuan", "hunyuan15", "wan21", "wan22", "ltx", "image"])
def test_each_kind_is_planned_by_name_on_a_gpu_that_is_not_here(name: str, capsys: Capture) -> None:
    latent = "1x8x8" if name == "image" else "2x8x8"
    found = described(capsys, "--vae", name, "--latent", latent, "--device", "gpu")
    assert found["taken"] in [c["way"] for c in found["candidates"] if c["taken"] and c["fits"]]
    assert {c["strategy"] for c in found["candidates"]} == {"whole", "streamed", "tiled", "cpu"}
    assert all(c["seconds"] > 0 for c in found["candidates"])
    assert found["rules"].startswith("torch's operators' rules on a GPU")
    assert (found["device"], found["dtype"]) == ("cuda", "bfloat16")


def test_seedvr2s_is_planned_without_the_code_that_no_package_has(capsys: Capture) -> None:
    found = described(capsys, "--vae", "seedvr2", "--latent", "2x8x8", "--device", "gpu")
    assert (found["latent_shape"], found["out_shape"]) == ([1, 16, 2, 8, 8], [1, 3, 5, 64, 64])
    assert found["taken"] == "streamed in chunks of 2 latent frames"
    whole, *others = found["candidates"]
    assert (whole["strategy"], whole["fits"]) == ("whole", False)
    assert "SeedVR2's own code is not here" in whole["note"]
    assert {c["strategy"] for c in others} == {"streamed", "tiled", "cpu"}
    assert all(c["seconds"] > 0 for c in others)


def test_the_demo_is_planned_by_its_frames_and_size(capsys: Capture) -> None:
    found = described(capsys, "--vae", "demo", "--frames", "6", "--size", "70x60")
    assert found["latent_shape"] == [1, 16, 3, 8, 9]
    assert found["out_shape"] == [1, 3, 9, 64, 72]


def test_a_folder_with_a_config_alone_is_planned_as_its_decode_is(
    folder: Any, capsys: Capture
) -> None:
    from hy3d_rocm.decoding.executor import decode_with_report

    found = described(capsys, "--vae", folder("wan"), *SMALL, "--budget", "1GB", "--program")
    vae = tiny_vae("wan")
    report = decode_with_report(vae, tiny_latents(vae, 3, 8, 8), "1GB")[1]
    assert found["taken"] == report.plan["way"]
    (taken,) = (c for c in found["candidates"] if c["taken"])
    assert taken["device_bytes"] == report.plan["device_bytes"]
    steps = found["program"][0]["steps"]
    assert [s["step"] for s in steps] == list(range(len(steps)))
    assert {"reads", "makes", "frees", "workspace_bytes", "device_bytes"} <= set(steps[0])


def test_what_is_too_small_exits_with_1_and_names_what_would_do(
    folder: Any, capsys: Capture
) -> None:
    assert cli.main(["plan", "--vae", folder("wan"), *SMALL, "--budget", "1MB"]) == 1
    said = capsys.readouterr()
    assert "nothing is taken: no strategy fits the budget of 1.00 MB" in said.out
    assert "does not fit, from a budget of " in said.out
    assert said.err.count("\n") == 1
    least = int(re.findall(r"at least (\d+) bytes", said.err)[0])
    assert cli.main(["plan", "--vae", folder("wan"), *SMALL, "--budget", str(least)]) == 0


def test_a_share_is_of_this_machines_memory(folder: Any, capsys: Capture) -> None:
    assert cli.main(["plan", "--vae", folder("wan"), *SMALL, "--budget", "5%"]) == 0
    assert re.search(r"budget: .* 0\.05 of the .* GB of the host", capsys.readouterr().out)


def test_transfers_and_the_host_budget_are_told(capsys: Capture) -> None:
    words = ["plan", "--vae", "hunyuan", "--latent", "9x40x64", "--device", "gpu",
             "--strategy", "streamed"]  # fmt: skip
    found = described(capsys, *words[1:])
    full = next(c for c in found["candidates"] if c["taken"])
    words += ["--budget", str(full["device_bytes"] * 2 // 3)]
    assert cli.main(words) == 0
    taken = next(x for x in capsys.readouterr().out.splitlines() if x.endswith(", taken"))
    assert re.search(r"estimated [\d.e-]+ s, [\d.]+ [kMG]?B to the host and [\d.]+ .B back", taken)
    assert cli.main([*words, "--host-budget", "1MB"]) == 1
    assert re.search(r"from a budget of .* and of .* on the host", capsys.readouterr().out)
    assert cli.main([*words, "--no-offload"]) == 1
    said = capsys.readouterr()
    assert " to the host and " not in said.out
    assert " TB" not in said.out + said.err, "what has no limit is no size"


def test_an_architecture_has_the_fused_kernels_rules(folder: Any, capsys: Capture) -> None:
    words = ("--vae", folder("wan"), *SMALL)
    fused = described(capsys, *words, "--device", "gfx1100")
    assert fused["rules"] == "the fused kernels' rules on gfx1100"
    assert fused["candidates"][0]["strategy"] == "streamed", "whole would be slower and larger"
    other = described(capsys, *words, "--device", "gfx9999")
    assert other["rules"].endswith("(the kernels were not checked for bf16 on gfx9999)")
    assert other["candidates"][0]["strategy"] == "whole"


def test_chunk_size_is_said_to_be_ignored_where_it_means_nothing(
    folder: Any, capsys: Capture
) -> None:
    for kind, says in (("hunyuan", True), ("wan", False)):
        words = ["plan", "--vae", folder(kind), *SMALL, "--strategy", "streamed"]
        assert cli.main([*words, "--chunk-size", "2"]) == 0
        out = capsys.readouterr().out
        assert ("chunk_size=2 is ignored: the norms of HunyuanVideo see the whole" in out) is says
        assert ("in chunks of 2 latent frames" in out) is not says
        assert cli.main([*words, "--chunk-size", "auto"]) == 0
        assert "ignored" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--budget parsecs", r"budget is 'parsecs'; write it like \"6GB\""),
        ("--budget=-5GB", r"budget is '-5GB'; write it like"),
        ("--budget 0", r"budget is '0'; give more than nothing. A share is written"),
        ("--budget 80% --device gpu", r"a share needs a GPU .*: give a size such as 6GB"),
        ("--host-budget 1GB", r"on the CPU all memory is one budget: give --budget"),
        ("--host-budget=-1 --device gpu", r"write it like"),
        ("--latent 0x8x8", r"give three whole numbers of 1 or more, frames x rows x columns"),
        ("--latent 8x8", r"give three whole numbers of 1 or more, frames x rows x columns"),
        ("--latent 1x1x4x2x8x8", r"give three whole numbers"),
        ("--latent 7x3x8x8", r"has 7 channels, but this Wan VAE decodes 4: give 3x8x8"),
        ("--device tpu", r"give cpu, gpu, or the name of an architecture such as gfx1100"),
        ("--vae nothing", r"give hunyuan, .*demo, or a folder with a config.json"),
    ],
)
def test_bad_input_is_one_sentence_with_what_would_do(
    words: str, sentence: str, folder: Any, capsys: Capture
) -> None:
    given = ["--vae", folder("wan"), *SMALL, *words.split()]
    assert cli.main(["plan", *given]) == 1
    said = capsys.readouterr()
    assert re.search(sentence, said.err), said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_latent_of_several_frames_is_none_of_an_image_vae(capsys: Capture) -> None:
    assert cli.main(["plan", "--vae", "image", "--latent", "2x8x8"]) == 1
    assert "makes single images: give 1x8x8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--strategy", "fast", "choose from"),
        ("--chunk-size", "0", 'give a whole number of 1 or more, or "auto"'),
    ],
)
def test_a_wrong_word_is_argparses_sentence(
    option: str, value: str, sentence: str, folder: Any, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["plan", "--vae", folder("wan"), option, value])
    assert exit_.value.code == 2
    assert sentence in capsys.readouterr().err


def test_an_encode_in_tiles_is_refused_in_a_sentence() -> None:
    from decode_doubles import tiny_pixels

    from hy3d_rocm.decoding.executor import encode_with_report

    with pytest.raises(ValueError, match=r'"tiled" can\'t be taken for an encode: give "streamed"'):
        encode_with_report(tiny_vae("wan"), tiny_pixels(5, 64, 64), strategy="tiled")


# chunk_size in Python


def test_chunk_size_auto_is_as_if_it_was_not_given() -> None:
    from hy3d_rocm.decoding.report import DecodeOptions

    assert DecodeOptions(chunk_size="auto") == DecodeOptions()
    with pytest.raises(ValueError, match=r"chunk_size is 'some'; give a .* or \"auto\""):
        DecodeOptions(chunk_size="some")  # type: ignore[arg-type]


def test_a_decode_of_hunyuan_video_says_that_chunk_size_means_nothing_from_the_first_on() -> None:
    from hy3d_rocm.decoding.executor import decode_with_report
    from hy3d_rocm.decoding.report import DecodeOptions

    vae = tiny_vae("hunyuan")
    z = tiny_latents(vae, 2, 4, 4)
    for _ in range(2):
        report = decode_with_report(
            vae, z, strategy="streamed", options=DecodeOptions(chunk_size=2)
        )[1]  # fmt: skip
        (said,) = report.ignored
        assert said.startswith("chunk_size=2 is ignored: the norms of HunyuanVideo see the whole")
        report = decode_with_report(
            vae, z, strategy="streamed", options=DecodeOptions(chunk_size="auto")
        )[1]  # fmt: skip
        assert report.ignored == []
