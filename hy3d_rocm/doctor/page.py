"""An examination as one page of HTML: light and dark, nothing loaded from anywhere."""

from __future__ import annotations

import html

from hy3d_rocm import __version__
from hy3d_rocm.doctor.finding import Examined, Finding, Severity
from hy3d_rocm.doctor.lines import headline, sections

_STYLE = """
:root { color-scheme: light dark; --ground: #fafaf8; --card: #fff; --ink: #1e2228;
  --quiet: #5d6570; --line: #e2e4e8; --code: #f0f0ec; --link: #0b5cad;
  --error: #b3261e; --warning: #8a5a00; --advice: #0b5cad; --fine: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ground: #14161a; --card: #1d2026; --ink: #e6e8eb;
  --quiet: #a3abb6; --line: #333842; --code: #272b33; --link: #84b9f2;
  --error: #ff8a80; --warning: #f0b955; --advice: #84b9f2; --fine: #79cf97; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 960px; margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { color: var(--quiet); margin: .2rem 0 1.6rem; }
a { color: var(--link); overflow-wrap: anywhere; }
article { background: var(--card); border: 1px solid var(--line); border-left-width: 5px;
  border-radius: 8px; padding: .8rem 1.1rem; margin: .8rem 0; }
article h3 { font-size: 1.02rem; margin: 0 0 .35rem; }
article p { margin: .3rem 0; overflow-wrap: anywhere; }
.label { font-size: .74rem; font-weight: 700; text-transform: uppercase; letter-spacing: .05em; }
.evidence { color: var(--quiet); } .source { font-size: .85rem; }
.remedy::before { content: "Do: "; font-weight: 700; }
.error { border-left-color: var(--error); } .error .label { color: var(--error); }
.warning { border-left-color: var(--warning); } .warning .label { color: var(--warning); }
.advice { border-left-color: var(--advice); } .advice .label { color: var(--advice); }
.fine { border-left-color: var(--fine); } .fine .label { color: var(--fine); }
table { border-collapse: collapse; width: 100%; background: var(--card); font-size: .92rem;
  border: 1px solid var(--line); }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { width: 9rem; font-weight: 600; } td div + div { margin-top: .2rem; }
@media (max-width: 560px) { th, td { display: block; width: auto; } th { border: 0; } }
"""


def as_html(examination: Examined) -> str:
    """A whole document. All text is escaped; only http(s) addresses become links."""
    said = headline(examination)
    rows = "".join(_row(title, lines) for title, lines in sections(examination.facts).items())
    when = html.escape(str(examination.facts.get("when", "")))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>hy3d-rocm doctor: {html.escape(said)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{html.escape(said[0].upper() + said[1:])}</h1>\n"
        f'<p class="lead">hy3d-rocm {html.escape(__version__)}, {when}</p>\n'
        + "".join(map(_article, examination.findings))
        + f"<h2>What was found out</h2>\n<table>{rows}</table>\n</body>\n</html>\n"
    )


def _article(finding: Finding) -> str:
    parts = [
        f'<span class="label">{html.escape(str(finding.severity))}</span>',
        f"<h3>{html.escape(finding.title)}</h3>",
        f'<p class="evidence">{html.escape(finding.evidence)}</p>',
    ]
    if finding.remedy:
        parts.append(f'<p class="remedy">{html.escape(finding.remedy)}</p>')
    links = [_link(address) for address in finding.source.split()]
    if links:
        parts.append(f'<p class="source">{"<br>".join(links)}</p>')
    kind = finding.severity if finding.severity in Severity else Severity.ADVICE
    return f'<article class="{kind}" id="{html.escape(finding.id)}">{"".join(parts)}</article>\n'


def _link(address: str) -> str:
    shown = html.escape(address)
    if not address.startswith(("https://", "http://")):
        return shown
    return f'<a href="{shown}" rel="noreferrer">{shown}</a>'


def _row(title: str, lines: list[str]) -> str:
    body = "".join(f"<div>{html.escape(line)}</div>" for line in lines)
    return f"<tr><th>{html.escape(title)}</th><td>{body}</td></tr>"
