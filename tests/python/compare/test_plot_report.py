"""atoll report: the numbers against hand-computed ones, and the files."""

from __future__ import annotations

import csv
import json
import math
import re
import unittest
from typing import Any

from comparison import LINKS, comparison, tiny
from folder import FolderTest

from atoll.report import cmd as report, compare as report_compare, data as report_data


class NumbersTest(unittest.TestCase):
    def test_pairs_by_seed(self) -> None:
        """Seeds that one of the two lacks do not count."""
        content = dict(tiny({"base": [2.0, 3.0, 4.0], "arm": [2.5, 3.5, 99.0]}).content)
        content["runs"] = [{**run, "valid": not (run["arm"] == "arm" and run["seed"] == 3)} for run in content["runs"]]
        data = report_data.Comparison(content)
        found = data.difference(data.rows[1])
        assert found
        self.assertEqual((found.seeds, found.mean), (2, 0.5))

    def test_to_target(self) -> None:
        """Target 2: seed 1 reaches it at its last evaluation, seed 2 at the one before, seed 3 never."""
        data = tiny({"base": [2.0, 1.0, 2.01]})
        runs = data.rows[0].runs
        seconds = [data.seconds_to_target(run, "none") for run in runs]
        self.assertEqual(seconds, [20.0, 20.0, math.inf])
        self.assertEqual([data.tokens_to_target(run) for run in runs], [200, 100, math.inf])
        self.assertEqual([data.bytes_to_target(run) for run in runs], [80, 40, math.inf])
        self.assertEqual(report_data.stat(seconds), report_data.Stat(20.0, 3, 2))
        self.assertEqual(report_data.stat([1.0, math.inf]), report_data.Stat(math.inf, 2, 1))
        self.assertEqual(report_data.stat([None]), report_data.Stat(None, 0, 0))
        self.assertEqual([report_data.Stat(1.0, 3, n).count for n in (3, 2)], ["3", "2 of 3"])

    def test_money(self) -> None:
        """Two workers for 20 s at 90 an hour are 1, and 80 bytes at 1e8 for a gigabyte are 8."""
        data = tiny({"base": [2.0]}, price={"machine_hour": 90, "gb": 1e8, "currency": "EUR"})
        self.assertAlmostEqual(data.cost_to_target(data.rows[0].runs[0], "none") or 0, 9.0)

    def test_curve(self) -> None:
        """Mean, lowest and highest over seeds; another grid of tokens is interpolated."""
        data = tiny({"base": [1.0, 3.0]})
        data.rows[0].runs[1]["curve"] = [{"tokens": 0, "loss": 5.0, "bytes_up": 0, "bytes_down": 0},
                                         {"tokens": 200, "loss": 3.0, "bytes_up": 20, "bytes_down": 60}]
        found = report_data.curve(data.rows[0], "bytes")
        assert found
        self.assertEqual((found.x, found.mean), ([0, 40, 80], [5.0, 3.0, 2.0]))
        self.assertEqual((found.low, found.high), ([5.0, 2.0, 1.0], [5.0, 4.0, 3.0]))

    def test_row_for_each_link(self) -> None:
        """Training that depends on the link is a row for each link, and meets the baseline's seeds."""
        data = report_data.Comparison(comparison())
        rows = [row for row in data.rows if row.arm["name"] == "async"]
        self.assertEqual([row.link for row in rows], LINKS)
        self.assertEqual([len(row.runs) for row in rows], [3] * 4)
        self.assertEqual([d.seeds for row in rows if (d := data.difference(row))], [3] * 4)
        self.assertEqual([row.index for row in data.rows_on(LINKS[1])], list(range(12)))
        self.assertEqual([row.index for row in data.first_rows], list(range(12)))

    def test_link_names(self) -> None:
        names = {"1gbit,rtt=50ms": "1 Gbit/s, rtt 50 ms", "none": "no link",
                 "up=20mbit,down=1.5gbit,outage=60s+10s": "up 20 Mbit/s, down 1.5 Gbit/s, outage 60 s+10 s"}
        for spec, name in names.items():
            self.assertEqual(report_data.link_name(spec), name)


class FilesTest(FolderTest):
    def test_comparison(self) -> None:
        (self.dir / "comparison.json").write_text(json.dumps(comparison()))
        path = report.write(self.dir)
        page = path.read_text(encoding="utf-8")
        self.assertEqual(path, self.dir / "report.html")
        for ending in ("svg", "png", "pdf"):
            self.assertEqual(len(list(self.dir.glob(f"report-*.{ending}"))), 4 + len(LINKS))
        self.assertEqual([p.name for p in self.dir.iterdir() if p.name.endswith(".tmp")], [])
        self.assertIn("evict worker-2 silent for 30 s", page)
        self.assertIn("untrained model", page)
        self.assertNotRegex(page, r"https?:|//[a-z]|@import|url\((?!#)")  # nothing from a network
        self.assertNotRegex(page, r"<b>|<made up>")
        self.assertIn("Sparse 1/64 &lt;b&gt;&amp;", page)
        self.assertIn("DiLoCo, Muon $x$", page)
        ids = re.findall(r' id="([^"]*)"', page)
        self.assertEqual(len(ids), len(set(ids)))
        for name in re.findall(r'(?:url\(|href=")#([^")]*)', page):
            self.assertIn(name, ids)

    def test_table_has_the_numbers(self) -> None:
        data = report_data.Comparison(comparison())
        row = next(row for row in data.rows if row.arm["name"] == "diloco-h8")
        found = data.difference(row)
        assert found and found.half95
        table = report_compare.loss_table(data)
        line = next(line for line in table.split("<tr>") if "DiLoCo, H 8" in line)
        self.assertIn(f"{found.mean - found.half95:+.4f} … {found.mean + found.half95:+.4f}", line)
        self.assertIn(">not separable<", line)
        self.assertIn('<span class="n">(3)</span>', line)
        never = next(line for line in table.split("<tr>") if "H 100" in line)
        self.assertEqual(never.count("∞"), 2)  # tokens and bytes

    def test_csv(self) -> None:
        (self.dir / "comparison.json").write_text(json.dumps(comparison()))
        data = report_data.read(self.dir / "comparison.json")
        rows = report_compare.csv_rows(data)
        (self.dir / "results.csv").write_bytes(report._csv(rows))
        with open(self.dir / "results.csv", encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file))
        # 11 arms of 3 seeds on 4 links, async with a run for each link, an invalid run
        self.assertEqual(len(found), 11 * 3 * 4 + 3 * 4 + 1)
        self.assertEqual({row["seconds_to_target"] for row in found if row["arm"] == "muon"}, {"inf"})
        self.assertEqual([row["why_invalid"] for row in found if row["valid"] == "False"],
                         ["evict worker-2 silent for 30 s"])
        self.assertEqual({row["bytes_up"] for row in found if row["arm"] == "alone"}, {"0"})

    def test_untrained_model_on_a_log_axis(self) -> None:
        """A logarithmic axis has no place for 0: the line begins at the first evaluation, not at the left edge."""
        chart = next(c for c in report_compare.build(report_data.Comparison(comparison()))[1] if c.name == "bytes")
        starts = [float(x) for x in re.findall(r'class="arm\d+">\s*<path d="M (-?[\d.]+)', chart.svg)]
        self.assertGreater(len(starts), 10)
        left = float(re.search(r'<rect x="([\d.]+)', chart.svg)[1])  # the axes begin here
        self.assertGreater(min(starts), left)

    def test_unfinished(self) -> None:
        """A comparison without a valid run has a page, too."""
        content = comparison() | {"runs": [], "checks": [], "untrained_loss": None, "target": {"loss": None, "how": ""}}
        (self.dir / "comparison.json").write_text(json.dumps(content))
        self.assertIn("No arm can be compared yet", report.write(self.dir).read_text(encoding="utf-8"))

    def test_one_run(self) -> None:
        events: list[dict[str, Any]] = []
        for n in (1, 2, 3):
            parts = {"compute_s": 6.0, "compress_s": 1.0, "send_s": 1.0, "wait_s": 1.0, "apply_s": 1.0}
            events += [{"event": "step", "worker": "w<1>", "round": n, "step": n, **parts}] * 2
            events += [{"event": "round", "round": n, "tokens": 100 * n, "loss": 3.0, "round_s": 10.0, "workers": 1,
                        "bytes_up": 7 * n, "bytes_down": 5 * n, "time": 1e9},
                       {"event": "eval", "round": n, "tokens": 100 * n, "val_loss": 4.0 - n, "eval_s": 2.0}]
        (self.dir / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events) + '{"event":"rou')
        (self.dir / "config.yaml").write_text("run: {name: x}\n")
        page = report.write(self.dir).read_text(encoding="utf-8")
        rows = list(csv.reader((self.dir / "results.csv").read_text().splitlines()))
        self.assertEqual(rows[1:], [["1", "100", "10.0", "7", "5", "3.0"], ["2", "200", "20.0", "14", "10", "2.0"],
                                    ["3", "300", "30.0", "21", "15", "1.0"]])
        self.assertIn("300 tokens in 30 s of training; the validation loss was 1.0000 at 300 tokens.", page)
        self.assertNotIn("besides the run", page)
        self.assertIn("The run is not complete.", page)
        self.assertIn("60 %", page)
        self.assertIn("w&lt;1&gt;", page)
        self.assertIn("run: {name: x}", page)

    def test_errors(self) -> None:
        self.call(report.main, str(self.dir / "no"), code=2)
        _, text = self.call(report.main, str(self.dir), code=2)
        self.assertEqual(text.count("\n"), 1)
        self.assertIn("has no comparison.json and no metrics.jsonl", text)
        for content, what in (("{", "is not a result"), ('{"version": 2}', "'links'"), ('{"version": 9}', "version 9")):
            (self.dir / "comparison.json").write_text(content)
            _, text = self.call(report.main, str(self.dir), code=1)
            self.assertEqual(text.count("\n"), 1, text)
            self.assertIn(what, text)


if __name__ == "__main__":
    unittest.main()
