"""What a log says went wrong: `hy3d-rocm diagnose`. Works without torch.

`diagnose(text)` gives the causes that are known, first cause first; `examine(lines)` also says what
no rule knows. The rules are data (rules/*.toml), the order of events is read by `events.py`.
"""

from __future__ import annotations

from hy3d_rocm.diagnose.examine import Examination, diagnose, examine
from hy3d_rocm.diagnose.found import Diagnosis, Evidence

__all__ = ["Diagnosis", "Evidence", "Examination", "diagnose", "examine"]
