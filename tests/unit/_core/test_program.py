"""Schedules and programs through the extension: what they tell, refuse and leave behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from core_memory import memory

pytest.importorskip("hy3d_rocm._core")

from core_program import (
    AROUND,
    CONV,
    INPUT,
    MACHINE,
    NODES,
    NONE,
    ONES,
    OUTPUT,
    REQUEST,
    compiled,
    everything,
    nothing,
)

from hy3d_rocm import _core


@pytest.mark.parametrize("alike", [(0, 1, 1, 2), (0, 1, 2), (0, 2, 2, 3), (-1, 1, 2, 3), 3])
def test_alike_names_the_first_node_of_each_kind(alike: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="alike"):
        compiled(alike=alike)


NATIVE, OTHER = (1, (1, 1), 0, 0, 0, 7, 0), (0, (0, 0), 0, 0, 0, 0, 0)


def place(*layers: Any, **fields: Any) -> tuple[Any, ...]:
    sizes = {"dtype": 0, "threads": 2, "fewest_shuffled": 8, "block": 1000, "scores": 1 << 20}
    return (*(sizes | fields).values(), layers)


def test_only_of_layers_that_the_core_does_not_compute_something_is_asked() -> None:
    asked: list[tuple[int, int, bool]] = []

    def inside(node: int, part: int, on_host: bool, *more: Any) -> tuple[int, int, int, int]:
        asked.append((node, part, on_host))
        return 0, 0, 0, 0

    def workspace(*step: Any) -> Any:
        raise AssertionError("the core knows what steps take")

    host, device = place(OTHER, NATIVE, OTHER, OTHER), place(*(OTHER,) * 4)
    assert compiled(workspace, inside=inside, places=(host,), is_host=1).program is not None
    assert set(asked) == {(2, 0, False)}
    asked.clear()
    compiled(workspace, inside=inside, places=(device, host), strategies=10, compiles_all=1)
    assert {node for node, _, on_host in asked if on_host} == {2}
    assert {node for node, _, on_host in asked if not on_host} == {1, 2}


@pytest.mark.parametrize("in_place", [0, 1])
def test_a_call_tells_what_it_reads_and_makes_and_the_residual_is_the_cores(in_place: int) -> None:
    calls = []

    def inside(*call: Any) -> tuple[int, int, int, int]:
        calls.append(call)
        return 1000 * call[0], in_place, 0, 0

    whole = ((1 << 30, 0), *MACHINE[1:])
    found = compiled(inside=inside, places=(place(*(OTHER,) * 4),), device=whole)
    assert calls == [
        (1, 0, False, (4, 5, 6, 7), (1, 1), False, (0, 5), (0, 5)),
        (2, 0, False, (8, 5, 6, 7), (1, 1), True, (0, 5), (0, 5)),
    ]
    told = {step[1]: step[-1] for step in found.program.steps(0) if step[0] == 1}
    beside = 0 if in_place else 8 * 5 * 6 * 7 * 4  # node 1's value is its residual
    assert told == {1: 1000, 2: 2000 + beside}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((0, 0, 0), "the inside's answer"), (None, "the inside's answer"),
        ((-1, 0, 0, 0), "The inside's answer is"), ((0, 0, 0, 1 << 16), "number below 65536"),
    ],
)  # fmt: skip
def test_an_answer_about_a_call_that_is_none_is_refused(answer: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        compiled(inside=lambda *call: answer, places=(place(*(OTHER,) * 4),))


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        (3, "places must be a tuple, not"),
        ((place(), place(), place()), "places has 3 entries: it may have 2"),
        ((3,), "A place must be a tuple of 6"),
        ((place()[:5],), "A place must be a tuple of 6"),
        ((place(*(OTHER,) * 4, dtype="f32"),), "places.dtype must be an integer"),
        ((place(*(OTHER,) * 3),), "has 3 layers: the graph has 4 nodes"),
        ((place(*(OTHER[1:],) * 4),), r"layers\[0\] has 6 values: it needs 7"),
        (((*place()[:5], 3),), "layers must be a tuple, not"),
        ((place(OTHER, NATIVE, OTHER, OTHER, threads=0),), "refused, an argument is out of its"),
    ],
)
def test_places_that_are_none_are_refused(places: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        compiled(inside=lambda *call: (0, 0, 0, 0), places=places)


def test_layouts_of_prepared_weights_are_those_of_the_c_convolution() -> None:
    found = compiled(places=(place(OTHER, NATIVE, OTHER, OTHER),), inside=lambda *call: (0,) * 4)
    program = found.program
    first, stop = next(step[4] for step in program.steps(0) if step[:2] == (1, 1))
    number, _, nbytes = _core.conv3d_format(
        (stop - first + 2, 6, 7), 4, 8, (3, 3, 3), ONES, ONES, (0, 1, 1), AROUND,
        ("zeros", "replicate", "replicate"), 1, "f32", "fast", ONES, 1,
    )  # fmt: skip
    assert program.prepared() == ((0, 0), (number, nbytes), (0, 0), (0, 0))
    assert program.fallback(3, "no kernel") == "stop"
    with pytest.raises(ValueError, match="This program was given up"):
        program.prepared()


def test_a_place_needs_somebody_to_ask() -> None:
    with pytest.raises(ValueError, match="refused, an argument is out of its range"):
        compiled(places=(place(*(OTHER,) * 4),))
    with pytest.raises(TypeError, match="callable"):
        compiled(inside=3)


def test_nodes_that_are_alike_are_asked_of_once() -> None:
    asked: list[int] = []

    def workspace(step: Any, source: Any, on_host: bool) -> tuple[int, int, int, int]:
        asked.append(step[1])
        return 100, 10, 5, 7

    nodes = (INPUT, CONV, (1, 1, *CONV[2:]), (1, 2, *CONV[2:]), (6, 3, *OUTPUT[2:]))
    plain = compiled(workspace, nodes).candidates
    assert {2, 3} <= set(asked)
    asked.clear()
    assert compiled(workspace, nodes, alike=(0, 1, 2, 2, 4)).candidates == plain
    assert 2 in asked
    assert 3 not in asked


def test_a_program_tells_its_steps_and_slices() -> None:
    asked: list[Any] = []

    def workspace(step: Any, source: Any, on_host: bool) -> tuple[int, int, int, int]:
        asked.append((step, source, on_host))
        return 100, 10, 5, 7

    schedule = compiled(workspace)
    program = schedule.program
    assert program.candidate == schedule.candidates[0]
    assert program.candidate["order"] == "layers"
    assert program.candidate["status"] == "HY3D_OK"
    (section,) = program.sections
    steps, slices = program.steps(0), program.slices(0)
    nodes = {step[1] for step, _, _ in asked}
    assert sum(program.kept(0)) == len(nodes) * 10 + 5, "of each node, and of one shape"
    assert (len(steps), len(slices)) == (section["steps"], section["slices"])
    assert section["size"] == (5, 6, 7)
    emitted = [step[5] for step in steps if step[0] == 11]
    assert emitted[0][0] == 0
    assert emitted[-1][1] == 5
    freed = [number for step in steps for number in step[14]]
    assert sorted(freed) == list(range(len(slices))), "a slice is freed once"
    convolutions = [step for step in steps if step[0] == 1]
    assert all(step[16] == 100 for step in convolutions)
    assert {(step[10], step[11]) for step in convolutions} == {((0, 6), (1, 1))}
    assert all(
        slices[number][0] == NODES[step[1]][1] for step in convolutions for number in step[12]
    )
    step, source, on_host = asked[-1]
    assert (source, on_host) == ((8, 5, 6, 7), False)
    assert set(step[12]) == {-1}
    assert program.cut["node"] >= -1
    assert (program.prefix_bytes, program.copies_bytes) == (0, 0)


def test_a_program_of_a_rank_tells_what_it_sends_and_receives() -> None:
    of_two = [compiled(rank=rank, ranks=2, link_bytes_per_second=1e9).program for rank in range(2)]
    row = 8 * 7 * 4  # bytes of one row of one frame
    assert of_two[0].candidate == of_two[1].candidate
    assert of_two[0].candidate["sent_bytes"] == 2 * 5 * row
    for rank, program in enumerate(of_two):
        other = 1 - rank
        moved = [(s[0], s[7], s[9]) for s in program.steps(0) if s[0] in (15, 16)]
        assert set(moved) == {(15, (2 + rank, 3 + rank), other), (16, (3 - rank, 4 - rank), other)}
        read = {(s[10], s[11]) for s in program.steps(0) if s[0] == 1}
        assert read == {((0, 4), (1, 0)) if rank == 0 else ((2, 6), (0, 1))}


def test_weights_say_in_which_ratio_ranks_share_rows() -> None:
    for rank, rows in enumerate([(0, 1), (1, 5), (5, 6)]):
        program = compiled(
            rank=rank, ranks=3, link_bytes_per_second=1e9, weights=[1000, 4000, 1000]
        ).program
        assert {step[7] for step in program.steps(0) if step[0] in (1, 11)} == {rows}


def test_each_rank_may_have_a_budget_of_its_own() -> None:
    both: dict[str, Any] = {"ranks": 2, "link_bytes_per_second": 1e9}

    def fits(*budgets: int) -> bool:
        found = [
            compiled(rank=rank, device_budgets=budgets, weights=(1, 1), **both).program
            for rank in range(2)
        ]
        assert (found[0] is None) == (found[1] is None)
        return found[0] is not None

    least = compiled(device_budget=1, **both).smallest_budget
    assert fits(least, least)
    assert not fits(least - 1, least - 1)
    assert fits(0, 0)
    for budgets in ((1, 0), (0, 1), (1, least)):
        assert not fits(*budgets)
    assert compiled(device_budget=1, device_budgets=(1, 1), **both).smallest_budget == least


def test_a_program_says_in_which_ratio_ranks_share_rows() -> None:
    alone = compiled().program
    assert (alone.weights, alone.shares) == ((1,), ((0, 6),))
    both: dict[str, Any] = {"ranks": 2, "link_bytes_per_second": 1e9}
    both["size"] = (5, 24, 7)
    shared = compiled(weights=[3, 5], **both).program
    assert (shared.weights, shared.shares) == ((3, 5), ((0, 9), (9, 24)))
    assert alone.input_rows == ((0, 6),)
    assert shared.input_rows == ((0, 10), (8, 24))  # a kernel of three rows reads one more
    least = compiled(device_budget=1, **both).smallest_budget
    assert compiled(device_budgets=(2 * least, 3 * least), **both).program.weights == (1, 1)
    assert compiled(device_budgets=(2 * least, least // 2), **both).program.weights == (32, 8)


def test_rows_of_the_input_that_a_rank_is_sent_count_on_its_host() -> None:
    both: dict[str, Any] = {"ranks": 2, "link_bytes_per_second": 1e9}
    found = [compiled(source_bytes=size, **both).program.candidate for size in (0, 2, 4)]
    each = 4 * 5 * 4 * 7  # elements of four rows of four channels
    assert [one["host_bytes"] for one in found] == [0, 2 * each, 4 * each]
    with pytest.raises(ValueError, match="source_bytes"):
        compiled(source_bytes=-1, **both)


@pytest.mark.parametrize(
    ("budgets", "error", "words"),
    [
        (3, TypeError, "device_budgets must be a tuple"),
        ((1,), ValueError, "device_budgets has 1 entries: there are 2 ranks"),
        ((1, -1), ValueError, "device_budgets has -1: it must be from 0 to 9223372036854775807"),
    ],
)
def test_budgets_of_ranks_that_are_none_are_refused(
    budgets: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        compiled(ranks=2, link_bytes_per_second=1e9, device_budgets=budgets)


@pytest.mark.parametrize(
    ("weights", "error", "words"),
    [
        (3, TypeError, "weights must be a tuple"),
        ((1,), ValueError, "weights has 1 entries: there are 2 ranks"),
        ((1, 2, 3), ValueError, "weights has 3 entries: there are 2 ranks"),
        ((1,) * 65, ValueError, "weights has 65 entries: it may have 64"),
        ((1, 0), ValueError, "weights has 0: it must be from 1 to 2147483647"),
        ((1, 1 << 31), ValueError, "weights has 2147483648: it must be from 1"),
        ((1, "x"), TypeError, "weights must be an integer"),
        ((1, (1 << 31) - 1), ValueError, "refused, an argument is out of its range"),
    ],
)
def test_weights_that_are_none_are_refused(
    weights: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        compiled(ranks=2, link_bytes_per_second=1e9, weights=weights)


def test_where_nothing_fits_there_is_no_program_and_a_smallest_budget() -> None:
    schedule = compiled(device_budget=1)
    assert schedule.program is None
    least = schedule.smallest_budget
    assert compiled(device_budget=least).program is not None
    assert compiled(device_budget=least - 1).program is None


def test_what_the_workspace_function_raises_is_raised() -> None:
    class OwnError(Exception):
        pass

    def workspace(step: Any, source: Any, on_host: bool) -> tuple[int, int, int, int]:
        raise OwnError("the test's")

    with pytest.raises(OwnError, match="the test's"):
        compiled(workspace)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (None, TypeError, "the workspace's answer must be a tuple of 4"),
        ((1,), ValueError, "the workspace's answer has 1 values"),
        ((1, 2.0, 0, 0), TypeError, "the workspace's answer must be an integer"),
        ((1, -2, 0, 0), ValueError, r"workspace's answer is \(1, -2, 0, 0\): all must be at least"),
        ((1, 2, 3, 1 << 16), ValueError, "the shape's number below 65536"),
    ],
)
def test_an_answer_of_the_workspace_function_that_is_none(
    answer: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        compiled(lambda *asked: answer)


def changed(node: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*node[:place], value, *node[place + 1 :])


@pytest.mark.parametrize(
    ("nodes", "error", "words"),
    [
        (3, TypeError, "nodes must be a tuple"),
        ((3,), TypeError, r"nodes\[0\] must be a tuple"),
        (((1, 2),), ValueError, r"nodes\[0\] has 2 values: it needs 26"),
        ((changed(INPUT, 4, "x"),), TypeError, r"nodes\[0\].channels must be an integer"),
        ((INPUT, changed(CONV, 5, (1, 2)), OUTPUT), ValueError, r"nodes\[1\].kernel has 2 values"),
        ((INPUT, changed(CONV, 1, 1 << 40), OUTPUT), ValueError, r"nodes\[1\].source has 1099511"),
        ((INPUT, changed(CONV, 6, NONE), OUTPUT), ValueError, r"Node 1 of 3 \(op 1\) is wrong"),
        ((INPUT, changed(CONV, 5, (3, 99, 3)), changed(OUTPUT, 1, 1)), ValueError, "Node 1 of 3"),
        ((), ValueError, "0 nodes are no graph"),
        ((INPUT,) * 4097, ValueError, "nodes has 4097 entries: it may have 4096"),
    ],
)
def test_nodes_that_are_no_graph_are_refused_in_a_sentence(
    nodes: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        compiled(nodes=nodes)
    with pytest.raises(error, match=words):
        _core.graph_sizes(nodes, (5, 6, 7))


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("size", (5, 0, 7), ValueError, "size has 0: it must be from 1"),
        ("element_bytes", 0, ValueError, "element_bytes has 0: it must be from 1"),
        ("device_budget", -1, ValueError, "device_budget has -1"),
        ("strategies", 1 << 31, ValueError, "strategies has 2147483648"),
        ("copy_bytes_per_second", 0, ValueError, "copy_bytes_per_second is 0: it must be above 0"),
        ("copy_bytes_per_second", "x", TypeError, "copy_bytes_per_second must be a number"),
        (
            "copy_bytes_per_second",
            float("nan"),
            ValueError,
            "is nan: it must be above 0 and finite",
        ),
        ("link_bytes_per_second", 0, ValueError, "link_bytes_per_second is 0: it must be above"),
        ("ranks", 2, ValueError, "The request for a program was refused"),
        ("device", MACHINE[:5], ValueError, "device has 5 values: it needs 6"),
        ("device", 1, TypeError, "device must be a tuple"),
        ("device", changed(MACHINE, 2, -1.0), ValueError, "device.macs_per_second is -1.0"),
        ("halos", ((1, 2),), ValueError, "halos has 2 values: it needs 3"),
        ("halos", ((1, 2, 3),) * 5, ValueError, "halos has 5 entries: it may have 4"),
        ("colour", 3, TypeError, "compile_schedule has no argument 'colour'"),
        ("strategies", 0, ValueError, "The request for a program was refused"),
        ("unit", (1, 0, 1), ValueError, "The request for a program was refused"),
        ("unit", (1, -1, 1), ValueError, "unit has -1: it must be from 0"),
        ("busy_positions", -1, ValueError, "busy_positions has -1: it must be from 0"),
    ],
)
def test_a_request_that_is_none_is_refused_in_a_sentence(
    name: str, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        compiled(**{name: value})


def test_arguments_that_are_missing_are_named() -> None:
    with pytest.raises(TypeError, match="a callable workspace"):
        _core.compile_schedule(NODES, **REQUEST)
    with pytest.raises(TypeError, match="a callable workspace"):
        _core.compile_schedule(NODES, workspace=3, **REQUEST)
    with pytest.raises(TypeError, match="takes the nodes"):
        _core.compile_schedule(workspace=nothing, **REQUEST)


def test_a_strategy_that_cannot_run_the_graph_is_an_error_with_a_name() -> None:
    with pytest.raises(_core.Hy3dError, match="No strategy that is allowed") as caught:
        compiled(strategies=4)  # tiles, of no size
    assert caught.value.name == "HY3D_ERR_UNSUPPORTED"


def test_there_are_no_other_sections_and_steps() -> None:
    program = compiled().program
    for ask in (program.steps, program.kept, program.slices):
        for number in (-1, 1):
            with pytest.raises(ValueError, match=f"There is no section {number}"):
                ask(number)
        with pytest.raises(TypeError, match="section must be an integer"):
            ask("x")
    steps = program.steps(0)
    for number in (-1, len(steps), 1 << 32):
        with pytest.raises(
            ValueError, match=f"There is no step {number}: the section has {len(steps)}"
        ):
            program.step(0, number)
    for section in (-1, 1):
        with pytest.raises(ValueError, match=f"There is no section {section}"):
            program.step(section, 0)
    with pytest.raises(TypeError, match="index must be an integer"):
        program.step(0, "x")
    with pytest.raises(ValueError, match="attempts is 0: it must be at least 1"):
        program.fallback(0, "refused")
    with pytest.raises(ValueError, match="reason is 'tired'"):
        program.fallback(1, "tired")


def test_steps_come_one_by_one_as_all_at_once() -> None:
    tiles = {"strategies": 4, "halos": ((0, 0, 1),), "size": (5, 16, 16), "device_budget": 10000}
    program = compiled(**tiles).program
    assert len(program.sections) == 5
    for number, section in enumerate(program.sections):
        steps = program.steps(number)
        assert section["steps"] == len(steps) > 0
        assert tuple(program.step(number, at) for at in range(section["steps"])) == steps


def test_what_follows_a_failure() -> None:
    machine = ((4000, 2000), *MACHINE[1:])
    schedule = compiled(device=machine)
    program = schedule.program
    assert program.fallback(3, "refused") == "step again"
    for attempts in (1, 2, 1):
        assert program.fallback(attempts, "out of memory") == "step again"
    assert program.fallback(2, "not finite", can_widen=True) == "wider"
    assert program.fallback(2, "not finite") == "stop"
    assert program.fallback(2, "cancelled") == "stop"
    assert program.candidate["slice_bytes"] in (4000, 2000)
    assert program.fallback(2, "no kernel") == "begin again"
    for ask in (
        lambda: program.candidate, lambda: program.steps(0), lambda: program.step(0, 0),
        lambda: program.sections,
    ):  # fmt: skip
        with pytest.raises(ValueError, match="This program was given up"):
            ask()
    with pytest.raises(ValueError, match="This program was given up"):
        program.fallback(2, "no kernel")
    second = schedule.program
    assert second.fallback(1, "no kernel") == "stop"
    assert schedule.program is None


def test_a_schedule_cannot_be_asked_while_its_workspace_function_runs() -> None:
    found: list[Any] = []
    refusals: list[str] = []

    def workspace(step: Any, source: Any, on_host: bool) -> tuple[int, int, int, int]:
        for schedule in found:
            with pytest.raises(ValueError, match="being compiled") as caught:
                _ = schedule.program
            refusals.append(str(caught.value))
        return 0, 0, 0, 0

    schedule = compiled(workspace, device=((4000, 2000), *MACHINE[1:]))
    program = schedule.program
    found.append(schedule)
    assert program.fallback(1, "no kernel") == "begin again"
    assert schedule.program is not None
    found.clear()


def test_a_circle_through_the_workspace_function_is_collected() -> None:
    class Asked:
        def __call__(self, step: Any, source: Any, on_host: bool) -> tuple[int, int, int, int]:
            return 0, 0, 0, 0

    gc.collect()
    live = memory.live()
    asked = Asked()
    asked.schedule = compiled(asked)  # type: ignore[attr-defined]
    asked.program = asked.schedule.program  # type: ignore[attr-defined]
    gone = weakref.ref(asked)
    del asked
    gc.collect()
    assert gone() is None
    assert memory.live() == live


def test_a_program_outlives_its_schedules_name() -> None:
    program = compiled().program
    gc.collect()
    assert program.steps(0)


@pytest.mark.parametrize("forever", [False, True])
def test_every_failed_allocation_is_a_memory_error_and_leaves_nothing_behind(forever: bool) -> None:
    wanted = everything()
    gc.collect()
    live, start = memory.live(), memory.asked()
    everything()
    allocations = memory.asked() - start
    assert allocations > 20
    for k in range(1, allocations + 1):
        memory.fail(k, forever)
        try:
            with pytest.raises(MemoryError, match=r"No memory|could not be compiled"):
                everything()
        finally:
            memory.fail(0)
        assert memory.live() == live, f"allocation {k} of {allocations} leaked"
    assert everything() == wanted
