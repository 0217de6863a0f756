"""Charts of a report: names of the lines, dots on a time axis, a young run."""

from __future__ import annotations

import json
import math
import re
import unittest
from typing import Any
from unittest import mock

from comparison import comparison, tiny
from folder import FolderTest

from atoll.report import charts as report_charts
from atoll.report import cmd as report
from atoll.report import compare as report_compare
from atoll.report import data as report_data


def setUpModule() -> None:
    report_charts.load()


def figure_of(make: Any) -> Any:
    """The figure of a chart. `make` calls a function of report_charts."""
    from matplotlib.figure import Figure

    def draw(name: str, size: tuple[float, float], paint: Any) -> Any:
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        return figure

    with mock.patch.object(report_charts, "draw", draw):
        return make()


def curve(title: str, points: list[tuple[float, float]]) -> report_data.Curve:
    loss = [y for _, y in points]
    row = report_data.Row({"title": title, "name": title}, 0, None, [])
    return report_data.Curve(row, [x for x, _ in points], loss, loss, loss)


class LegendTest(unittest.TestCase):
    def test_each_line_has_a_name(self) -> None:
        data = report_data.Comparison(comparison())
        for axis, link in (("tokens", None), ("bytes", None), ("seconds", data.links[2]), ("seconds", data.links[0])):
            rows = data.rows_on(link) if link else data.first_rows
            figure = figure_of(lambda rows=rows, axis=axis, link=link: report_compare._loss_chart(
                data, "x", axis, rows, link)[0])
            named = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
            drawn = [each.title for each in rows if axis != "bytes" or not each.arm["local"]]  # those send nothing
            self.assertEqual(named, [*drawn, "target"])


class AxisTest(unittest.TestCase):
    def panel(self, values: list[report_data.Stat], labels: list[str]) -> Any:
        return figure_of(lambda: report_charts.panels("x", {"a link": values}, labels, "seconds")).axes[0]

    def test_times_are_dots(self) -> None:
        values = [report_data.Stat(144.0, 3, 3), report_data.Stat(math.inf, 3, 1), report_data.Stat(31.0, 3, 2)]
        axes = self.panel(values, ["a", "b", "c"])
        self.assertEqual([line for line in axes.lines if len(line.get_xdata()) > 1], [])
        low, high = axes.get_xlim()
        self.assertTrue(31 / 2 < low < 31 and 144 < high < 288, (low, high))
        ticks = [text.get_text() for text in axes.get_xticklabels()]
        self.assertGreaterEqual(len(ticks), 3, ticks)
        self.assertTrue(all(re.fullmatch(r"\d+ (s|min)", tick) for tick in ticks), ticks)
        self.assertEqual([text.get_text() for text in axes.texts],
                         ["2 min 24 s (3)", "1 of 3 reach it", "31 s (2 of 3)"])

    def test_equal_times_have_ticks(self) -> None:
        for seconds in (0.004, 3.3, 144.0, 5e5):
            axes = self.panel([report_data.Stat(seconds, 3, 3)], ["b"])
            low, high = axes.get_xlim()
            self.assertGreaterEqual(sum(low <= tick <= high for tick in axes.get_xticks()), 2, seconds)

    def test_equal_losses_have_an_axis(self) -> None:
        """Evaluations that differ by a millionth: no offset, and more than one value of the axis."""
        curves = [curve("a", [(10, 2.6257), (20, 2.625701)])]
        figure = figure_of(lambda: report_charts.loss_chart("x", curves, "tokens", None))
        figure.canvas.draw()
        ticks = {text.get_text() for text in figure.axes[0].get_yticklabels()}
        self.assertGreater(len(ticks), 2, ticks)
        self.assertEqual(figure.axes[0].yaxis.get_offset_text().get_text(), "")

    def test_files_for_papers(self) -> None:
        chart = report_compare.charts(tiny({"base": [2.0, 2.1]}))[0][0]
        self.assertEqual(set(chart.files), {"svg", "png", "pdf"})
        self.assertTrue(chart.files["pdf"].startswith(b"%PDF-"))
        self.assertNotIn(b"CreationDate", chart.files["pdf"])


class YoungRunTest(FolderTest):
    def page(self, rounds: int, evals: tuple[int, ...] = (), **last: Any) -> str:
        lines = [{"event": "round", "round": n, "tokens": 100 * n, "loss": 5.0 - 0.1 * n, "round_s": 10.0, "workers": 1,
                  "bytes_up": 7 * n, "bytes_down": 5 * n, "time": 1e9, **(last if n == rounds else {})}
                 for n in range(1, rounds + 1)]
        lines += [{"event": "eval", "round": n, "tokens": 100 * n, "val_loss": 4.6, "eval_s": 2.0} for n in evals]
        (self.dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return report.write(self.dir).read_text(encoding="utf-8")

    def names(self, page: str) -> list[str]:
        first = page[page.index("<figure>") : page.index("</figure>")] if "<figure>" in page else ""
        return [name for name in ("training", "validation") if f">{name}</text>" in first]

    def test_training_loss_and_one_evaluation(self) -> None:
        page = self.page(8, (8,))
        self.assertEqual(page.count("<figure>"), 3)
        self.assertEqual(self.names(page), ["training", "validation"])
        self.assertIn("800 tokens in 1 min 20 s of training; the validation loss was 4.6000 at 800 tokens.", page)
        self.assertNotRegex(page, r">1e-?\d|\+2\.")

    def test_training_loss_alone(self) -> None:
        page = self.page(8)
        self.assertEqual(self.names(page), ["training"])
        self.assertIn("800 tokens in 1 min 20 s of training give a training loss of 4.2000 in the last round.", page)

    def test_one_round_has_no_chart(self) -> None:
        page = self.page(1, (1,))
        self.assertEqual(page.count("<figure>"), 0)
        self.assertIn("One round is a dot: a chart of the loss needs two.", page)

    def test_bytes_besides_the_run(self) -> None:
        self.assertNotIn("besides the run", self.page(2))
        self.assertNotIn("besides the run", self.page(2, other_bytes_up=0, other_bytes_down=0))
        page = self.page(2, other_bytes_up=211_000_000, other_bytes_down=0)
        self.assertIn("<td>besides the run, up: probes, status</td><td>211 MB</td>", page)
        self.assertNotIn("besides the run, down", page)
        (self.dir / "summary.json").write_text(json.dumps({"other_bytes_up": 5, "other_bytes_down": 6}))
        page = self.page(2, other_bytes_up=1)
        self.assertIn("up: probes, status</td><td>5 B</td>", page)
        self.assertIn("down: probes, status</td><td>6 B</td>", page)


if __name__ == "__main__":
    unittest.main()
