"""What a log says went wrong, what is wrong with this machine's set-up, and its variables.

`diagnose(text)` gives the causes in a log that are known, first cause first; `examine(lines)` also
says what no rule knows. Works without torch. Names are loaded on first use: ComfyUI's start reads
`env/` alone, before torch.
"""

from __future__ import annotations

from hy3d_rocm._lazy import names

TYPE_CHECKING = False  # as typing's, which takes longer to import than all that is here
if TYPE_CHECKING:
    from hy3d_rocm.diagnose.log.examine import Diagnosis, Evidence, Examination, diagnose, examine

__all__ = ["Diagnosis", "Evidence", "Examination", "diagnose", "examine"]
__getattr__, __dir__ = names(__name__, dict.fromkeys(__all__, "log.examine"))
