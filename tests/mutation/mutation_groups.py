"""What is mutated, and the tests that are to notice: one table a group.

Decision logic only. The tests of a group are run together, each mutant with those that enter the
mutated function. A file of tests belongs here if it claims something about a file of the group.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Group:
    """One group: Python files with their tests, C files with their suites."""

    name: str
    python: dict[str, tuple[str, ...]]
    c: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Tests that are left out: they take much time, or count what mutmut adds.
    left_out: tuple[str, ...] = ()

    @property
    def tests(self) -> list[str]:
        """Every file of tests, once."""
        return sorted({test for tests in self.python.values() for test in tests})


_DEVICE = ("test_device.py", "test_device_rules.py", "test_binding_device.py")
_SEED = ("test_seed_generators.py", "test_seed_rules.py", "test_seed_twin.py")
_SCHEDULE = ("test_schedule.py", "test_schedule_bounds.py", "test_fallback_values.py")
_ROUTER = (
    "test_ladder_words.py", "test_planning_plans.py", "test_planning_rules.py", "test_router.py",
    "test_router_broken.py", "test_router_faults.py", "test_router_store.py",
    "test_router_lasting.py",
    "test_router_measured.py", "test_router_memory.py", "test_router_planning.py",
    "test_router_policy.py", "test_router_probing.py", "test_router_scope.py", "test_selfcheck.py",
)  # fmt: skip
_PLANNING = (
    "test_planner.py", "test_planner_words.py", "test_decode_ladder.py",
    "test_planning_compiled.py", "test_backend_rules.py", "test_budget.py",
    "test_decode_unknown.py", "test_black_box_memory.py",
)  # fmt: skip

GROUPS = (
    Group(
        "device",
        {"hy3d_rocm/device.py": _DEVICE, "hy3d_rocm/_fallback/device.py": _DEVICE},
    ),
    Group(
        "seed",
        {"hy3d_rocm/seed.py": _SEED, "hy3d_rocm/_fallback/seed.py": _SEED},
        {"csrc/base/philox.c": ("seed",), "csrc/seed/seed.c": ("seed",)},
    ),
    Group(
        "schedule",
        {
            "hy3d_rocm/_fallback/schedule.py": _SCHEDULE,
            "hy3d_rocm/_fallback/__init__.py": _SCHEDULE,
        },
        {
            "csrc/schedule/axis.c": ("tiles",),
            "csrc/schedule/blend.c": ("tiles",),
            "csrc/schedule/tile_at.c": ("tiles",),
            "csrc/schedule/tiles.c": ("tiles",),
        },
    ),
    Group(
        "router",
        {
            "hy3d_rocm/conv/choice.py": ("test_choice.py", "test_choice_rules.py", *_ROUTER),
            "hy3d_rocm/conv/errors.py": ("test_errors.py", "test_verdict_rules.py", *_ROUTER),
            "hy3d_rocm/conv/estimate.py": ("test_choice.py", "test_choice_rules.py", *_ROUTER),
            "hy3d_rocm/conv/ladder.py": _ROUTER,
            "hy3d_rocm/conv/policy.py": _ROUTER,
            "hy3d_rocm/conv/recovery.py": ("test_verdict_rules.py", *_ROUTER),
            "hy3d_rocm/conv/verdicts.py": ("test_verdict_rules.py", *_ROUTER),
        },
        left_out=(
            "test_router_store.py::test_importing_the_router_opens_no_store",
            "test_router_store.py"
            "::test_a_process_that_dies_in_its_first_vendor_call_leaves_a_hang_behind",
            # mutmut's own frames hold what this one counts.
            "test_router_memory.py::test_an_exception_that_leaves_protect_is_in_no_cycle",
        ),
    ),
    Group(
        "decode",
        {
            "hy3d_rocm/decode/faults.py": ("test_backend_rules.py", "test_decode_ladder.py"),
            "hy3d_rocm/decode/memory/budget.py": ("test_budget_rules.py", *_PLANNING),
            "hy3d_rocm/decode/plan.py": ("test_schedule_plan.py", "test_plan_fields.py"),
            "hy3d_rocm/decode/planning/jobs.py": _PLANNING,
            "hy3d_rocm/decode/planning/planner.py": _PLANNING,
            "hy3d_rocm/decode/black_box.py": _PLANNING,
            "hy3d_rocm/framepack/preservation.py": (
                "test_framepack_preservation.py", "test_framepack_preservation_values.py",
                "test_framepack_sections.py",
            ),
            "hy3d_rocm/offload/policy.py": ("test_offload_policy.py", "test_offload_borders.py"),
        },
        left_out=(
            "test_planning_compiled.py::test_measured_peaks_stay_below_the_planned_ones",
        ),
    ),
)  # fmt: skip

BY_NAME = {group.name: group for group in GROUPS}
