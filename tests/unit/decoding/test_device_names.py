"""Devices as people name them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from hy3d_rocm.conv.verdict_store.records import started_architecture  # noqa: E402
from hy3d_rocm.decoding.device_names import further_devices, parse_devices  # noqa: E402


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ()), ("one", ()), (" One ", ()), ("all", ("all",)), ("0,1", ("cuda:0", "cuda:1")),
        ("cuda:1", ("cuda:1",)), ("1 2", ("cuda:1", "cuda:2")), ("cpu, cpu", ("cpu", "cpu")),
        ("hip:3", ("cuda:3",)),
    ],
)  # fmt: skip
def test_devices_are_read(text: str, wanted: tuple[str, ...]) -> None:
    assert parse_devices(text) == wanted


@pytest.mark.parametrize("text", ["both", "cuda", "-1", "0;1", "all,1", "cuda:one"])
def test_what_names_no_device_is_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r'devices is .*: give "one", "all", or GPUs by'):
        parse_devices(text)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four, of which the third is another one."""
    kinds = [9, 9, 8, 9]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties",
        lambda one: SimpleNamespace(major=kinds[one], minor=0),
    )  # fmt: skip
    monkeypatch.setattr(torch.version, "hip", None)
    started_architecture.cache_clear()
    yield
    started_architecture.cache_clear()


def numbers(text: str, own: int) -> list[int]:
    found = further_devices(parse_devices(text), torch.device("cuda", own))
    return [device.index for device in found]


@pytest.mark.usefixtures("cards")
def test_further_devices_are_those_beside_our_own() -> None:
    assert numbers("all", 0) == [1, 3]
    assert numbers("all", 2) == []
    assert numbers("0,1", 0) == [1]
    assert numbers("0,1", 3) == [0, 1]
    assert numbers("1,1,2", 0) == [1, 2]  # another kind, if it is named
    with pytest.raises(ValueError, match="there is no cuda:4: the numbers of the GPUs are 0 to 3"):
        numbers("4", 0)
    with pytest.raises(ValueError, match="cpu can't decode with cuda:0"):
        numbers("cpu", 0)


def test_of_cpus_one_is_our_own() -> None:
    cpu = torch.device("cpu")
    assert further_devices(("cpu", "cpu", "cpu"), cpu) == [cpu, cpu]
    assert further_devices(("all",), cpu) == []


@pytest.mark.usefixtures("cards")
def test_an_architecture_is_all_before_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["gfx1100:xnack-", "gfx1100", "gfx1036", "gfx1100"]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda one: SimpleNamespace(gcnArchName=kinds[one]),
    )
    assert numbers("all", 0) == [1, 3]
