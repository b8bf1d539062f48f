"""hy3d-rocm optimize, validate and bench decode --cases on a VAE of a few channels, and what they
recommend and judge from given figures."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiles_of_level, tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm import cli  # noqa: E402
from hy3d_rocm.bench import decode_cases  # noqa: E402
from hy3d_rocm.capture import capturing  # noqa: E402
from hy3d_rocm.decoding.planning import compiled  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402
from hy3d_rocm.tools import optimize, runs, validate  # noqa: E402
from hy3d_rocm.tools.optimize import Choices  # noqa: E402
from hy3d_rocm.tools.runs import Outcome, Setting, exact_frames, run_once  # noqa: E402
from hy3d_rocm.units import GB, MB  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def subject() -> runs.Subject:
    vae = tiny_vae("wan")
    return runs.Subject(vae, tiny_latents(vae, 3, 5, 6), "a tiny VAE", True)


@pytest.mark.parametrize(
    "command", ["optimize", "validate", "bench decode --cases", "capture no.latent --vae demo"]
)
def test_a_budget_that_is_none_is_refused_before_anything_is_loaded(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "--budget", "parsecs"])
    assert ended.value.code == 2
    assert "budget is 'parsecs'; write it like \"6GB\"" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("validate --strategies=,", "--strategies: give some of whole, streamed, tiled, cpu"),
        ("optimize --precisions=,", "--precisions: give some of auto, fp32, bf16, fp16"),
        ("validate LATENT", "is no capture: latents.json is not beside it"),
        ("validate --vae demo --size 32x32 --frames 5 --out LATENT/below", "Not a directory"),
        ("capture LATENT --vae demo", "say which with --tensor"),
        ("capture LATENT --vae demo --tensor c", "has no tensor 'c'; it has a, b"),
        ("capture --run no-such-program", "no-such-program can't be started: No such file"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_computed(
    words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from safetensors.torch import save_file

    for module in (optimize, validate):
        monkeypatch.setattr(module, module.__name__.rpartition(".")[2], None)  # what computes
    latent = tmp_path / "latents.safetensors"
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, latent)
    assert cli.main(words.replace("LATENT", str(latent)).split()) == 1
    assert sentence in capsys.readouterr().err


def test_capture_counts_what_a_program_has_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--run", sys.executable, "-c", "import sys; sys.exit(7)"]
    assert cli.main(["capture", "--out", str(tmp_path), *more]) == 7
    assert f"0 captures of {sys.executable} are in {tmp_path}" in capsys.readouterr().out


# --- optimize -------------------------------------------------------------------------------


def row(
    strategy: str, seconds: float, peak: int, psnr: float, error: str | None = None, **more: Any
) -> optimize.Row:
    setting = Setting(strategy, strategy, **more)
    outcome = Outcome(setting, seconds, peak_bytes=peak, error=error)
    outcome.kind = "failed" if error else "done"
    return optimize.Row(setting, outcome, [] if error else [seconds], psnr)


def sweep(*rows: optimize.Row, **more: Any) -> optimize.Sweep:
    shape = (1, 3, 17, 320, 320)
    return optimize.Sweep("a VAE", shape, "bfloat16", "exact: whole", list(rows), **more)


def test_the_fastest_without_loss_is_recommended_and_of_equals_the_smaller() -> None:
    found = optimize.recommend(
        sweep(
            row("whole", 2.0, 40 * GB, 46.0),
            row("streamed", 1.0, 9 * GB, 46.1),
            row("streamed", 1.04, 8 * GB, 45.6),
            row("tiled", 0.5, 2 * GB, 44.0),  # faster, but loses 2 dB
        )
    )
    assert found.setting is not None
    assert found.sentences[0].startswith(f"Set {found.setting.call()}: 1.04 s in 8.0 GB")
    text = " ".join(found.sentences)
    assert "own decode takes 2.00 s" in text
    assert "tiled: 2.0 GB, at 44.0 dB" in text


def test_float32_sums_in_another_order_are_no_loss() -> None:
    found = optimize.recommend(
        sweep(row("whole", 2.0, 4 * GB, math.inf), row("streamed", 1.0, GB, 140.0))
    )
    assert found.setting is not None
    assert found.setting.strategy == "streamed"


def test_what_failed_and_what_was_left_out_is_said_and_nothing_is_recommended_from_nothing() -> (
    None
):
    broken = row("whole", 0.0, 0, math.nan, error="out of memory")
    found = optimize.recommend(sweep(broken, row("streamed", 1.0, GB, 50.0), left_out=["tiled"]))
    assert any("whole (failed)" in line for line in found.sentences)
    assert any("raise --limit" in line for line in found.sentences)
    assert optimize.recommend(sweep(broken)).setting is None


def test_a_recommendation_is_a_call_that_python_takes() -> None:
    setting = Setting("x", "streamed", "bf16", "6GB", DecodeOptions(chunk_size=4))
    calls: list[tuple[Any, Any]] = []
    eval(  # noqa: S307  the sentence that users paste
        setting.call(),
        {
            "decode_with_report": lambda *a, **k: calls.append((a, k)),
            "vae": 1, "latents": 2, "DecodeOptions": DecodeOptions,
        },
    )  # fmt: skip
    assert calls == [
        ((1, 2), {"strategy": "streamed", "precision": "bf16", "budget": "6GB",
                  "options": DecodeOptions(chunk_size=4)})
    ]  # fmt: skip


@dataclass
class Machine:
    """Of a subject what the list of settings looks at."""

    device: Any
    family: Any
    latents: Any


def machine(device: str = "cuda", frames: int = 5, **family: Any) -> Any:
    facts = {"has_global_norms": False, "is_opaque": False, "dtype": torch.bfloat16, "name": "V"}
    latents = torch.empty(1, 4, frames, 8, 8)
    return Machine(torch.device(device), SimpleNamespace(**(facts | family)), latents)


def named(found: list[Setting]) -> dict[str, Setting]:
    assert len({s.name for s in found}) == len(found)
    return {s.name: s for s in found}


def test_a_gpu_is_swept_for_precision_and_all_that_is_chosen_about_memory() -> None:
    subject = machine(has_global_norms=True)
    found = named(optimize.settings_for(subject, Choices(), quarter=700))
    assert {s.precision for s in found.values()} == {"auto", "fp16", "fp32"}  # bf16 is its own
    assert found["streamed cleanup 1"].options == DecodeOptions(cleanup_frequency=1)
    assert found["streamed cleanup 0"].options == DecodeOptions(cleanup_frequency=0)
    assert found["streamed batch of 2"].batch == 2
    assert found["streamed offloading"].options == DecodeOptions(cpu_offload=True)
    assert found["streamed without offload"].options == DecodeOptions(cpu_offload=False)
    assert found["streamed offloading"].budget == 700
    assert found["streamed without offload"].budget == 700
    assert found["auto threshold 0.5"].options == DecodeOptions(memory_threshold=0.5)
    assert found["auto threshold 0.95"].strategy == "auto"
    last = optimize.memory_settings("cuda", Choices(("streamed",)), quarter=700)
    assert list(found.values())[-len(last) :] == last, "what is likely best comes first"
    assert optimize.not_swept(subject.family, "cuda", Choices(("streamed",))) == ()


def test_what_means_nothing_on_a_gpu_is_left_out_with_a_reason() -> None:
    subject = machine()  # norms per position
    found = named(optimize.settings_for(subject, Choices(budget="6GB")))
    assert not [name for name in found if "threshold" in name]
    assert "streamed offloading" in found, "chunks leave for the host, too"
    assert all(s.budget == "6GB" for s in found.values())
    said = " ".join(
        optimize.not_swept(subject.family, "cuda", Choices(("streamed", "tiled"), budget="6GB"))
    )
    assert "cpu_offload" not in said
    assert "memory_threshold is not tried" in said
    only = machine(has_global_norms=True)
    found = named(optimize.settings_for(only, Choices(("whole",))))
    assert "whole cleanup 1" in found
    assert not [name for name in found if "offload" in name]
    assert "streamed alone" in optimize.not_swept(only.family, "cuda", Choices(("whole",)))[0]


def test_a_cpu_is_not_swept_for_what_a_gpus_allocator_holds_and_says_so() -> None:
    subject = machine("cpu", has_global_norms=True)
    found = named(optimize.settings_for(subject, Choices()))
    assert {s.precision for s in found.values()} == {"auto"}
    assert optimize.memory_settings("cpu", Choices(("streamed",))) == []
    assert not [
        s for s in found.values() if s.batch > 1 or set(s.changed) - {"slice_bytes", "chunk_size"}
    ]
    said = optimize.not_swept(subject.family, "cpu", Choices(("streamed",), chunks=(2, 4)))
    assert said[0].startswith("chunk_size is ignored by streamed: the norms of V")
    for word in ("cpu_offload", "cleanup_frequency", "memory_threshold", "batch", "fp32"):
        assert word in said[1]
    image = machine("cpu", is_image=True)
    tiled = Choices(("tiled",), chunks=(2,))
    assert "single images" in optimize.not_swept(image.family, "cpu", tiled)[0]


def test_of_equal_figures_the_setting_that_changes_least_is_recommended() -> None:
    changed = DecodeOptions(memory_threshold=0.95)
    found = optimize.recommend(
        sweep(
            row("auto", 1.0, 8 * GB, 46.0, options=changed),
            row("streamed", 1.02, 8 * GB + MB, 46.0),
            row("whole", 1.01, 8 * GB, 46.0, batch=2),
        )
    )
    assert found.setting == Setting("streamed", "streamed")
    faster = optimize.recommend(
        sweep(row("auto", 1.0, 8 * GB, 46.0, options=changed), row("whole", 2.0, 8 * GB, 46.0))
    )
    assert faster.setting is not None
    assert faster.setting.options == changed


def test_a_batch_is_told_in_seconds_of_a_sample_and_frames_of_the_first(
    subject: runs.Subject,
) -> None:
    two = run_once(subject, Setting("two", "streamed", batch=2))
    one = run_once(subject, Setting("one", "streamed"))
    assert two.report is not None
    assert two.report.latent_shape[0] == 2
    assert two.seconds == two.report.seconds / 2
    assert torch.equal(two.frames, one.frames)
    assert "torch.cat([latents] * 2)" in Setting("two", batch=2).call()


def test_a_sweep_measures_all_and_keeps_each_row(subject: runs.Subject) -> None:
    kept: list[int] = []
    found = optimize.optimize(
        subject,
        Choices(("whole", "streamed"), chunks=(1, 2)),
        repeats=2,
        keep=lambda s: kept.append(len(s.rows)),
    )
    assert [r.setting.name for r in found.rows] == [
        "whole", "streamed chunks of 1", "streamed chunks of 2",
    ]  # fmt: skip
    assert kept == [1, 2, 3, 3, 3, 3, 3]
    assert all(len(r.seconds) == 2 for r in found.rows)
    assert found.rows[0].psnr == math.inf
    assert min(r.psnr for r in found.rows) > 100
    assert "chunks of 2" in optimize.sweep_text(found)


def test_the_limit_ends_a_sweep_and_ctrl_c_keeps_what_is_there(
    subject: runs.Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [Setting("a", "whole"), Setting("b", "streamed")]
    monkeypatch.setattr(optimize, "settings_for", lambda *_: settings)
    times = iter([0.0, 1.0, *[99.0] * 50])
    with monkeypatch.context() as patched:
        patched.setattr(optimize, "time", SimpleNamespace(perf_counter=lambda: next(times)))
        late = optimize.optimize(subject, limit=10)
    assert [r.setting.name for r in late.rows] == ["a"]
    assert late.left_out == ["b"]

    class Stop(runs.Listener):
        def say(self, text: str) -> None:
            if text.startswith("a:"):
                raise KeyboardInterrupt

    cut = optimize.optimize(subject, listener=Stop())
    assert cut.interrupted
    assert [r.setting.name for r in cut.rows] == ["a"]


def test_the_reference_is_the_unsplit_decode_in_float32(subject: runs.Subject) -> None:
    with torch.no_grad():
        wanted = subject.vae.decode(subject.latents).sample
    exact = exact_frames(subject)
    assert exact.strategy == "whole"
    assert torch.equal(exact.frames, wanted)


def test_a_decode_that_raises_is_a_row_with_its_reason(subject: runs.Subject) -> None:
    outcome = run_once(subject, Setting("no room", budget=1))
    assert outcome.kind == "refused"
    assert "Give a budget of at least" in str(outcome.error)


# --- validate -------------------------------------------------------------------------------


def test_exact_strategies_pass_and_a_changed_picture_does_not(
    subject: runs.Subject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = validate.validate(subject, ("whole", "streamed"))
    assert good.holds, good.verdicts
    assert good.rows[0].largest == 0.0
    assert validate.draw(good, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000
    json.dumps(validate.validation_dict(good), default=str)

    def spoilt(*args: Any, **kwargs: Any) -> Outcome:
        outcome = run_once(*args, **kwargs)
        outcome.frames[..., 3, 3] += 1e-2 * float(outcome.frames.abs().max())
        return outcome

    changed = SimpleNamespace(**{**vars(runs), "run_once": spoilt})
    monkeypatch.setattr(validate, "runs", changed)
    bad = validate.validate(subject, ("streamed",))
    assert not bad.holds
    assert "FAIL  streamed: largest error" in validate.validation_text(bad)


def test_tiles_are_judged_at_their_borders() -> None:
    vae = tiny_vae("wan")
    wide = runs.Subject(vae, tiny_latents(vae, 2, 6, 16), "wide", True)
    options = DecodeOptions(halo_pixels=0, overlap_pixels=0, min_tile_pixels=8)
    with tiles_of_level(2):
        found = validate.validate(wide, ("whole", "tiled"), budget="4GB", options=options)
    tiled = found.rows[1]
    assert tiled.outcome.error is None
    assert tiled.borders.columns
    assert math.isfinite(tiled.seam_change)
    assert found.rows[0].seam_change == 0.0  # whole, at the same places
    assert any("seams" in text for _, text in found.verdicts)


def test_what_cannot_be_taken_is_said_once_and_nothing_passes_against_it(
    subject: runs.Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a CPU in ComfyUI, where nobody can tell what its attention takes."""

    def told(job: Any, way: Any) -> Any:
        raise ValueError("its attention takes what memory is free")

    monkeypatch.setattr(compiled, "predicted", told)
    subject.family.seen.plans.clear()  # of decodes that could tell
    found = validate.validate(subject, ("whole", "streamed", "tiled"))
    text = validate.validation_text(found)
    why = (
        "the strategy 'whole' can't be taken for this VAE: its attention takes what memory is free"
    )
    assert f"\n(not whole fp32: {why})\n" in text
    assert f"\nwhole was not run: {why}\n" in text
    assert f"\nstreamed: {found.exact.way}, the exact decode itself\n" in text
    assert "whole's" not in text
    judged = [line.split()[1] for line in text.splitlines() if line.startswith(("pass ", "FAIL "))]
    assert judged
    assert set(judged) == {"tiled:"}
    assert found.holds


# --- bench decode --cases -------------------------------------------------------------------


def case_row(case: decode_cases.Case, seconds: float, peak: int, **more: Any) -> Any:
    outcome = Outcome(Setting("ours"), seconds, peak_bytes=peak)
    return decode_cases.CaseRow(case, (case.frames, case.height, case.width), [outcome], **more)


def verdicts(report: decode_cases.CasesReport) -> dict[str, str]:
    return {check.text: check.verdict for check in decode_cases.checks(report)}


def test_each_target_of_the_specification_passes_and_fails_where_it_says() -> None:
    good = decode_cases.CasesReport("Wan", "a card", 1.0, held_bytes=[5, 7, 7, 7])
    good.rows = [
        case_row(case, (case.seconds or 2) - 1, 40 * GB, psnr=46.0, psnr_own=46.4)
        for case in decode_cases.CASES
    ]
    assert set(verdicts(good).values()) == {"pass"}
    assert len(verdicts(good)) == 2 + 1 + 1 + 2 + 1
    bad = decode_cases.CasesReport("Wan", "a card", 1.0, held_bytes=[5, 7, 7, 7 + MB])
    bad.rows = [
        case_row(case, 11.0, 51 * GB, psnr=45.0, psnr_own=46.0) for case in decode_cases.CASES
    ]
    bad.rows[0].outcomes.append(Outcome(Setting("ours"), error="broken", kind="failed"))
    assert set(verdicts(bad).values()) == {"FAIL"}


def test_times_and_peaks_of_smaller_pictures_are_not_judged() -> None:
    small = decode_cases.CasesReport("Wan", "CPU", 0.25)
    small.rows = [case_row(case, 99.0, 99 * GB) for case in decode_cases.CASES]
    found = verdicts(small)
    assert found["33 frames of 320x320"] == found["peak of all cases"] == "no figure"
    assert "are not judged" in decode_cases.cases_text(small)


def test_the_cases_run_on_a_cpu_and_say_how_small(tmp_path: Path) -> None:
    settings = decode_cases.CaseSettings(
        scale=0.05, repeats=1, leak_repeats=4, seconds=60, stress=False
    )
    report = decode_cases.run_cases(tiny_vae("wan"), "tiny", True, settings)
    assert [len(r.ended) for r in report.rows] == [1] * 5
    assert [r.size[0] for r in report.rows] == [1, 5, 17, 33, 33]
    assert len(report.held_bytes) == 4
    found = verdicts(report)
    assert found["single frame: PSNR lost against the VAE's own decode"] == "pass"
    assert "errors in 5 decodes" in found
    assert decode_cases.plot(report, tmp_path / "plot.png") in (True, False)
    json.dumps(decode_cases.cases_dict(report), default=str)


# --- commands -------------------------------------------------------------------------------


def test_optimize_and_validate_of_a_capture_build_its_vae_again(
    subject: runs.Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors")
    with capturing(tmp_path) as written:
        run_once(subject, Setting("x", "whole"))
    common = [str(written[0]), "--device", "cpu", "--out", str(tmp_path / "made")]
    code = cli.main(["optimize", *common, "--strategies", "streamed", "--chunks", "1,2"])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "Set decode_with_report(vae, latents, strategy=" in told
    assert "Weights are random" in told
    code = cli.main(["validate", *common, "--strategies", "whole,streamed"])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "pass  streamed: largest error" in told
    names = sorted(p.suffix for p in (tmp_path / "made").iterdir())
    assert names == [".json", ".json", ".png"]
    for path in (tmp_path / "made").glob("*.json"):
        assert json.loads(path.read_text())["machine"]["versions"]["torch"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["capture"], "give LATENT and --vae, or --run PROGRAM"),
        (["optimize", "--vae", "nothing"], "neither hunyuan, wan, demo nor a folder"),
        (["optimize", "--strategies", "fast"], "'fast' is none of whole, streamed"),
        (["validate", "nowhere.json"], "can't be read"),
        (["validate", "--device", "cuda:99"], "torch sees"),
        (["bench", "decode", "--cases", "--scale", "2", "--device", "cpu"], "give a share above 0"),
    ],
)
def test_what_is_wrong_gets_a_sentence_and_code_1(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 1
    assert said in capsys.readouterr().err


def test_capture_runs_a_program_with_the_variable_set(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import sys

    program = "import os; print('in', os.path.basename(os.environ['HY3D_ROCM_CAPTURE'])); exit(3)"
    code = cli.main(
        ["capture", "--out", str(tmp_path / "here"), "--run", sys.executable, "-c", program]
    )
    assert code == 3
    assert "in here" in capfd.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to one process there")
def test_a_program_that_is_captured_ends_in_its_own_time_at_ctrl_c(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A terminal sends the signal to both."""
    program = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    os.kill(os.getppid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(30)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(1); print('in order', flush=True); exit(3)\n"
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = cli.main(["capture", "--out", str(tmp_path), "--run", sys.executable, "-c", program])
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 3
    said = capfd.readouterr().out
    assert "in order" in said
    assert "0 captures of" in said


def test_validate_corrects_the_statistics_as_decode_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []

    def stop(*arguments: Any, **options: Any) -> None:
        given.append(options["options"])
        raise ValueError("enough")

    monkeypatch.setattr(validate, "validate", stop)
    monkeypatch.setattr("hy3d_rocm.cli.tools._subject", lambda _: SimpleNamespace(
        device=torch.device("cpu")))  # fmt: skip
    common = ["--out", str(tmp_path)]
    assert cli.main(["validate", *common]) == cli.main(["validate", "--passes", "3", *common]) == 1
    assert given == [DecodeOptions(), DecodeOptions(statistic_passes=3)]
