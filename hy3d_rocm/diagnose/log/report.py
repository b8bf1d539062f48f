"""An examination as text for 100 columns and as JSON."""

from __future__ import annotations

import textwrap
from typing import Any

from hy3d_rocm.diagnose.env.shown import anonymous, printable
from hy3d_rocm.diagnose.log.examine import Diagnosis, Evidence, Examination

WIDTH = 100
FINE, FOUND, UNKNOWN, EMPTY = 0, 1, 3, 4
_LINE_CHARS = 2 * WIDTH
_TEXTS = (
    "rule", "severity", "symptom", "where", "cause", "note", "confidence", "do", "rank", "here",
    "otherwise", "remedy",
)  # fmt: skip
_WHAT_TO_SEND = (
    "No rule knows what went wrong here. To have it looked at, send the whole log from the start of"
    " the program (not only its end), what `hy3d-rocm doctor --json` prints, the workflow, and"
    " whether the program ended, stood still or went on."
)


def exit_code(found: Examination) -> int:
    """0: a run finished and nothing wrong was seen (harmless notices count as that); 1: a cause
    was found; 3: it can't be told, since no rule knows the errors or no run is shown to its end;
    4: the log is empty."""
    if found.causes:
        return FOUND
    if not found.lines:
        return EMPTY
    return FINE if found.finished and not found.unknown_count else UNKNOWN


def text_of(found: Examination, source: str) -> str:
    head = f"{_shown(source)}: {_lines(found.lines)}. {_summary(found)}"
    blocks = [textwrap.fill(head, WIDTH, break_long_words=False, break_on_hyphens=False)]
    blocks += (_cause(diagnosis, number) for number, diagnosis in enumerate(found.causes, 1))
    if found.unknown_count:
        blocks.append(_unknown(found))
    if found.notices:
        blocks.append("Harmless:\n" + "\n".join(_notice(notice) for notice in found.notices))
    return "\n\n".join(blocks) + "\n"


def _shown(text: str) -> str:
    """A log's own words in a report that is shown to others: no home folders, no names."""
    return printable(anonymous(text, keep_paths=True))


def _lines(number: int) -> str:
    return f"{number} line{'s' * (number != 1)}"


def _summary(found: Examination) -> str:
    causes = len(found.causes)
    if causes:
        return "1 cause found." if causes == 1 else f"{causes} causes found, the worst first."
    if not found.lines:
        return "The log is empty: nothing can be told from it."
    if found.unknown_count:
        return "Errors, but none that is known."
    if found.finished:
        return "A run finished, and nothing wrong was seen."
    return (
        "Not told: no error was seen, but the log does not show a run that finished. If it stands"
        " still or ended there, give the whole log from the start of the program, and `dmesg`."
    )


def _wrapped(label: str, text: str) -> str:
    head = f"   {label:<9}"
    return textwrap.fill(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _line(row: Evidence) -> str:
    return _wrapped("line", f"{row.line}: {_shown(row.text)[:_LINE_CHARS]}")


def _cause(diagnosis: Diagnosis, number: int) -> str:
    where = f" ({diagnosis.where})" if diagnosis.where else ""
    head = f"{number}. {diagnosis.symptom.rstrip('.')}{where}. [{diagnosis.rule}]"
    rows = [textwrap.fill(head, WIDTH, subsequent_indent="   ", break_on_hyphens=False)]
    rows += map(_line, diagnosis.evidence)
    if diagnosis.count > len(diagnosis.evidence) > 1:
        rows.insert(-1, f"            ... {diagnosis.count - len(diagnosis.evidence)} more ...")
    parts = {
        "cause": f"{diagnosis.cause} ({diagnosis.confidence})", "figures": diagnosis.note,
        "do": diagnosis.do, "here": diagnosis.here, "else": diagnosis.otherwise,
    }  # fmt: skip
    rows += (_wrapped(label, text) for label, text in parts.items() if text)
    for other in diagnosis.follow_ups:
        more = f" and {other.count - 1} more" if other.count > 1 else ""
        text = f"{other.symptom} [{other.rule}] line {other.evidence[0].line}{more}"
        rows.append(_wrapped("followed", text))
        if other.note and not diagnosis.note:
            rows.append(_wrapped("figures", other.note))
    rows.append(_wrapped("source", diagnosis.source))
    return "\n".join(rows)


def _notice(notice: Diagnosis) -> str:
    times = "once" if notice.count == 1 else f"{notice.count} times"
    text = f"{notice.symptom} {notice.cause} (line {notice.evidence[0].line}, {times})"
    return textwrap.fill(text, WIDTH, initial_indent=" - ", subsequent_indent="   ")


def _unknown(found: Examination) -> str:
    rows = ["Also in the log, and known to no rule:" if found.causes else "Known to no rule:"]
    hidden = found.unknown_count - len(found.unknown)
    if hidden > 0:
        rows.append(f"   ({_lines(hidden)} before these)")
    rows += map(_line, found.unknown)
    if found.origin:
        rows.append(_wrapped("where", f"The last traceback ends {_shown(found.origin)}."))
    if not found.causes:
        rows.append(textwrap.fill(_WHAT_TO_SEND, WIDTH))
    return "\n".join(rows)


def as_dict(found: Examination, source: str) -> dict[str, Any]:
    """The same for JSON. `version` changes when a key changes its meaning or goes."""
    return {
        "version": 2,
        "source": _shown(source),
        "lines": found.lines,
        "exit_code": exit_code(found),
        "diagnoses": [_diagnosis(diagnosis) for diagnosis in found.diagnoses],
        "unknown": [{"line": row.line, "text": _shown(row.text)} for row in found.unknown],
        "unknown_count": found.unknown_count,
        "origin": _shown(found.origin),
        "finished": found.finished,
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        **{name: getattr(diagnosis, name) for name in _TEXTS},
        "evidence": [{"line": row.line, "text": _shown(row.text)} for row in diagnosis.evidence],
        "count": diagnosis.count,
        "source": diagnosis.source,
        "follow_ups": [_diagnosis(other) for other in diagnosis.follow_ups],
    }
