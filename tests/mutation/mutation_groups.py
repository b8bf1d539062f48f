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


_DEVICE = ("test_device.py", "test_device_rules.py", "_core/test_device.py")
_SEED = ("test_seed.py", "test_seed_rules.py", "_fallback/test_seed.py")
_SCHEDULE = (
    "_fallback/test_schedule.py",
    "_fallback/test_schedule_bounds.py",
    "_fallback/test_values.py",
)
_CHOICE = ("conv/test_choice.py", "conv/test_choice_rules.py")
_ROUTER = (
    "conv/test_fallback.py", "conv/test_router_plans.py", "conv/test_policy.py",
    "conv/test_router.py", "conv/test_router_broken.py", "conv/test_faults.py",
    "conv/test_router_store.py", "conv/test_router_lasting.py", "conv/test_router_measured.py",
    "conv/test_router_memory.py", "conv/test_router_planning.py", "conv/test_router_policy.py",
    "conv/test_router_probing.py", "conv/test_router_scope.py", "conv/test_selfcheck.py",
)  # fmt: skip
_PLANNING = (
    "decoding/planning/test_planner.py", "decoding/planning/test_planner_words.py",
    "decoding/test_fallback_chain.py", "decoding/planning/test_compiled.py",
    "decoding/test_backend_rules.py", "decoding/memory/test_budget.py",
    "decoding/families/test_unknown.py", "decoding/test_black_box.py",
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
            "hy3d_rocm/conv/choice.py": (*_CHOICE, *_ROUTER),
            "hy3d_rocm/conv/errors.py": ("conv/test_errors.py", "conv/test_verdicts.py", *_ROUTER),
            "hy3d_rocm/conv/fallback.py": ("conv/test_verdicts.py", *_ROUTER),
            "hy3d_rocm/conv/policy.py": _ROUTER,
            "hy3d_rocm/conv/verdicts.py": ("conv/test_verdicts.py", *_ROUTER),
        },
        {
            "csrc/route/choose.c": ("route",),
            "csrc/route/rates.c": ("route",),
            "csrc/cache/cache.c": ("cache",),
        },
        left_out=(
            "conv/test_router_store.py::test_importing_the_router_opens_no_store",
            "conv/test_router_store.py"
            "::test_a_process_that_dies_in_its_first_vendor_call_leaves_a_hang_behind",
            # mutmut's own frames hold what this one counts.
            "conv/test_router_memory.py::test_an_exception_that_leaves_protect_is_in_no_cycle",
        ),
    ),
    Group(
        "decode",
        {
            "hy3d_rocm/decoding/faults.py": (
                "decoding/test_backend_rules.py", "decoding/test_fallback_chain.py",
            ),
            "hy3d_rocm/decoding/memory/budget.py": (
                "decoding/memory/test_budget_rules.py", *_PLANNING,
            ),
            "hy3d_rocm/decoding/plan.py": ("decoding/test_plan.py", "decoding/test_plan_fields.py"),
            "hy3d_rocm/decoding/planning/jobs.py": _PLANNING,
            "hy3d_rocm/decoding/planning/planner.py": _PLANNING,
            "hy3d_rocm/decoding/black_box.py": _PLANNING,
            "hy3d_rocm/framepack/preservation.py": (
                "framepack/test_preservation.py", "framepack/test_preservation_values.py",
                "framepack/test_sections.py",
            ),
            "hy3d_rocm/offload/memory.py": (
                "offload/test_policy.py", "offload/test_borders.py", "offload/test_measure.py",
                "offload/test_estimate.py",
            ),
        },
        left_out=(
            "decoding/planning/test_compiled.py::test_measured_peaks_stay_below_the_planned_ones",
        ),
    ),
)  # fmt: skip

BY_NAME = {group.name: group for group in GROUPS}
