"""Parts of report.html: escaped text, tables, figures, tabs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..command import clean
from .plot import DASHES, LIGHT, Chart
from .style import SCRIPT, style


def text(value: Any) -> str:
    return escape(clean(str(value)))


def lines(value: Any) -> str:
    """Text of several lines."""
    return "\n".join(text(line) for line in str(value).splitlines())


def cell(content: str, kind: str = "") -> str:
    return f'<td class="{kind}">{content}</td>' if kind else f"<td>{content}</td>"


def table(heads: Sequence[str], rows: Sequence[str], group: str = "") -> str:
    """`heads` and `rows` are HTML; a row is the text of its cells. `group`: a row above the heads."""
    names = "".join(head if head.startswith("<th") else f"<th>{head}</th>" for head in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead>{group}<tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def count(seeds: str) -> str:
    """The seeds behind a number, in brackets."""
    return f'<span class="n">({text(seeds)})</span>'


def swatch(index: int) -> str:
    return f'<span class="swatch" style="background:var(--c{index % len(LIGHT)})"></span>'


def figure(chart: Chart, caption: str = "") -> str:
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure><div class="wide">{chart.svg}</div>{below}</figure>'


def tabs(name: str, titles: Sequence[str], panels: Sequence[str]) -> str:
    if len(panels) == 1:
        return panels[0]
    inputs = "".join(f'<input type="radio" name="{name}" id="{name}-{i}"{"" if i else " checked"}>'
                     for i in range(len(titles)))
    labels = "".join(f'<label for="{name}-{i}">{text(title)}</label>' for i, title in enumerate(titles))
    return (f'<div class="tabs">{inputs}<div class="names">{labels}</div>'
            f'<div class="panels">{"".join(f"<div>{panel}</div>" for panel in panels)}</div></div>')


def legend(titles: Sequence[str]) -> str:
    """A button for each arm, with its line."""
    buttons = []
    for i, title in enumerate(titles):
        dash = DASHES[i // len(LIGHT) % len(DASHES)]
        line = f'<line x1="1" x2="27" y1="6" y2="6" stroke="var(--c{i % len(LIGHT)})" stroke-width="2.5"'
        line += f' stroke-dasharray="{dash}"/>' if dash else "/>"
        buttons.append(f'<button type="button" aria-pressed="true" data-arm="arm{i}" title="hide or show">'
                       f'<svg viewBox="0 0 28 12" aria-hidden="true">{line}</svg>{text(title)}</button>')
    return f'<div class="legend">{"".join(buttons)}</div>'


def details(title: str, content: str) -> str:
    return f"<details><summary>{text(title)}</summary>{content}</details>"


def code(value: Any) -> str:
    return f"<pre>{lines(value)}</pre>"


def page(title: str, about: str, content: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{style()}</style></head>\n"
        f'<body><h1>{text(title)}</h1><p class="about">{about}</p>\n{content}\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    )
