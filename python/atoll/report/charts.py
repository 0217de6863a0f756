"""The charts of a report: loss against tokens, time or bytes; dots and bars of arms; parts of the workers' time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..units import duration_text, percent_text
from .data import Curve, Stat, known
from .labels import Labels, margin_of, name_lines
from .plot import MARKERS, PAPER, Chart, Theme, draw, loss_limits, quiet, scale_x

_X_LABELS = {"tokens": "tokens of all workers", "seconds": "time, without evaluations",
             "bytes": "bytes sent by all workers and the coordinator"}
_LEFT, _BOTTOM, _TOP, _LEGEND_ROW, _LEGEND_COLUMNS = 0.065, 0.11, 0.94, 0.05, 3


# --- loss -------------------------------------------------------------------------------------------------------------


def loss_chart(name: str, curves: Sequence[Curve], axis: str, target: float | None, never: Sequence[int],
               x_label: str | None = None, y_label: str = "validation loss") -> Chart:
    """Loss against tokens, seconds or bytes. `never`: arms that miss the target, marked at the right edge."""

    def paint(figure: Any, theme: Theme) -> None:
        unnamed = _paint_loss(figure, theme, (0, ""))
        if theme is PAPER and unnamed:  # the page has a legend of its own
            figure.clear()
            _paint_loss(figure, theme, (math.ceil(len(unnamed) / _LEGEND_COLUMNS), "legend"))

    def _paint_loss(figure: Any, theme: Theme, legend: tuple[int, str]) -> list[Curve]:
        """Draws the chart above so many rows of a legend; returns the lines without a name beside them."""
        bottom = _BOTTOM + _LEGEND_ROW * legend[0]
        low, high = loss_limits(curves, target)
        positive = [x for curve in curves for x in curve.x if x > 0]
        ends = [curve.x[-1] for curve in curves]
        axes = figure.add_axes((_LEFT, bottom, 1 - _LEFT - 0.03, _TOP - bottom))
        quiet(axes, theme)
        axes.set_ylim(low, high)
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)
        scale_x(axes, axis, min(positive, default=1), max(ends, default=1))
        to_axes = axes.transData + axes.transAxes.inverted()
        reach = {curve.row.index: to_axes.transform((curve.x[-1], low))[0] for curve in curves
                 if low <= curve.mean[-1] <= high}
        margin = margin_of(reach, {curve.row.index: curve.row.title for curve in curves})
        axes.set_position((_LEFT, bottom, 1 - _LEFT - margin, _TOP - bottom))
        axes.set_ylabel(y_label)
        axes.set_xlabel(x_label or _X_LABELS[axis])
        lines = [_line(axes, theme, curve) for curve in curves]
        if target:
            axes.axhline(target, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)))
            lines.append((axes.get_xlim(), (target, target)))
        _mark_never(axes, theme, [curve for curve in curves if curve.row.index in never], high)
        labels = Labels(figure, axes, lines)
        named = name_lines(labels, theme, curves)
        if target:
            labels.target(theme, target)
        unnamed = [curve for curve in curves if curve.row.index not in named]
        if legend[1]:
            _legend(figure, theme, unnamed)
        return unnamed

    return draw(name, (11, 5.2), paint, None)  # the right margin holds names


def _line(axes: Any, theme: Theme, curve: Curve) -> tuple[list[float], list[float]]:
    """Draws a line with its band; returns its points."""
    style, gid = theme.arm(curve.row.index), f"arm{curve.row.index}"
    first = sum(x <= 0 for x in curve.x) if axes.get_xscale() == "log" else 0  # the untrained model has no place there
    x, mean = curve.x[first:], curve.mean[first:]
    axes.fill_between(x, curve.low[first:], curve.high[first:], color=style["color"], alpha=0.13, linewidth=0, gid=gid)
    axes.plot(x, mean, linewidth=1.8, gid=gid, **style)
    axes.plot(x[-1:], mean[-1:], color=style["color"], gid=gid, linestyle="none", markersize=5.5,
              marker=MARKERS[curve.row.index % len(MARKERS)])
    return x, mean


def _mark_never(axes: Any, theme: Theme, curves: Sequence[Curve], top: float) -> None:
    """An open marker at the right edge, at the final loss of each arm that never reaches the target."""
    for curve in curves:
        axes.plot([1.012], [min(curve.mean[-1], top)], transform=axes.get_yaxis_transform(), clip_on=False, marker=">",
                  markersize=8, markerfacecolor=theme.page, markeredgewidth=1.5, linestyle="none",
                  markeredgecolor=theme.arm(curve.row.index)["color"], gid=f"arm{curve.row.index}")
    if curves:
        axes.annotate("▷ never reaches the target", (1, 1), xycoords="axes fraction", xytext=(-6, 4), ha="right",
                      textcoords="offset points", color=theme.soft, fontsize=9)


def _legend(figure: Any, theme: Theme, curves: Sequence[Curve]) -> None:
    """The lines without a name, below the axes."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], linewidth=1.8, marker=MARKERS[curve.row.index % len(MARKERS)], markersize=5,
                    label=curve.row.title, **theme.arm(curve.row.index)) for curve in curves]
    if lines:
        figure.legend(handles=lines, loc="lower center", ncols=_LEGEND_COLUMNS, fontsize=9, frameon=False,
                      labelcolor=theme.ink)


# --- arms -------------------------------------------------------------------------------------------------------------


def panels(name: str, titles: Sequence[str], labels: Sequence[str], values: Sequence[Sequence[Stat]],
           arms: Sequence[int], axis: str) -> Chart:
    """A row for each label and a panel for each title. `axis`: "seconds" draws dots, "utilization" bars.

    `values`: [title][label]; infinite is a mark at the right edge, None is left out. Numbers show their seeds.
    """
    finite = [stat.value for column in values for stat in column if known(stat.value)]

    def paint(figure: Any, theme: Theme) -> None:
        grid = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
        for axes, title, column in zip(grid, titles, values, strict=True):
            quiet(axes, theme)
            axes.grid(axis="x", color=theme.grid, linewidth=0.8)
            axes.set_title(title, fontsize=10, loc="left", color=theme.ink)
            if axis == "seconds":
                scale_x(axes, axis, min(finite, default=1), max(finite, default=1), max(3, 8 // len(titles)), True)
            else:
                axes.set_xlim(0, 1.3)
                axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
            for y, (stat, arm) in enumerate(zip(column, arms, strict=True)):
                _row(axes, theme, axis, y, stat, arm)
        grid[0].set_yticks(range(len(labels)), labels, color=theme.ink)
        grid[0].set_ylim(len(labels) - 0.4, -0.6)

    return draw(name, (11, 0.9 + 0.27 * len(labels)), paint, "constrained")


def _row(axes: Any, theme: Theme, axis: str, y: int, stat: Stat, arm: int) -> None:
    color, gid, value = theme.arm(arm)["color"], f"arm{arm}", stat.value
    note: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8.5, "gid": gid}
    if value is None:
        axes.annotate("–", (0.02, y), xycoords=("axes fraction", "data"), color=theme.soft, va="center", gid=gid)
    elif math.isinf(value):
        axes.plot([1], [y], marker=">", color=color, markersize=6, markerfacecolor=theme.page, clip_on=False,
                  transform=axes.get_yaxis_transform(), linestyle="none", gid=gid)
        axes.annotate(f"{stat.count} reach it" if stat.reached else f"never ({stat.count})", (1, y), ha="right",
                      xycoords=("axes fraction", "data"), xytext=(-7, 0), color=theme.soft, **note)
    elif axis == "seconds":
        axes.plot([value], [y], marker=MARKERS[arm % len(MARKERS)], color=color, markersize=6, gid=gid)
        low, high = map(math.log, axes.get_xlim())
        side = -1 if math.log(value) > (low + high) / 2 else 1  # on the side with more room
        axes.annotate(f"{duration_text(value)} ({stat.count})", (value, y), xytext=(7 * side, 0),
                      ha="left" if side > 0 else "right", color=theme.ink, **note)
    else:
        axes.barh([y], [value], height=0.6, color=color, alpha=0.8, gid=gid)
        axes.annotate(f"{percent_text(value)} ({stat.count})", (value, y), xytext=(4, 0), color=theme.ink, **note)


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
                    axes.annotate(percent_text(part), (left + part / 2, y), ha="center", va="center", fontsize=9,
                                  color=theme.page)
                left += part
        axes.set_yticks(range(len(shares)), list(shares), color=theme.ink)
        axes.set_ylim(len(shares) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(parts), frameon=False, labelcolor=theme.ink)

    return draw(name, (11, 1.3 + 0.34 * len(shares)), paint, "constrained")
