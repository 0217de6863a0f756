"""Parts of report.html: escaped text, tables, figures. The page is one file without anything from a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from ..command import clean
from .charts import COLOURS, DASHES, Chart


class Markup(str):
    """Text that is HTML already."""


class Cell(NamedTuple):
    """A cell of a table. kind: classes, in place of those of its column."""

    content: Any
    kind: str


def text(value: Any) -> str:
    return value if isinstance(value, Markup) else escape(clean(str(value)))


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], group: str = "") -> str:
    """"" without rows. `heads`: names, as "text: link" if the column has the class text. `group`: a row above them."""
    if not rows:
        return ""
    kinds = [head.partition(": ")[0] if ": " in head else "" for head in heads]
    names = "".join(_tag("th", Cell(text(head.partition(": ")[2] or head), kind.replace("wrap", "")))
                    for head, kind in zip(heads, kinds, strict=True))
    body = "".join(f"<tr>{''.join(_tag('td', _cell(*pair)) for pair in zip(row, kinds, strict=True))}</tr>"
                   for row in rows)
    return f'<div class="wide"><table><thead>{group}<tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any, kind: str) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(value, kind)
    content = text(cell.content)
    return Cell(content, f"{cell.kind} miss".strip() if content.startswith(("–", "∞")) else cell.kind)


def _tag(name: str, cell: Cell) -> str:
    kind = cell.kind.strip()
    return f'<{name} class="{kind}">{cell.content}</{name}>' if kind else f"<{name}>{cell.content}</{name}>"


def count(number: str, seeds: str) -> Markup:
    """A number, and the seeds behind it in brackets."""
    return Markup(f'{text(number)} <span class="n">({text(seeds)})</span>')


def arm(index: int, title: str) -> Markup:
    """The name of an arm behind its colour."""
    return Markup(f'<span class="swatch" style="background:{COLOURS[index % len(COLOURS)]}"></span>{text(title)}')


def note(content: str) -> str:
    return f'<p class="note">{text(" ".join(content.split()))}</p>' if content else ""


def figure(chart: Chart, caption: str = "") -> str:
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f'<figure><div class="wide">{chart.svg}</div>{below}</figure>'


def legend(titles: Sequence[str]) -> str:
    """A button for each arm, with its line."""
    buttons = []
    for i, title in enumerate(titles):
        line = f'<line x1="1" x2="27" y1="6" y2="6" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2.5"' \
               f' stroke-dasharray="{DASHES[i // len(COLOURS) % len(DASHES)]}"/>'
        buttons.append(f'<button type="button" aria-pressed="true" data-arm="arm{i}" title="hide or show">'
                       f'<svg viewBox="0 0 28 12" aria-hidden="true">{line}</svg>{text(title)}</button>')
    return f'<div class="legend">{"".join(buttons)}</div>'


def details(title: str, content: str) -> str:
    return f"<details><summary>{text(title)}</summary>{content}</details>"


def code(value: Any) -> str:
    return "<pre>" + "\n".join(text(line) for line in str(value).splitlines()) + "</pre>"


def page(title: str, about: str, content: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head>\n"
        f'<body><h1>{text(title)}</h1><p class="about">{text(about)}</p>\n{content}\n'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


# A dark screen shows the light colours of charts and names inverted, with their hues.
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1d21;--soft:#5d6168;--grid:#e3e5e8;--page:#fff;--shade:#f5f6f7;--warn:#b3261e}
@media(prefers-color-scheme:dark){
 :root{--ink:#e8e9eb;--soft:#a4a8af;--grid:#33373d;--page:#141414;--shade:#1e2125;--warn:#ff8a80}
 svg,.swatch{filter:invert(.92) hue-rotate(180deg)}
}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:72rem;background:var(--page);color:var(--ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .25rem}
h2{font-size:1.15rem;margin:2.75rem 0 .4rem}
p{margin:.4rem 0;max-width:46rem}
.about,.note,figcaption{color:var(--soft);font-size:.86rem}
.answer{margin:1.25rem 0;padding:.9rem 1.15rem;background:var(--shade);border-radius:.5rem}
.answer p{max-width:none;margin:.3rem 0}
.answer .warn{color:var(--warn);font-weight:600}
figure{margin:.5rem 0 0}
.wide{overflow-x:auto}
figure svg{display:block;width:100%;min-width:44rem;height:auto}
.legend{position:sticky;top:0;z-index:1;display:flex;flex-wrap:wrap;gap:.1rem .3rem;margin:1.5rem 0 0;
 padding:.35rem 0;background:var(--page);border-bottom:1px solid var(--grid)}
.legend button{display:flex;align-items:center;gap:.4rem;padding:.1rem .45rem;border:0;background:none;
 color:inherit;font:inherit;font-size:.84rem;cursor:pointer}
.legend button[aria-pressed=false]{opacity:.4;text-decoration:line-through}
.legend svg{width:1.7rem;height:.8rem}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:.32rem .45rem;text-align:right;border-bottom:1px solid var(--grid)}
th{font-weight:600;color:var(--soft);vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--page)}
td.text,th.text{text-align:left}
td.wrap{white-space:normal;min-width:16rem}
tr.group th{border-bottom:0;text-align:center;color:var(--ink)}
.first{border-left:1px solid var(--grid)}
.best{font-weight:700}
.miss,.n{color:var(--soft)}
.n{font-size:.87em;font-weight:400}
.open{color:var(--soft);border-style:dashed}
.tag{display:inline-block;padding:0 .5em;border:1px solid var(--grid);border-radius:1em}
.swatch{display:inline-block;width:.7em;height:.7em;margin-right:.45em;border-radius:50%}
details{margin:.7rem 0;border-top:1px solid var(--grid);padding-top:.6rem}
summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;padding:.8rem 1rem;background:var(--shade);border-radius:.4rem;font-size:.8rem;line-height:1.45}
.off{display:none}
"""

# A click on a name of the legend hides the arm in all charts and shows it again.
_SCRIPT = """
document.querySelectorAll(".legend button").forEach(function (button) {
  button.addEventListener("click", function () {
    var shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", shown);
    document.querySelectorAll("figure ." + button.dataset.arm).forEach(function (part) {
      part.classList.toggle("off", !shown);
    });
  });
});
"""
