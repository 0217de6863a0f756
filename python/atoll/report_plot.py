"""The charts of a report: drawn once by matplotlib, as SVG for the page and as PNG for papers.

The SVG names its colours as variables of CSS, so that one drawing fits a light and a dark page. Its text is text, in
the font of the page.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .command import need
from .report_data import Curve, known

# Colours that remain apart for colour-blind readers, for a light and for a dark page.
LIGHT = ("#0067b1", "#d1480a", "#00805f", "#b8488f", "#a66f00", "#2a93cf", "#5f5f5f", "#8a1f4f")
DARK = ("#5aaeff", "#ff8f52", "#35c79b", "#f08cc4", "#e8b33a", "#9adcff", "#bdbdbd", "#e0789f")
_INK = {"ink": "#1b1d21", "soft": "#63676e", "grid": "#e3e5e8", "page": "#ffffff"}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
DASHES = ("", "6 2.5", "1.5 1.8", "7 2 1.5 2")  # the colours repeat with other dashes
_STEPS = (1e-3, 1e-2, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400, 259200, 864000, 2592000)
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
    })
    return matplotlib


# --- numbers as people read them --------------------------------------------------------------------------------------


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2g}"


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def time_text(seconds: float) -> str:
    if math.isinf(seconds):
        return "∞"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size * (2 if unit == "d" else 0.9995):
            return f"{_trim(_short(seconds / size))} {unit}"
    return f"{_trim(_short(seconds * 1e3))} ms" if seconds else "0 s"


def _scaled(value: float, units: Sequence[str]) -> str:
    if math.isinf(value):
        return "∞"
    n = min(len(units) - 1, int(math.log10(value) / 3 + 1e-3)) if value >= 1 else 0
    return f"{_trim(_short(value / 1000**n))} {units[n]}".strip()


def ratio_text(value: float) -> str:
    return _trim(_short(value))


def bytes_text(value: float) -> str:
    return _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB"))


def count_text(value: float) -> str:
    return _scaled(value, ("", "k", "M", "G", "T"))


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


_PAPER = Theme(LIGHT, **_INK)
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
    for theme in (_SCREEN, _PAPER):
        figure = Figure(figsize=size, layout=layout)
        paint(figure, theme)
        for form in ("svg",) if theme is _SCREEN else ("svg", "png"):
            file = io.BytesIO()
            figure.savefig(file, format=form, transparent=theme is _SCREEN, dpi=_PNG_DPI if form == "png" else 72,
                           metadata={"Date": None} if form == "svg" else None)
            drawn.append(file.getvalue())
    page, paper, image = drawn
    return Chart(name, _page_svg(name, page.decode()), {"svg": paper, "png": image})


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
    while len(inside) > most:
        inside = inside[::2]
    axis.set_ticks(inside, [text(value) for value in inside])
    axis.set_ticks([], minor=True)


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 else (1,)
    return [step * 10.0**e for e in range(first, last + 1) for step in steps]


_TEXTS: dict[str, Callable[[float], str]] = {"tokens": count_text, "seconds": time_text, "bytes": bytes_text}


def scale_x(axes: Any, axis: str, low: float, high: float, most: int = 7, force_log: bool = False) -> None:
    """Limits and ticks of an x axis in tokens, seconds or bytes; logarithmic if the range exceeds a factor of ten."""
    text = _TEXTS[axis]
    if axis != "tokens" and low > 0 and (high > 10 * low or force_log):
        axes.set_xscale("log")
        low, high = low / 1.15, high * 1.15
        values = [step for step in _STEPS if low <= step <= high] if axis == "seconds" else []
        if axis == "seconds" and len(values) <= 2 and low >= 1:
            values = [n * unit for unit in (1, 60, 3600, 86400) for n in (1, 2, 4, 8, 15, 30) if n * unit <= high]
        _ticks(axes.xaxis, low, high, values if len(values) > 2 else _decades(low, high), text, most)
    else:
        from matplotlib.ticker import FuncFormatter

        low, high = 0.0, high * 1.02
        if axis == "seconds" and high > 120:
            unit = next(size for size in (86400, 3600, 60) if high >= 2 * size)
            each = next(n * unit for n in (1, 2, 5, 10, 20, 50, 100, 1000, 10000) if high <= 8 * n * unit)
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
    top = max(min(ends[-1], far), min(early, default=0), target or 0, bottom + 1e-6)
    pad = 0.06 * (top - bottom)
    return bottom - pad, top + pad


def outside(curves: Sequence[Curve], target: float | None) -> list[str]:
    """Titles of rows whose end lies above the chart."""
    top = loss_limits(curves, target)[1] if curves else 0
    return [f"{curve.row.label} (final loss {curve.mean[-1]:.3f})" for curve in curves if curve.mean[-1] > top]


# --- charts -----------------------------------------------------------------------------------------------------------


def loss_chart(name: str, curves: Sequence[Curve], axis: str, target: float | None, never: Sequence[int]) -> Chart:
    """Loss against tokens, seconds or bytes. `never`: arms that miss the target, marked at the right edge."""
    xs = {"tokens": "tokens of all workers", "seconds": "time, without evaluations",
          "bytes": "bytes sent by all workers and the coordinator"}

    def paint(figure: Any, theme: Theme) -> None:
        longest = max((len(curve.row.title) for curve in curves), default=0)
        margin = min(0.3, 0.0066 * longest + 0.05)  # of the figure's width: the names and the marks before them
        axes = figure.add_axes((0.065, 0.11, 0.935 - margin, 0.83))
        quiet(axes, theme)
        low, high = loss_limits(curves, target)
        axes.set_ylim(low, high)
        positive = [x for curve in curves for x in curve.x if x > 0]
        ends = [curve.x[-1] for curve in curves]
        scale_x(axes, axis, min(positive, default=1), max(ends, default=1))
        axes.set_ylabel("validation loss")
        axes.set_xlabel(xs[axis])
        for curve in curves:
            _line(axes, theme, curve)
        if target:
            axes.axhline(target, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate("target", (0, target), xycoords=("axes fraction", "data"), xytext=(3, 3),
                          textcoords="offset points", color=theme.ink, fontsize=9)
        _mark_never(axes, theme, [curve for curve in curves if curve.row.index in never], high)
        named = _label_ends(figure, axes, theme, curves)
        if theme is _PAPER:  # the page has a legend of its own
            _legend(figure, theme, [curve for curve in curves if curve.row.index not in named])

    return draw(name, (11, 5.2), paint, None)  # the right margin holds names


def _line(axes: Any, theme: Theme, curve: Curve) -> None:
    style, gid = theme.arm(curve.row.index), f"arm{curve.row.index}"
    first = sum(x <= 0 for x in curve.x) if axes.get_xscale() == "log" else 0  # the untrained model has no place there
    x, mean = curve.x[first:], curve.mean[first:]
    axes.fill_between(x, curve.low[first:], curve.high[first:], color=style["color"], alpha=0.13, linewidth=0, gid=gid)
    axes.plot(x, mean, linewidth=1.8, gid=gid, **style)
    axes.plot(x[-1:], mean[-1:], color=style["color"], gid=gid, linestyle="none", markersize=5.5,
              marker=_MARKERS[curve.row.index % len(_MARKERS)])


def _mark_never(axes: Any, theme: Theme, curves: Sequence[Curve], top: float) -> None:
    """An open marker at the right edge, at the final loss of each arm that never reaches the target."""
    for curve in curves:
        axes.plot([1.012], [min(curve.mean[-1], top)], transform=axes.get_yaxis_transform(), clip_on=False, marker=">",
                  markersize=8, markerfacecolor=theme.page, markeredgewidth=1.5, linestyle="none",
                  markeredgecolor=theme.arm(curve.row.index)["color"], gid=f"arm{curve.row.index}")
    if curves:
        axes.annotate("▷ never reaches the target", (1, 1), xycoords="axes fraction", xytext=(4, 2), ha="right",
                      textcoords="offset points", color=theme.soft, fontsize=9)


def _legend(figure: Any, theme: Theme, curves: Sequence[Curve]) -> None:
    """The lines without a name, in the right margin."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], linewidth=1.8, marker=_MARKERS[curve.row.index % len(_MARKERS)], markersize=5,
                    label=curve.row.title, **theme.arm(curve.row.index)) for curve in curves]
    if lines:
        figure.legend(handles=lines, loc="center right", fontsize=9, frameon=False, labelcolor=theme.ink)


def _label_ends(figure: Any, axes: Any, theme: Theme, curves: Sequence[Curve]) -> set[int]:
    """Names the lines: in the right margin if they end there, else beside the end if the name fits there.

    A name beside an end overlaps no other name and no other end; a legend has the others. Returns the named arms.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    renderer = canvas.get_renderer()
    low, high = axes.get_ylim()
    seen = sorted((curve for curve in curves if low <= curve.mean[-1] <= high), key=lambda curve: curve.mean[-1])
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = {curve.row.index: to_axes.transform((curve.x[-1], curve.mean[-1])) for curve in seen}
    late = [curve for curve in seen if ends[curve.row.index][0] > 0.96]
    heights = _apart([ends[curve.row.index][1] for curve in late], 0.036)
    for curve, height in zip(late, heights, strict=True):
        x, y = ends[curve.row.index]
        look: dict[str, Any] = {"color": theme.arm(curve.row.index)["color"], "gid": f"arm{curve.row.index}"}
        axes.plot([max(x, 1.0) + 0.02, 1.04], [y, height], transform=axes.transAxes, clip_on=False, linewidth=0.7,
                  **look)
        axes.annotate(curve.row.title, (1.045, height), xycoords="axes fraction", va="center", fontsize=9, **look)
    named = {curve.row.index for curve in late}
    taken: list[Any] = []
    for curve in seen:
        if curve in late:
            continue
        text = axes.annotate(curve.row.title, (curve.x[-1], curve.mean[-1]), xytext=(8, 0), va="center", fontsize=9,
                             textcoords="offset points", color=theme.arm(curve.row.index)["color"],
                             gid=f"arm{curve.row.index}")
        box = text.get_window_extent(renderer)
        others = [axes.transAxes.transform(end) for index, end in ends.items() if index != curve.row.index]
        if any(box.overlaps(other) for other in taken) or any(box.contains(*end) for end in others):
            text.remove()
        else:
            taken.append(box)
            named.add(curve.row.index)
    return named


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Moves rising heights apart by at least `gap`, around their places."""
    groups: list[list[float]] = []  # each: centre, members
    for height in heights:
        groups.append([height, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (b, m), (a, n) = groups.pop(), groups.pop()
            groups.append([(a * n + b * m) / (n + m), n + m])
        centre, members = groups[-1]
        groups[-1][0] = max(centre, gap * (members - 1) / 2)
    return [centre + gap * (i - (n - 1) / 2) for centre, n in groups for i in range(int(n))]


def panels(name: str, titles: Sequence[str], labels: Sequence[str], values: Sequence[Sequence[float | None]],
           arms: Sequence[int], axis: str) -> Chart:
    """A row for each label and a panel for each title. `axis`: "seconds" draws dots, "utilization" bars.

    `values`: [title][label]; infinite is a mark at the right edge, None is left out.
    """
    finite = [value for column in values for value in column if known(value)]

    def paint(figure: Any, theme: Theme) -> None:
        grid = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
        for axes, title, column in zip(grid, titles, values, strict=True):
            quiet(axes, theme)
            axes.grid(axis="x", color=theme.grid, linewidth=0.8)
            axes.set_title(title, fontsize=10, loc="left", color=theme.ink)
            if axis == "seconds":
                scale_x(axes, axis, min(finite, default=1), 3 * max(finite, default=1), max(2, 12 // len(titles)), True)
            else:
                axes.set_xlim(0, 1.25)
                axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
            for y, (value, arm) in enumerate(zip(column, arms, strict=True)):
                _row(axes, theme, axis, y, value, arm)
        grid[0].set_yticks(range(len(labels)), labels, color=theme.ink)
        grid[0].set_ylim(len(labels) - 0.4, -0.6)

    return draw(name, (11, 0.9 + 0.27 * len(labels)), paint, "constrained")


def _row(axes: Any, theme: Theme, axis: str, y: int, value: float | None, arm: int) -> None:
    color, gid = theme.arm(arm)["color"], f"arm{arm}"
    note: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8.5, "gid": gid}
    if value is None:
        axes.annotate("–", (0.02, y), xycoords=("axes fraction", "data"), color=theme.soft, va="center", gid=gid)
    elif math.isinf(value):
        axes.plot([1], [y], marker=">", color=color, markersize=6, markerfacecolor=theme.page, clip_on=False,
                  transform=axes.get_yaxis_transform(), linestyle="none", gid=gid)
        axes.annotate("never", (1, y), xycoords=("axes fraction", "data"), xytext=(-7, 0), ha="right",
                      color=theme.soft, **note)
    elif axis == "seconds":
        axes.plot([axes.get_xlim()[0], value], [y, y], color=color, linewidth=1.2, alpha=0.35, gid=gid)
        axes.plot([value], [y], marker=_MARKERS[arm % len(_MARKERS)], color=color, markersize=6, gid=gid)
        axes.annotate(time_text(value), (value, y), xytext=(7, 0), color=theme.ink, **note)
    else:
        axes.barh([y], [value], height=0.6, color=color, alpha=0.8, gid=gid)
        axes.annotate(f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.1f} %", (value, y), xytext=(4, 0),
                      color=theme.ink, **note)


def parts_chart(name: str, parts: Sequence[str], shares: Mapping[str, Sequence[float]]) -> Chart:
    """A bar for each worker, divided into parts of its time. `shares`: seconds by worker."""

    def paint(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        quiet(axes, theme)
        axes.grid(axis="y", visible=False)
        for y, seconds in enumerate(shares.values()):
            total, left = sum(seconds) or 1.0, 0.0
            for i, value in enumerate(seconds):
                part = value / total
                axes.barh([y], [part], left=[left], height=0.62, color=theme.arms[i], alpha=0.85,
                          label=parts[i] if not y else None)
                if part > 0.06:
                    axes.annotate(f"{100 * part:.0f} %", (left + part / 2, y), ha="center", va="center", fontsize=9,
                                  color=theme.page)
                left += part
        axes.set_yticks(range(len(shares)), list(shares), color=theme.ink)
        axes.set_ylim(len(shares) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(parts), frameon=False, labelcolor=theme.ink)

    return draw(name, (11, 1.3 + 0.34 * len(shares)), paint, "constrained")
