"""Messages to and from other processes."""

from __future__ import annotations

import io

import pytest

torch = pytest.importorskip("torch")

from hy3d_rocm.decoding import worker_process as wire  # noqa: E402


def through(message: object) -> object:
    wire.send(file := io.BytesIO(), wire.packed(message))
    file.write(bytes(8))  # a ping
    file.seek(0)
    frames = wire.receive(file)
    assert frames
    assert wire.receive(file) == []  # a ping
    assert wire.receive(file) is None  # the end
    return wire.unpacked(frames)


class Resource:
    def __del__(self) -> None:
        pass


def test_tensors_arrive_as_they_are() -> None:
    given = [
        torch.arange(6, dtype=torch.float32).view(2, 3).T,
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 4),
        torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
        torch.tensor([True, False]),
    ]
    found = through({"name": given})
    assert isinstance(found, dict)
    for tensor, wanted in zip(found["name"], given, strict=True):
        assert tensor.dtype == wanted.dtype
        assert tensor.shape == wanted.shape
        assert tensor.tolist() == wanted.tolist()


def test_a_module_keeps_what_it_shares_and_leaves_resources_behind() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    module[1].weight = module[0].weight
    module.register_buffer("mean", torch.ones(2))
    module.pins, module.note = Resource(), {"kept": 1}
    found = through(module)
    assert isinstance(found, torch.nn.Module)
    assert found[1].weight is found[0].weight  # type: ignore[index]
    assert isinstance(found[0].weight, torch.nn.Parameter)  # type: ignore[index]
    assert torch.equal(found(torch.ones(1, 2)), module(torch.ones(1, 2)))
    assert found.note == {"kept": 1}
    assert not hasattr(found, "pins")


@pytest.mark.parametrize("given", [lambda: 0, torch.empty(2, device="meta")])
def test_what_can_not_be_sent_is_named(given: object) -> None:
    with pytest.raises(wire.UnsendableError, match=r"can't be pickled|it holds a Tensor on meta"):
        wire.packed([given])


def test_a_message_that_was_cut_short_is_the_end() -> None:
    wire.send(file := io.BytesIO(), wire.packed("text"))
    assert wire.receive(io.BytesIO(file.getvalue()[:-1])) is None
