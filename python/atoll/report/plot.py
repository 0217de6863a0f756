"""The charts of a report: drawn by matplotlib as SVG for the page, and as SVG, PNG and PDF for papers.

The SVG names its colours as variables of CSS, so that one drawing fits a light and a dark page. Its text is text, in
the font of the page.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..command import need
from ..units import bytes_text, count_text, duration_text
from .data import Curve

# Colours that remain apart for colour-blind readers, for a light and for a dark page.
LIGHT = ("#0067b1", "#d1480a", "#00805f", "#b8488f", "#a66f00", "#2a93cf", "#5f5f5f", "#8a1f4f")
DARK = ("#5aaeff", "#ff8f52", "#35c79b", "#f08cc4", "#e8b33a", "#9adcff", "#bdbdbd", "#e0789f")
_INK = {"ink": "#1b1d21", "soft": "#63676e", "grid": "#e3e5e8", "page": "#ffffff"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
DASHES = ("", "6 2.5", "1.5 1.8", "7 2 1.5 2")  # the colours repeat with other dashes
# Round numbers of a logarithmic axis of seconds.
_TIMES = [n * unit for unit, numbers in ((1e-3, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1, (1, 2, 5, 10, 20, 30)),
                                         (60, (1, 2, 5, 10, 20, 30)), (3600, (1, 2, 4, 8, 16)),
                                         (86400, (1, 2, 4, 7, 14, 30, 60, 120, 365))) for n in numbers]
_START_UP = 0.15  # part of the tokens whose losses may lie above the chart
_PNG_DPI = 200


def load() -> Any:
    """matplotlib, set up for charts without mathematical text."""
    try:
        import matplotlib
    except ImportError:
        raise need("matplotlib", "atoll report") from None
    matplotlib.use("agg")
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "atoll", "text.parse_math": False, "font.size": 10,
        "font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
        "xtick.major.width": 0.8, "ytick.major.width": 0, "lines.solid_capstyle": "round", "axes.unicode_minus": False,
        "pdf.fonttype": 42,
    })
    return matplotlib


# --- themes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theme:
    """Colours of a drawing. Those of the SVG are marks that `_page_colours` replaces by variables."""

    arms: tuple[str, ...]
    ink: str
    soft: str
    grid: str
    page: str

    def arm(self, index: int) -> dict[str, Any]:
        dash = DASHES[index // len(self.arms) % len(DASHES)]
        style = (0, tuple(float(part) for part in dash.split())) if dash else "-"
        return {"color": self.arms[index % len(self.arms)], "linestyle": style}


PAPER = Theme(LIGHT, **_INK)
_VARIABLES = {f"#fe{i:02x}01": f"--c{i}" for i in range(len(LIGHT))} | {
    "#fd0001": "--ink", "#fd0101": "--soft", "#fd0201": "--grid", "#fd0301": "--page"}
_SCREEN = Theme(*(lambda marks: (tuple(marks[: len(LIGHT)]), *marks[len(LIGHT) :]))(list(_VARIABLES)))


@dataclass(frozen=True)
class Chart:
    """A finished chart: `svg` for the page, and the files for papers, by their endings."""

    name: str
    svg: str
    files: dict[str, bytes]


def draw(name: str, size: tuple[float, float], paint: Callable[[Any, Theme], None], layout: str | None) -> Chart:
    """Draws a chart for the page and for papers. `paint` fills a figure; `size` is in inches, of 72 pixels."""
    from matplotlib.figure import Figure

    drawn = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a font without the characters of a name
        for theme in (_SCREEN, PAPER):
            figure = Figure(figsize=size, layout=layout)
            paint(figure, theme)
            for form, no_date in (("svg", "Date"),) if theme is _SCREEN else \
                    (("svg", "Date"), ("png", None), ("pdf", "CreationDate")):
                file = io.BytesIO()
                figure.savefig(file, format=form, transparent=theme is _SCREEN, dpi=_PNG_DPI if form == "png" else 72,
                               metadata={no_date: None} if no_date else None)
                drawn.append(file.getvalue())
    page, *paper = drawn
    return Chart(name, _page_svg(name, page.decode()), dict(zip(("svg", "png", "pdf"), paper, strict=True)))


def _page_svg(name: str, svg: str) -> str:
    """The SVG as a part of an HTML page: no header, ids of its own, classes for arms, colours and font of the page."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{name}">', svg)
    svg = re.sub(r'id="(arm\d+)"', r'class="\1"', svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    svg = re.sub(r"font: ([^;\"]*?)([\d.]+px) [^;\"]*", r"font: \1\2 system-ui, sans-serif", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", svg)
    for mark, variable in _VARIABLES.items():
        svg = svg.replace(mark, f"var({variable})")
    return re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)


# --- axes -------------------------------------------------------------------------------------------------------------


def _ticks(axis: Any, low: float, high: float, values: Sequence[float], text: Callable[[float], str],
           most: int) -> None:
    """Few ticks with round numbers on a logarithmic axis."""
    inside = [value for value in values if low <= value <= high]
    if len(inside) > most:
        inside = [inside[round(i * (len(inside) - 1) / (most - 1))] for i in range(most)]
    axis.set_ticks(inside, [text(value) for value in inside])
    axis.set_ticks([], minor=True)


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 else (1,)
    return [step * 10.0**e for e in range(first, last + 1) for step in steps]


_TEXTS: dict[str, Callable[[float], str]] = {"tokens": count_text, "seconds": duration_text, "bytes": bytes_text}


def scale_x(axes: Any, axis: str, low: float, high: float, most: int = 7, force_log: bool = False) -> None:
    """Limits and ticks of an x axis in tokens, seconds or bytes; logarithmic if the range exceeds a factor of ten."""
    text = _TEXTS[axis]
    if axis != "tokens" and low > 0 and (high > 10 * low or force_log):
        axes.set_xscale("log")
        low, high = low / 1.25, high * 1.25
        values = _TIMES if axis == "seconds" else _decades(low, high)
        if sum(low <= value <= high for value in values) < 2:  # the next round numbers around the data
            low = max((value for value in values if value <= low), default=low)
            high = min((value for value in values if value >= high), default=high)
        _ticks(axes.xaxis, low, high, values, text, most)
    else:
        from matplotlib.ticker import FuncFormatter

        low, high = 0.0, high * 1.02
        if axis == "seconds" and high > 120:
            unit = next(size for size in (86400, 3600, 60) if high >= 2 * size)
            steps = (n * unit for n in (1, 2, 5, 10, 20, 50, 100, 1000, 10000) if high <= 8 * n * unit)
            each = next(steps, high / 8)
            axes.set_xticks([i * each for i in range(int(high / each) + 1)])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value) if value > 0 else "0"))
    axes.set_xlim(low, high)


def quiet(axes: Any, theme: Theme) -> None:
    """Colours of axes, grid and labels."""
    axes.patch.set_alpha(0)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_color(theme.soft)
    axes.spines["left"].set_visible(False)
    axes.tick_params(colors=theme.soft, labelcolor=theme.soft)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)


def loss_limits(curves: Sequence[Curve], target: float | None) -> tuple[float, float]:
    """Limits of the loss: the end of training fills the chart, and the losses of the start-up are cut off."""
    if not curves:
        return 0.0, 1.0
    ends = sorted(curve.mean[-1] for curve in curves)
    values = [value for curve in curves for value in curve.low]
    bottom = min([*values, *([target] if target else [])])
    # The first point may be the untrained model.
    early = [curve.mean[max(int(curve.x[0] == 0), int(_START_UP * (len(curve.mean) - 1)))]
             for curve in curves if len(curve.mean) > 1]
    middle = ends[len(ends) // 2]
    far = middle + 5 * max(middle - bottom, 0.02)  # a diverged arm does not flatten the others
    top = max(min(ends[-1], far), min(early, default=0), target or 0, bottom + 0.002 * abs(bottom) + 0.001)
    pad = 0.06 * (top - bottom)
    return bottom - pad, top + pad


def outside(curves: Sequence[Curve], target: float | None) -> list[str]:
    """Titles of rows whose end lies above the chart."""
    top = loss_limits(curves, target)[1] if curves else 0
    return [f"{curve.row.label} (final loss {curve.mean[-1]:.3f})" for curve in curves if curve.mean[-1] > top]
