"""Names beside the lines of a chart: no name lies on a line, on the target, on another name or on the end of a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .data import Curve
from .plot import Theme

LATE = 0.96  # a line that ends behind this part of the axes has its name in the right margin
_GAP = 0.036  # between names in the margin, as a part of the axes
# Places of a name around the end of its line: offset in points, horizontal and vertical alignment.
_PLACES = ((8, 0, "left", "center"), (7, 7, "left", "bottom"), (7, -7, "left", "top"), (0, 9, "center", "bottom"),
           (0, -9, "center", "top"), (-7, 7, "right", "bottom"), (-7, -7, "right", "top"), (8, 16, "left", "bottom"),
           (8, -16, "left", "top"), (0, 20, "center", "bottom"), (0, -20, "center", "top"))
# Places of the word target along its line: part of the axes, offset in points, alignments.
_TARGET_PLACES = [(x, dy, ha, va) for dy, va in ((3, "bottom"), (-4, "top"))
                  for x, ha in ((0.004, "left"), (0.25, "left"), (0.5, "left"), (0.75, "left"), (0.99, "right"))]


class Labels:
    """Texts of a chart whose lines are drawn. Each new text keeps clear of the lines and of the texts before it."""

    def __init__(self, figure: Any, axes: Any, lines: Sequence[tuple[Sequence[float], Sequence[float]]]) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.path import Path

        self.axes, self.renderer = axes, FigureCanvasAgg(figure).get_renderer()
        self.edge = axes.get_window_extent(self.renderer)
        self.paths = [Path(axes.transData.transform(list(zip(*line, strict=True)))) for line in lines]
        self.taken: list[Any] = []
        self.points: list[Any] = []  # ends of lines

    def place(self, text: Any) -> bool:
        """Keeps a text if its place is free, and removes it otherwise."""
        from matplotlib.transforms import Bbox

        box = text.get_window_extent(self.renderer)
        clear = Bbox.from_extents(box.x0 - 2, box.y0 - 1, box.x1 + 2, box.y1 + 1)
        is_inside = box.y0 > self.edge.y0 and box.y1 < self.edge.y1 and box.x0 > self.edge.x0 and box.x1 < self.edge.x1
        if not is_inside or any(clear.overlaps(other) for other in self.taken) \
                or any(clear.contains(*point) for point in self.points) \
                or any(path.intersects_bbox(clear, filled=False) for path in self.paths):
            text.remove()
            return False
        self.taken.append(box)
        return True

    def target(self, theme: Theme, loss: float) -> None:
        """The word beside the line of the target, which is one of the lines."""
        for x, dy, ha, va in _TARGET_PLACES:
            text = self.axes.annotate("target", (x, loss), xycoords=("axes fraction", "data"), xytext=(0, dy), ha=ha,
                                      va=va, textcoords="offset points", color=theme.ink, fontsize=9)
            if self.place(text):
                return


def margin_of(axes_ends: Mapping[int, float], titles: Mapping[int, str]) -> float:
    """The right margin, as a part of the figure's width, for the names of lines that end at these parts of the axes."""
    longest = max((len(titles[index]) for index, x in axes_ends.items() if x > LATE), default=0)
    return min(0.3, 0.0066 * longest + 0.05) if longest else 0.03


def name_lines(labels: Labels, theme: Theme, curves: Sequence[Curve]) -> set[int]:
    """Names the lines: in the right margin if they end there, else around the end. Returns the named arms."""
    axes = labels.axes
    low, high = axes.get_ylim()
    seen = sorted((curve for curve in curves if low <= curve.mean[-1] <= high), key=lambda curve: curve.mean[-1])
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = {curve.row.index: to_axes.transform((curve.x[-1], curve.mean[-1])) for curve in seen}
    labels.points = [axes.transAxes.transform(end) for end in ends.values()]
    late = [curve for curve in seen if ends[curve.row.index][0] > LATE]
    for curve, height in zip(late, _apart([ends[curve.row.index][1] for curve in late]), strict=True):
        x, y = ends[curve.row.index]
        look: dict[str, Any] = {"color": theme.arm(curve.row.index)["color"], "gid": f"arm{curve.row.index}"}
        axes.plot([max(x, 1.0) + 0.02, 1.04], [y, height], transform=axes.transAxes, clip_on=False, linewidth=0.7,
                  **look)
        axes.annotate(curve.row.title, (1.045, height), xycoords="axes fraction", va="center", fontsize=9, **look)
    named = {curve.row.index for curve in late}
    for curve in seen:
        if curve in late:
            continue
        index = curve.row.index
        for dx, dy, ha, va in _PLACES:
            text = axes.annotate(curve.row.title, (curve.x[-1], curve.mean[-1]), xytext=(dx, dy), ha=ha, va=va,
                                 fontsize=9, textcoords="offset points", color=theme.arm(index)["color"],
                                 gid=f"arm{index}")
            if labels.place(text):
                named.add(index)
                break
    return named


def _apart(heights: Sequence[float]) -> list[float]:
    """Moves rising heights apart by at least _GAP, around their places."""
    groups: list[list[float]] = []  # each: centre, members
    for height in heights:
        groups.append([height, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < _GAP * (groups[-1][1] + groups[-2][1]) / 2:
            (b, m), (a, n) = groups.pop(), groups.pop()
            groups.append([(a * n + b * m) / (n + m), n + m])
        centre, members = groups[-1]
        groups[-1][0] = max(centre, _GAP * (members - 1) / 2)
    return [centre + _GAP * (i - (n - 1) / 2) for centre, n in groups for i in range(int(n))]
