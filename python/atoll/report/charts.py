"""The charts of a report, drawn by matplotlib: as a part of the page, and as SVG, PNG and PDF for papers.

Charts: loss against tokens, time or bytes; dots and bars of arms; parts of the workers' time.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..command import need
from ..units import bytes_text, count_text, duration_text, percent_text
from .data import Curve, Stat, known

# Colours that remain apart for colour-blind readers.
COLOURS = ("#0067b1", "#d1480a", "#00805f", "#b8488f", "#a66f00", "#2a93cf", "#5f5f5f", "#8a1f4f")
DASHES = ("", "6 2.5", "1.5 1.8", "7 2 1.5 2")  # the colours repeat with other dashes
_INK, _SOFT, _GRID, _PAGE = "#1b1d21", "#63676e", "#e3e5e8", "#ffffff"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
_X_LABELS = {"tokens": "tokens of all workers", "seconds": "time, without evaluations",
             "bytes": "bytes sent by all workers and the coordinator"}
_TEXTS: dict[str, Callable[[float], str]] = {"tokens": count_text, "seconds": duration_text, "bytes": bytes_text}
# Round numbers of the axes of seconds and of bytes.
_TIMES = [n * unit for unit, numbers in ((1e-3, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1, (1, 2, 5, 10, 20, 30)),
                                         (60, (1, 2, 5, 10, 20, 30)), (3600, (1, 2, 4, 8, 16)),
                                         (86400, (1, 2, 4, 7, 14, 30, 60, 120, 365))) for n in numbers]
_ROUND = {"seconds": _TIMES, "bytes": [n * 10.0**e for e in range(18) for n in (1, 2, 5)]}
_START_UP = 0.15  # part of the tokens whose losses may lie above the chart
_PNG_DPI = 200
_LEGEND_COLUMNS = 4


def load() -> Any:
    """matplotlib, set up for charts without mathematical text."""
    try:
        import matplotlib
    except ImportError:
        raise need("matplotlib", "atoll report") from None
    matplotlib.use("agg")
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "atoll", "pdf.fonttype": 42, "text.parse_math": False,
        "font.size": 10, "font.family": "sans-serif", "axes.unicode_minus": False, "lines.solid_capstyle": "round",
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.linewidth": 0.8,
        "axes.edgecolor": _SOFT, "axes.labelcolor": _INK, "text.color": _INK, "xtick.color": _SOFT,
        "ytick.color": _SOFT, "xtick.major.width": 0.8, "ytick.major.width": 0, "axes.grid": True,
        "axes.grid.axis": "y", "grid.color": _GRID, "axes.axisbelow": True, "legend.frameon": False,
    })
    return matplotlib


@dataclass(frozen=True)
class Chart:
    """A finished chart: `svg` for the page, and the files for papers, by their endings."""

    name: str
    svg: str
    files: dict[str, bytes]


def draw(name: str, size: tuple[float, float], paint: Callable[[Any], None]) -> Chart:
    """Draws a chart for the page and for papers. `paint` fills a figure; `size` is in inches, of 72 pixels."""
    from matplotlib.figure import Figure

    figure, files = Figure(figsize=size, layout="constrained"), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a font without the characters of a name
        paint(figure)
        for form, no_date in (("svg", {"Date": None}), ("png", None), ("pdf", {"CreationDate": None})):
            file = io.BytesIO()
            figure.savefig(file, format=form, dpi=_PNG_DPI if form == "png" else 72, metadata=no_date)
            files[form] = file.getvalue()
    return Chart(name, _page_svg(name, files["svg"].decode()), files)


def _page_svg(name: str, svg: str) -> str:
    """The SVG as a part of an HTML page: no header, ids of its own, classes for arms, the font of the page."""
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->\s*", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{name}">', svg)
    svg = re.sub(r'id="(arm\d+)"', r'class="\1"', svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    svg = re.sub(r"font: ([^;\"]*?)([\d.]+px) [^;\"]*", r"font: \1\2 system-ui, sans-serif", svg)
    return re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", svg)


def _look(arm: int) -> dict[str, Any]:
    """Colour and dashes of an arm, and the name by which the page hides it."""
    dash = DASHES[arm // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[arm % len(COLOURS)], "gid": f"arm{arm}",
            "linestyle": (0, tuple(map(float, dash.split()))) if dash else "-"}


def _name_lines(axes: Any, columns: int) -> None:
    """A legend above the axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=9)


def scale_x(axes: Any, axis: str, low: float, high: float, most: int = 7, force_log: bool = False) -> None:
    """Limits and ticks of an x axis in tokens, seconds or bytes; logarithmic if the range exceeds a factor of ten."""
    text, values = _TEXTS[axis], _ROUND.get(axis, [])
    if values and low > 0 and (high > 10 * low or force_log):
        axes.set_xscale("log")
        low, high = low / 1.25, high * 1.25
        if sum(low <= value <= high for value in values) < 2:  # the next round numbers around the data
            low = max((value for value in values if value <= low), default=low)
            high = min((value for value in values if value >= high), default=high)
        inside = [value for value in values if low <= value <= high]
        inside = inside[:: math.ceil(len(inside) / most)]
        axes.set_xticks(inside, [text(value) for value in inside])
        axes.set_xticks([], minor=True)
    else:
        from matplotlib.ticker import MultipleLocator

        low, high = 0.0, high * 1.02
        if axis == "seconds":
            axes.xaxis.set_major_locator(MultipleLocator(next((t for t in _TIMES if high <= 8 * t), high / 8)))
        axes.xaxis.set_major_formatter(lambda value, _: text(value) if value > 0 else "0")
    axes.set_xlim(low, high)


# --- loss -------------------------------------------------------------------------------------------------------------


def loss_chart(name: str, curves: Sequence[Curve], axis: str, target: float | None, x_label: str | None = None,
               y_label: str = "validation loss") -> Chart:
    """Loss against tokens, seconds or bytes: a line for each arm, and a band from the lowest to the highest seed."""

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        positive = [x for curve in curves for x in curve.x if x > 0]
        scale_x(axes, axis, min(positive, default=1), max((curve.x[-1] for curve in curves), default=1))
        axes.set_ylim(*loss_limits(curves, target))
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)
        axes.set_xlabel(x_label or _X_LABELS[axis])
        axes.set_ylabel(y_label)
        for curve in curves:
            _line(axes, curve)
        if target:
            axes.axhline(target, color=_INK, linewidth=1, linestyle=(0, (4, 3)), label="target")
        _name_lines(axes, _LEGEND_COLUMNS)

    return draw(name, (11, 5.2 + 0.25 * (len(curves) // _LEGEND_COLUMNS)), paint)


def _line(axes: Any, curve: Curve) -> None:
    arm, look = curve.row.index, _look(curve.row.index)
    first = sum(x <= 0 for x in curve.x) if axes.get_xscale() == "log" else 0  # the untrained model has no place there
    x, mean = curve.x[first:], curve.mean[first:]
    axes.fill_between(x, curve.low[first:], curve.high[first:], color=look["color"], gid=look["gid"], alpha=0.13,
                      linewidth=0)
    axes.plot(x, mean, linewidth=1.8, marker=_MARKERS[arm % len(_MARKERS)], markersize=5.5,
              markevery=[-1], label=curve.row.title, **look)


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


# --- arms -------------------------------------------------------------------------------------------------------------


def panels(name: str, columns: Mapping[str, Sequence[Stat]], arms: Sequence[str], axis: str) -> Chart:
    """A panel for each title with a row for each arm. `axis`: "seconds" draws dots, "utilization" bars.

    Infinite is a mark at the right edge, None is left out. Numbers show their seeds.
    """
    finite = [stat.value for column in columns.values() for stat in column if known(stat.value)]

    def paint(figure: Any) -> None:
        grid = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for axes, (title, column) in zip(grid, columns.items(), strict=True):
            axes.grid(axis="x", linewidth=0.8)
            axes.set_title(title, fontsize=10, loc="left")
            if axis == "seconds":
                scale_x(axes, axis, min(finite, default=1), max(finite, default=1), max(3, 8 // len(columns)), True)
            else:
                axes.set_xlim(0, 1.3)
                axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
            for arm, stat in enumerate(column):
                _row(axes, axis, arm, stat)
        grid[0].set_yticks(range(len(arms)), arms, color=_INK)
        grid[0].set_ylim(len(arms) - 0.4, -0.6)

    return draw(name, (11, 0.9 + 0.27 * len(arms)), paint)


def _row(axes: Any, axis: str, arm: int, stat: Stat) -> None:
    color, gid, value = COLOURS[arm % len(COLOURS)], f"arm{arm}", stat.value
    note: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8.5, "gid": gid}
    if value is None:
        axes.annotate("–", (0.02, arm), xycoords=("axes fraction", "data"), color=_SOFT, va="center", gid=gid)
    elif math.isinf(value):
        axes.plot([1], [arm], marker=">", color=color, markersize=6, markerfacecolor=_PAGE, clip_on=False,
                  transform=axes.get_yaxis_transform(), linestyle="none", gid=gid)
        axes.annotate(f"{stat.count} reach it" if stat.reached else f"never ({stat.count})", (1, arm), ha="right",
                      xycoords=("axes fraction", "data"), xytext=(-7, 0), color=_SOFT, **note)
    elif axis == "seconds":
        axes.plot([value], [arm], marker=_MARKERS[arm % len(_MARKERS)], color=color, markersize=6, gid=gid)
        low, high = map(math.log, axes.get_xlim())
        side = -1 if math.log(value) > (low + high) / 2 else 1  # on the side with more room
        axes.annotate(f"{duration_text(value)} ({stat.count})", (value, arm), xytext=(7 * side, 0),
                      ha="left" if side > 0 else "right", **note)
    else:
        axes.barh([arm], [value], height=0.6, color=color, alpha=0.8, gid=gid)
        axes.annotate(f"{percent_text(value)} ({stat.count})", (value, arm), xytext=(4, 0), **note)


def parts_chart(name: str, parts: Sequence[str], shares: Mapping[str, Sequence[float]]) -> Chart:
    """A bar for each worker, divided into parts of its time. `shares`: seconds by worker."""

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.grid(visible=False)
        left = [0.0] * len(shares)
        for i, part in enumerate(parts):
            widths = [seconds[i] / (sum(seconds) or 1.0) for seconds in shares.values()]
            bars = axes.barh(range(len(shares)), widths, left=left, height=0.62, color=COLOURS[i], label=part)
            labels = [percent_text(width) if width > 0.06 else "" for width in widths]
            axes.bar_label(bars, labels, label_type="center", fontsize=9, color=_PAGE)
            left = [begin + width for begin, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(shares)), list(shares), color=_INK)
        axes.set_ylim(len(shares) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        _name_lines(axes, len(parts))

    return draw(name, (11, 1.3 + 0.34 * len(shares)), paint)
