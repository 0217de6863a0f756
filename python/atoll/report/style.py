"""Style and script of report.html: one file without anything from a network, for light and dark screens."""

from __future__ import annotations

from .plot import DARK, LIGHT

_TABS = 12  # links that a page can switch between


def _colours(palette: tuple[str, ...], ink: str, soft: str, grid: str, page: str, shade: str, warn: str) -> str:
    named = {"ink": ink, "soft": soft, "grid": grid, "page": page, "shade": shade, "warn": warn}
    return ";".join([f"--c{i}:{colour}" for i, colour in enumerate(palette)] + [f"--{n}:{c}" for n, c in named.items()])


def style() -> str:
    tabs = ",".join(f".tabs>input:nth-of-type({i}):checked~.panels>:nth-child({i})" for i in range(1, _TABS + 1))
    labels = ",".join(f".tabs>input:nth-of-type({i}):checked~.names>:nth-child({i})" for i in range(1, _TABS + 1))
    focus = ",".join(f".tabs>input:nth-of-type({i}):focus-visible~.names>:nth-child({i})" for i in range(1, _TABS + 1))
    return (
        ":root{color-scheme:light dark;"
        f"{_colours(LIGHT, '#1b1d21', '#5d6168', '#e3e5e8', '#ffffff', '#f5f6f7', '#b3261e')}}}"
        f"@media(prefers-color-scheme:dark){{:root{{"
        f"{_colours(DARK, '#e8e9eb', '#a4a8af', '#33373d', '#15171a', '#1e2125', '#ff8a80')}}}}}"
        + _RULES
        + f"{tabs}{{display:block}}{labels}{{color:var(--ink);border-color:var(--ink)}}"
        + f"{focus}{{outline:2px solid var(--c0)}}"
    )


_RULES = """
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:72rem;background:var(--page);color:var(--ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .25rem;text-wrap:balance}
h2{font-size:1.15rem;margin:2.75rem 0 .4rem}
p{margin:.4rem 0;max-width:46rem}
.about,.note,figcaption{color:var(--soft);font-size:.86rem}
.answer{margin:1.25rem 0;padding:.9rem 1.15rem;background:var(--shade);border-radius:.5rem}
.answer p{max-width:none;margin:.3rem 0}
.answer .warn{color:var(--warn);font-weight:600}
figure{margin:.5rem 0 0}
.wide{overflow-x:auto}
.cut::before{content:"scroll sideways \\2192";position:sticky;left:0;display:block;width:max-content;
 color:var(--soft);font-size:.8rem}
figure svg{display:block;width:100%;min-width:44rem;height:auto}
figure svg text{paint-order:stroke;stroke:var(--page);stroke-width:2.5px;stroke-linejoin:round}
figure svg text[style*="fill: var(--page)"]{stroke:none}
.legend{position:sticky;top:0;z-index:1;display:flex;flex-wrap:wrap;gap:.1rem .3rem;margin:1.5rem 0 0;
 padding:.35rem 0;background:var(--page);border-bottom:1px solid var(--grid)}
.legend button{display:flex;align-items:center;gap:.4rem;padding:.1rem .45rem;border:0;border-radius:.3rem;
 background:none;color:inherit;font:inherit;font-size:.84rem;cursor:pointer}
.legend button:hover{background:var(--shade)}
.legend button[aria-pressed=false]{opacity:.4;text-decoration:line-through}
.legend svg{width:1.7rem;height:.8rem}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:.32rem .45rem;text-align:right;border-bottom:1px solid var(--grid)}
th{font-weight:600;color:var(--soft);vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--page)}
td:first-child{color:var(--ink)}
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
.tabs>input{position:absolute;opacity:0}
.names{display:flex;flex-wrap:wrap;gap:.25rem 1.2rem;border-bottom:1px solid var(--grid)}
.names label{padding:.35rem 0;margin-bottom:-1px;border-bottom:2px solid transparent;color:var(--soft);
 font-size:.92rem;cursor:pointer}
.panels>*{display:none}
details{margin:.7rem 0;border-top:1px solid var(--grid);padding-top:.6rem}
summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;padding:.8rem 1rem;background:var(--shade);border-radius:.4rem;font-size:.8rem;line-height:1.45}
.off{display:none}
@media(max-width:40rem){body{padding:1.2rem .9rem 3rem;font-size:15px}h1{font-size:1.35rem}
 th,td{padding:.3rem .5rem}th:first-child,td:first-child{max-width:9.5rem;white-space:normal}.legend{position:static}}
@media print{.legend{position:static}.panels>*{display:block}}
"""

# A click on a name of the legend hides the arm in all charts and shows it again. Wide parts say that they scroll.
SCRIPT = """
function mark() {
  document.querySelectorAll(".wide").forEach(function (part) {
    part.classList.toggle("cut", part.scrollWidth > part.clientWidth + 1);
  });
}
["load", "resize"].forEach(function (event) { window.addEventListener(event, mark); });
document.querySelectorAll("details").forEach(function (part) { part.addEventListener("toggle", mark); });
document.querySelectorAll(".tabs>input").forEach(function (part) { part.addEventListener("change", mark); });
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
