"""hy3d-rocm decode: files in, a video out, sentences for everything that cannot be."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
av = pytest.importorskip("av")
pytest.importorskip("diffusers")

import check_resume  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from sink_doubles import TensorSink  # noqa: E402

from hy3d_rocm import checkout, cli  # noqa: E402
from hy3d_rocm.cli import decode as command  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled, Step  # noqa: E402
from hy3d_rocm.tools import loading  # noqa: E402
from hy3d_rocm.tools.loading import LoadingError  # noqa: E402


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    check_resume.make_inputs(folder)
    return folder


NO_FILE = "does not exist" if os.name == "nt" else "File name too long"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that cost nothing in the VAE's place."""
    monkeypatch.setattr(command, "deliver", check_resume.cheap_deliver)


def run(inputs: Path, out: Path, *more: str) -> int:
    return cli.main(
        ["decode", str(inputs / "latents.safetensors"), "--vae", str(inputs / "vae"), "--out",
         str(out), "--device", "cpu", *more]
    )  # fmt: skip


def test_a_latent_file_becomes_the_frames_that_the_vae_makes_of_it(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from diffusers import AutoencoderKLWan

    out, report = tmp_path / "frames.npy", tmp_path / "report.json"
    assert run(inputs, out, "--strategy", "whole", "--json", str(report)) == 0
    vae = AutoencoderKLWan.from_pretrained(inputs / "vae").eval()
    latents = load_file(inputs / "latents.safetensors")["latents"]
    with torch.no_grad():
        assert np.array_equal(np.load(out), vae.decode(latents).sample.numpy())
    told = json.loads(report.read_text())
    assert told["out"] == str(out)
    assert told["strategy"] == "whole"
    assert told["out_shape"] == list(np.load(out).shape)
    assert "33 frames 24x16, 0 of them were there" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["frames.npy", "clip.mp4", "pictures"])
def test_the_budget_that_a_refusal_asks_for_is_enough(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Writing the frames takes memory, too, which on the CPU comes out of the same budget."""
    out = tmp_path / name
    assert run(inputs, out, "--budget", "1MB") == 1
    said = capsys.readouterr().err
    assert re.search(r"1\.00 MB as given; .* of it to write the frames", said), said
    least = re.findall(r"at least (\d+) bytes", said)[0]
    assert run(inputs, out, "--budget", least) == 0
    assert run(inputs, out, "--overwrite", "--budget", str(int(least) - 1)) == 1


def test_a_chunk_size_is_honoured_and_another_one_is_another_decode(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "frames.npy", tmp_path / "report.json"
    more = ("--strategy", "streamed", "--json", str(report), "--overwrite")
    for given, chunk in ((("--chunk-size", "2"), 2), (("--chunk-size", "auto"), 4), ((), 4)):
        assert run(inputs, out, *more, *given) == 0
        told = json.loads(report.read_text())
        assert told["plan"]["parameters"]["chunk"] == chunk
        assert told["ignored"] == []
    for text in ("0", "-1", "2.5", "some"):
        with pytest.raises(SystemExit) as ended:
            run(inputs, out, f"--chunk-size={text}")
        assert ended.value.code == 2
        assert 'give a whole number of 1 or more, or "auto"' in capsys.readouterr().err


def test_a_chunk_size_that_means_nothing_is_said_to_be_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latents, out = tmp_path / "z.safetensors", tmp_path / "frames.npy"
    save_file({"samples": torch.zeros(1, 16, 9, 4, 4)}, latents)
    given = ["decode", str(latents), "--vae", "demo", "--out", str(out), "--device", "cpu"]
    assert cli.main([*given, "--chunk-size", "2"]) == 0
    said = "chunk_size=2 is ignored: the norms of HunyuanVideo see the whole video"
    assert said in capsys.readouterr().out
    assert cli.main([*given, "--overwrite", "--chunk-size", "auto"]) == 0
    assert "ignored" not in capsys.readouterr().out


def test_a_decode_goes_on_with_its_chunk_size_and_not_with_another(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "frames.npy"
    with monkeypatch.context() as patch:
        patch.setattr(command, "deliver", stopping)
        assert run(inputs, out, "--resume", "--chunk-size", "2") != 0
    capsys.readouterr()
    assert run(inputs, out, "--resume") == 1
    assert "it differs in chunk size" in capsys.readouterr().err
    assert run(inputs, out, "--resume", "--chunk-size", "2") == 0


def stopping(vae: Any, latents: Any, sink: Any, *more: Any) -> Any:
    """The decode, cancelled when it has begun."""
    cancel = more[3]
    begin = sink.begin

    def begun(*given: Any) -> Any:
        cancel.set()
        return begin(*given)

    sink.begin = begun
    return _deliver(vae, latents, sink, *more)


_deliver = command.deliver


def test_a_video_has_as_many_frames_as_the_latent_at_the_rate_asked(
    inputs: Path, tmp_path: Path, cheap: None
) -> None:
    out = tmp_path / "clip.mp4"
    assert run(inputs, out, "--fps", "29.97", "--crf", "30", "--pixel-format", "yuv444p") == 0
    with av.open(str(out)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == Fraction(30000, 1001)
        assert stream.codec_context.pix_fmt == "yuv444p"
        assert sum(1 for _ in container.decode(stream)) == 33


def stopped_after(frames: int, error: BaseException | None = None) -> Any:
    """cheap_deliver, interrupted once `frames` are written: by SIGINT as a terminal sends it, or by
    an error."""

    def deliver(vae: Any, latents: Any, sink: Any, choice: Any, plan: Any = None,
                progress: Any = None, cancel: Any = None) -> Any:  # fmt: skip
        put = sink.put

        def counted(sample: int, first: int, *rest: Any) -> None:
            put(sample, first, *rest)
            if first >= frames:
                if error is not None:
                    raise error
                signal.raise_signal(signal.SIGINT)
                assert cancel.is_set()
                raise DecodeCancelled("the decode was cancelled")

        sink.put = counted
        return check_resume.cheap_deliver(vae, latents, sink, choice, plan, progress, cancel)

    return deliver


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap: None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("hy3d_rocm.frames.sinks.SEGMENT_FRAMES", 4)
    expected, out = tmp_path / "expected.mp4", tmp_path / "clip.mp4"
    assert run(inputs, expected, "--resume") == 0
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(command, "deliver", stopped_after(15))
        assert run(inputs, out, "--resume") == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert "the same command goes on" in capsys.readouterr().err
    assert not out.exists()
    assert run(inputs, out, "--resume") == 0
    assert "16 of them were there" in capsys.readouterr().out
    assert out.read_bytes() == expected.read_bytes()


def test_ctrl_c_without_resume_leaves_nothing(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "deliver", stopped_after(15))
    assert run(inputs, tmp_path / "clip.mp4") == 130
    assert "nothing is left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_second_ctrl_c_stops_at_once(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "deliver", stopped_after(3, KeyboardInterrupt()))
    assert run(inputs, tmp_path / "clip.mp4") == 130


def test_another_latent_needs_restart(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap: None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out, other = tmp_path / "clip.mp4", tmp_path / "other.safetensors"
    with monkeypatch.context() as patched:
        patched.setattr(command, "deliver", stopped_after(9))
        assert run(inputs, out, "--resume") == 130
    save_file({"latents": torch.zeros(1, 4, 9, 2, 3)}, other)
    changed = ["decode", str(other), "--vae", str(inputs / "vae"), "--out", str(out), "--device",
               "cpu", "--resume"]  # fmt: skip
    assert cli.main(changed) == 1
    assert "differs in latents" in capsys.readouterr().err
    assert run(inputs, out, "--resume", "--crf", "20") == 1
    assert "differs in crf" in capsys.readouterr().err
    assert cli.main([*changed, "--restart"]) == 0
    assert "0 of them were there" in capsys.readouterr().out


def test_what_cannot_be_is_told_in_a_sentence(
    inputs: Path, tmp_path: Path, cheap: None, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"not at all")
    several = tmp_path / "several.safetensors"
    save_file({"a": torch.zeros(1, 4, 1, 2, 2), "b": torch.zeros(1)}, several)
    odd = tmp_path / "odd.safetensors"
    save_file({"latents": torch.zeros(4, 2)}, odd)
    whole = tmp_path / "whole.safetensors"
    save_file({"latents": torch.zeros(1, 4, 1, 2, 2, dtype=torch.int64)}, whole)
    vae, out = str(inputs / "vae"), str(tmp_path / "clip.mp4")
    good = str(inputs / "latents.safetensors")
    cases = [
        ("does not exist", [str(tmp_path / "no.safetensors"), "--vae", vae]),
        ("is a folder; name the file", [str(tmp_path), "--vae", vae]),
        ("is no safetensors file", [str(bad), "--vae", vae]),
        ("has a, b, none of which is called latents", [str(several), "--vae", vae]),
        ("has no tensor 'c'", [str(several), "--vae", vae, "--tensor", "c"]),
        ("has shape (4, 2); a latent is", [str(odd), "--vae", vae]),
        ("a latent is floating point", [str(whole), "--vae", vae]),
        ("has samples 0 to 0", [good, "--vae", vae, "--sample", "1"]),
        ("has no config.json", [good, "--vae", str(tmp_path)]),
        ("is a pickle", [good.replace("latents.safetensors", "x.pt"), "--vae", vae]),
        ("--device 'tpu9'", [good, "--vae", vae, "--device", "tpu9"]),
        ("torch sees", [good, "--vae", vae, "--device", "cuda:77"]),
    ]
    (inputs / "x.pt").write_bytes(b"")
    for words, arguments in cases:
        assert cli.main(["decode", *arguments, "--out", out]) == 1, words
        assert words in capsys.readouterr().err
    assert cli.main(["decode", good, "--vae", vae, "--out", "clip.gif"]) == 1
    assert "nothing here writes .gif files" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["decode", good, "--vae", vae, "--out", out, "--fps", "0"])
    assert "is no frame rate" in capsys.readouterr().err


# --- files ----------------------------------------------------------------------------------------


def test_latents_are_found_under_the_names_that_programs_use(tmp_path: Path) -> None:
    z = torch.randn(1, 4, 3, 2, 2)
    file = tmp_path / "a.safetensors"
    for name in (*loading.LATENT_NAMES[:3], "whatever"):
        save_file({name: z}, file)
        assert torch.equal(loading.load_latents(file), z)
    save_file({"samples": z, "noise": torch.randn(1, 4, 3, 2, 2)}, file)
    assert torch.equal(loading.load_latents(file), z)
    save_file({"latent_tensor": z, "latent_format_version_0": torch.tensor([])}, file)
    assert torch.equal(loading.load_latents(file), z)
    save_file({"latent_tensor": z}, file)  # before ComfyUI marked its files
    assert torch.equal(loading.load_latents(file), z / 0.18215)


def test_a_latent_without_batch_or_time_gets_it() -> None:
    assert loading.as_video(torch.zeros(16, 5, 3, 4), 16).shape == (1, 16, 5, 3, 4)
    assert loading.as_video(torch.zeros(2, 16, 3, 4), 16).shape == (2, 16, 1, 3, 4)
    assert loading.as_video(torch.zeros(2, 16, 5, 3, 4), 16).shape == (2, 16, 5, 3, 4)
    with pytest.raises(LoadingError, match="a video or 16 images"):
        loading.as_video(torch.zeros(16, 16, 3, 4), 16)


def test_scaled_latents_are_put_back_as_pipelines_do() -> None:
    z = torch.randn(1, 2, 3, 2, 2)
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 4.0])

    def vae(**config: Any) -> Any:
        return SimpleNamespace(config=SimpleNamespace(**config))

    column = (1, 2, 1, 1, 1)
    wan = loading.unscaled(z, vae(latents_mean=mean.tolist(), latents_std=std.tolist()))
    assert torch.equal(wan, z * std.view(column) + mean.view(column))
    assert torch.equal(loading.unscaled(z, vae(scaling_factor=0.25)), z * 4)
    shifted = loading.unscaled(z, vae(scaling_factor=0.25, shift_factor=0.5))
    assert torch.equal(shifted, z * 4 + 0.5)
    ltx = vae(scaling_factor=2.0)  # mean and deviation are buffers of the module
    ltx.latents_mean, ltx.latents_std = mean, std
    assert torch.equal(loading.unscaled(z, ltx), z / 2 * std.view(column) + mean.view(column))
    with pytest.raises(LoadingError, match="no scaling_factor"):
        loading.unscaled(z, vae())
    with pytest.raises(LoadingError, match="latents_mean has 3 channels"):
        loading.unscaled(z, vae(latents_mean=[0, 0, 0], latents_std=[1, 1, 1]))


def test_a_vae_is_loaded_from_folder_pipeline_or_file_in_its_stored_type(
    inputs: Path, tmp_path: Path
) -> None:
    (tmp_path / "vae").mkdir()
    config = (inputs / "vae" / "config.json").read_text()
    (tmp_path / "vae" / "config.json").write_text(config)
    state = load_file(inputs / "vae" / "diffusion_pytorch_model.safetensors")
    file = tmp_path / "vae" / "weights.safetensors"
    save_file({name: value.bfloat16() for name, value in state.items()}, file)
    for path in (tmp_path, tmp_path / "vae", file):
        vae = loading.load_vae(loading.find_vae(path))
        assert not vae.training
        assert {p.dtype for p in vae.parameters()} == {torch.bfloat16}
        for name, value in vae.state_dict().items():
            assert torch.equal(value, state[name].bfloat16())
    assert loading.load_vae(loading.find_vae(file), torch.float32).dtype == torch.float32


def test_a_vae_that_is_not_what_its_config_says_is_refused(inputs: Path, tmp_path: Path) -> None:
    config = json.loads((inputs / "vae" / "config.json").read_text())
    state = load_file(inputs / "vae" / "diffusion_pytorch_model.safetensors")
    file = tmp_path / "weights.safetensors"
    save_file(state, file)
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("no VAE class 'AutoencoderKLNoSuch'", {"_class_name": "AutoencoderKLNoSuch"}, state),
        ("no VAE class 'UNet2DModel'", {"_class_name": "UNet2DModel"}, state),
        ("belongs to another VAE", {"base_dim": 8}, state),
        ("names do not match", {}, {"strange": torch.zeros(3)}),
    ]
    for words, changes, weights in cases:
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        save_file(weights, file)
        with pytest.raises(LoadingError, match=words):
            loading.load_vae(loading.find_vae(file))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadingError, match="_class_name"):
        loading.find_vae(file)
    for content in (b"", b"\xff" * 64):
        (tmp_path / "config.json").write_text(json.dumps(config))
        file.write_bytes(content)
        with pytest.raises(LoadingError, match="is no safetensors file"):
            loading.find_vae(file)
    (tmp_path / "second.safetensors").write_bytes(b"")
    with pytest.raises(LoadingError, match="has several"):
        loading.find_vae(tmp_path)


def _safetensors(header: bytes, data: bytes = b"0" * 8) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    "content",
    [
        _safetensors(b"[1]"), _safetensors(b'{"a": "b"}'), _safetensors(b'{"a": {"dtype": "F32"}}'),
        _safetensors(b'{"a": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}'),
        _safetensors(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}}'),
        _safetensors(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1, 2]}}'),
        _safetensors(b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 99]}}'),
        _safetensors(b"[" * 100_000), _safetensors(b"\xff"), b"\xff" * 64, b"",
        _safetensors(b'{"a": {"dtype": "F32", "data_offsets": [0, ' + b"9" * 5000 + b"]}}"),
    ],
)  # fmt: skip
def test_a_damaged_safetensors_header_is_a_sentence(
    inputs: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "config.json").write_bytes((inputs / "vae" / "config.json").read_bytes())
    file = tmp_path / "vae.safetensors"
    file.write_bytes(content)
    with pytest.raises(LoadingError, match=r"vae\.safetensors"):
        loading.load_vae(loading.find_vae(file))
    with pytest.raises(LoadingError, match="is no safetensors file"):
        loading.load_latents(file)


@pytest.mark.parametrize(
    "changes",
    [{"z_dim": "four"}, {"z_dim": -4}, {"z_dim": 4.5}, {"dim_mult": None}, {"base_dim": 10**15}],
)
def test_a_configuration_that_describes_no_vae_is_a_sentence(
    inputs: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    source = inputs / "vae"
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    name = "diffusion_pytorch_model.safetensors"
    (tmp_path / name).write_bytes((source / name).read_bytes())
    with pytest.raises(LoadingError, match=r"config.json describes no AutoencoderKLWan"):
        loading.load_vae(loading.find_vae(tmp_path))
    for text in ("[" * 100_000, "[]", "{"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(LoadingError, match="does not tell the VAE's class"):
            loading.find_vae(tmp_path)


def test_what_is_no_file_is_told(inputs: Path, tmp_path: Path) -> None:
    for path, words in (
        (Path(os.devnull), "is a device or a pipe"), (Path("x" * 5000), NO_FILE),
        (Path("a\0b"), "is no file of the latents"), (tmp_path, "is a folder"),
    ):  # fmt: skip
        with pytest.raises(LoadingError, match=words):
            loading.load_latents(path)
    for path in (Path(os.devnull), Path("x" * 5000), Path("a\0b")):
        with pytest.raises(LoadingError):
            loading.find_vae(path)


def test_frames_that_are_nan_are_a_sentence_and_leave_nothing(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vae = tmp_path / "vae"
    vae.mkdir()
    name = "diffusion_pytorch_model.safetensors"
    (vae / "config.json").write_bytes((inputs / "vae" / "config.json").read_bytes())
    state = load_file(inputs / "vae" / name)
    save_file({key: torch.full_like(value, torch.nan) for key, value in state.items()}, vae / name)
    latents, out = str(inputs / "latents.safetensors"), tmp_path / "out"
    out.mkdir()
    for file in ("a.mp4", "a.npy", "pictures"):
        argv = ["decode", latents, "--vae", str(vae), "--out", str(out / file), "--device", "cpu"]
        assert cli.main(argv) == 1
        assert "not finite" in capsys.readouterr().err
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--budget", "9" * 400 + "GB"], "budget is '9999"),
        (["--budget", "9" * 400 + ".5g"], "budget is '9999"),
        (["--budget", "9" * 5000], "budget is '9999"), (["--fps", "9" * 400], "is no frame rate"),
        (["--fps", "1e999999999"], "is no frame rate"), (["--device", "x" * 400], "give cpu, cuda"),
        (["--device", "mps"], "give cpu, cuda"), (["--json", "/no/such/x.json"], "does not exist"),
        (["--sample", "9" * 400], "the latent has samples 0 to 0"),
    ],
)  # fmt: skip
def test_odd_arguments_are_told_before_anything_is_decoded(
    inputs: Path, tmp_path: Path, more: list[str], words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "deliver", lambda *_, **__: pytest.fail("decoded"))
    try:
        code = run(inputs, tmp_path / "clip.mp4", *more)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code in (1, 2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert words in said
    assert len(said) < 400
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_has_the_videos_name_is_told_before_anything_is_decoded(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(loading, "load_vae", lambda *_: pytest.fail("loaded"))
    (tmp_path / "dir.mp4").mkdir()
    assert run(inputs, tmp_path / "dir.mp4") == 1
    assert "is a folder; remove it" in capsys.readouterr().err


def test_a_report_that_a_scanner_looks_at_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, tries = Path.unlink, iter(range(1000))

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if next(tries) < 2:
            error = PermissionError(13, "Sharing violation", str(path))
            error.winerror = 32  # type: ignore[attr-defined,unused-ignore]
            raise error
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    command._check_report(tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="a colon is in no name there")
def test_a_name_that_ffmpeg_takes_for_an_address_is_a_name(inputs: Path, tmp_path: Path) -> None:
    for more in ([], ["--resume"]):
        out = tmp_path / "12:30.mp4"
        assert run(inputs, out, *more) == 0
        with open(out, "rb") as file, av.open(file) as container:
            assert sum(1 for _ in container.decode(video=0)) == 33
        out.unlink()


def test_another_vae_is_never_gone_on_with(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap: None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One byte of a weight, where no sample would be taken, with size and time as before."""
    vae, out = tmp_path / "vae", tmp_path / "clip.mp4"
    shutil.copytree(inputs / "vae", vae)
    file = vae / "diffusion_pytorch_model.safetensors"
    latents = str(inputs / "latents.safetensors")
    argv = ["decode", latents, "--vae", str(vae), "--out", str(out), "--device", "cpu", "--resume"]
    before = file.stat()
    with monkeypatch.context() as patched:
        patched.setattr(command, "deliver", stopped_after(9))
        assert cli.main(argv) == 130
    content = bytearray(file.read_bytes())
    content[-len(content) // 3] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    capsys.readouterr()
    assert cli.main(argv) == 1
    assert "belongs to another decode, it differs in VAE" in capsys.readouterr().err
    content[-len(content) // 3] ^= 1
    file.write_bytes(content)
    assert cli.main(argv) == 0


def test_the_demos_vae_decodes_and_where_it_is_missing_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = loading.find_vae(Path("demo"))
    vae = loading.load_vae(files)
    channels = loading.latent_channels(vae)
    save_file({"latents": torch.zeros(1, channels, 1, 2, 2)}, tmp_path / "z.safetensors")
    argv = ["decode", str(tmp_path / "z.safetensors"), "--vae", "demo", "--device", "cpu"]
    argv += ["--strategy", "whole"]
    assert cli.main([*argv, "--out", str(tmp_path / "a.npy"), "--resume"]) == 0
    with torch.no_grad():
        wanted = vae.decode(torch.zeros(1, channels, 1, 2, 2)).sample
    assert np.array_equal(np.load(tmp_path / "a.npy"), wanted.numpy())

    monkeypatch.setattr(checkout, "ROOTS", (tmp_path,))
    assert cli.main([*argv, "--out", str(tmp_path / "b.npy")]) == 1
    assert "is missing from this installation" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    import hy3d_rocm

    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"hy3d-rocm {hy3d_rocm.__version__}\n"


# --- progress -------------------------------------------------------------------------------------


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_tells_frames_time_memory_and_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    for stream in (_Terminal(), io.StringIO()):
        watched = command.WatchedSink(TensorSink(), torch.device("cpu"), stream)
        with watched:
            watched.begin((1, 3, 8, 4, 4), torch.float32, {"strategy": "streamed"})
            clock[0] += 20
            watched.put(0, 0, torch.zeros(1, 3, 2, 4, 4))
            clock[0] += 20
            step = Step("chunk", 0, 0, 0, (0, 2), (0, 4), (0, 4))
            watched.progress(1, 4, step)
            watched.progress(2, 4, step)  # at the same moment: not told
        lines = stream.getvalue().strip().replace("\r", "\n").splitlines()
        assert len(lines) == 2
        assert lines[0].startswith("frames 2/8")
        assert lines[1].startswith("frames 2/8, chunk 1/4, 2 min left")
        assert "resident" in lines[1]
        assert lines[1].rstrip().endswith("streamed")
