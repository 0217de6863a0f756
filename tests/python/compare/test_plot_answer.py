"""The answer of a comparison in words: verdicts, seeds that miss the target, computed times."""

from __future__ import annotations

import html
import math
import unittest
from typing import Any

from comparison import LINKS, STEP, comparison, tiny

from atoll.report import answer as report_answer, charts as report_charts, compare as report_compare
from atoll.report import data as report_data

BASE = {"base": [2.0, 2.1, 2.2]}


def told(*arguments: Any, **words: Any) -> str:
    return " ".join(report_answer.answer(tiny(*arguments, **words)))


def setUpModule() -> None:
    report_charts.load()


class VerdictTest(unittest.TestCase):
    def verdict(self, differences: list[float], margin: float = 0.01) -> str:
        return report_data.paired(differences, margin).verdict

    def test_paired_intervals(self) -> None:
        """Differences 0.1, 0.2 and 0.3: mean 0.2, deviation 0.1, so 4.303 and 2.920 × 0.1 / √3."""
        data = tiny({"base": [2.0, 3.0, 4.0], "arm": [2.1, 3.2, 4.3]})
        found = data.difference(data.rows[1])
        assert found and found.half95 and found.half90
        self.assertEqual((found.seeds, found.verdict), (3, "not separable"))
        self.assertAlmostEqual(found.mean, 0.2)
        self.assertAlmostEqual(found.half95, 0.248434, places=5)
        self.assertAlmostEqual(found.half90, 0.168586, places=5)
        self.assertAlmostEqual(found.margin, 0.015)  # 0.5 % of 3
        self.assertIsNone(data.difference(data.rows[0]))

    def test_a_wide_interval_is_no_tie(self) -> None:
        """The numbers of configs/compare.yaml: every seed of the arm is above every seed of the baseline."""
        self.assertEqual(self.verdict([0.055, 0.154, 0.181]), "not separable")
        self.assertEqual(self.verdict([-0.001, 0.0, 0.001]), "tie")
        self.assertEqual(self.verdict([-0.02, 0.0, 0.02]), "not separable")

    def test_verdicts(self) -> None:
        self.assertEqual(self.verdict([0.1, 0.11, 0.12]), "higher")
        self.assertEqual(self.verdict([-0.1, -0.11, -0.12]), "lower")
        self.assertEqual(self.verdict([-0.0050, -0.0051, -0.0052]), "lower, within the margin")
        self.assertEqual(self.verdict([0.0050, 0.0051, 0.0052]), "higher, within the margin")
        self.assertEqual(self.verdict([5.0]), "one seed")

    def test_seeds_without_spread(self) -> None:
        self.assertEqual(self.verdict([0.0, 0.0]), "tie")
        self.assertEqual(self.verdict([0.02, 0.02]), "higher")
        self.assertEqual(self.verdict([0.001, 0.001]), "higher, within the margin")
        self.assertEqual(self.verdict([0.0, 0.0], margin=0.0), "tie")

    def test_the_margin_decides(self) -> None:
        losses = {**BASE, "a": [2.003, 2.099, 2.201]}
        self.assertIn("Not separable from base, with 3 seeds: a (-0.004 … +0.006).", told(losses, margin=0.0005))
        self.assertIn("A tie with base, within ±0.011, with 3 seeds: a (-0.002 … +0.004).", told(losses))

    def test_sentence_for_each_verdict(self) -> None:
        text = told({**BASE, "low": [1.9, 2.01, 2.1], "wide": [2.3, 2.1, 2.2], "high": [3.0, 3.1, 3.21]})
        self.assertIn("Low ends with the lowest mean loss, 2.003 (3 seeds); base ends with 2.100 (3 seeds).", text)
        self.assertIn("Lower than base, with 3 seeds: low (-0.111 … -0.082).", text)
        self.assertIn("Not separable from base, with 3 seeds: wide (-0.330 … +0.530).", text)
        self.assertIn("Higher than base, with 3 seeds: high (+0.989 … +1.018).", text)
        self.assertNotIn(" tie", text)

    def test_one_seed_gives_no_verdict(self) -> None:
        text = told({"base": [2.0], "a": [1.5]})
        self.assertIn("A ends with the lowest mean loss, 1.500 (1 seed); base ends with 2.000 (1 seed).", text)
        self.assertIn("One seed gives no verdict: a (-0.500).", text)
        self.assertIn("Without a link, one seed gives no verdict. Times to the target (1 seed each): base 20 s; a 20 "
                      "s.", text)
        self.assertNotRegex(text, "first|tie|Lower")

    def test_two_seeds_and_a_baseline_without_one(self) -> None:
        text = told({"base": [2.0, 2.1], "a": [2.5, 2.6001, 2.7]})
        self.assertIn("Higher than base, with 2 seeds: a (+0.499 … +0.501).", text)
        self.assertIn("The comparison is not complete: base (2 of 3 seeds). A ends with the lowest mean loss, 2.600 "
                      "(3 seeds); base ends with 2.050 (2 seeds). Not ranked, with fewer valid seeds: base (2 seeds).",
                      text)
        self.assertEqual(told({"base": [math.inf], "a": [2.0]}),
                         "No arm can be compared yet: the baseline has no valid run.")

    def test_a_diverged_seed_is_told(self) -> None:
        """Two good seeds of three do not make the lowest mean loss, and the third one misses the target."""
        data = tiny({"base": [2.0, 2.1, 2.0], "a": [1.0, 1.1, math.inf]})
        text = " ".join(report_answer.answer(data))
        self.assertIn("Base ends with the lowest mean loss, 2.033 (3 seeds).", text)
        self.assertIn("Not ranked, with fewer valid seeds: a (2 of 3 seeds).", text)
        stat = data.to_target(data.rows[1], data.tokens_to_target)
        self.assertEqual((stat.n, stat.reached, stat.value), (3, 2, 200))
        self.assertIn("(2 of 3)", report_compare.loss_table(data).split("<tr>")[-1])

    def test_an_arm_without_a_valid_run_is_named(self) -> None:
        text = told({"base": [2.0, 2.1], "a": [math.inf, math.inf]})
        self.assertIn("Base ends with the lowest mean loss, 2.050 (2 seeds). No valid run: a (2 of 2 seeds diverged).",
                      text)
        self.assertIn("Without a link, base reaches the target first", told({"base": [2.0, 2.0], "a": [math.inf] * 2}))

    def test_a_seed_that_a_machine_failed(self) -> None:
        """It has no loss, and is no miss: it may have reached the target."""
        content = dict(tiny({"base": [2.0, 2.1, 2.0], "a": [1.0, 1.1, 1.2]}).content)
        broken = {"valid": False, "why_invalid": "evict worker-1", "times": []}
        content["runs"] = [{**run, **broken} if (run["arm"], run["seed"]) == ("a", 2) else run
                           for run in content["runs"]]
        data = report_data.Comparison(content)
        self.assertIn("Not ranked, with fewer valid seeds: a (2 of 3 seeds).", report_answer.answer(data)[0])
        self.assertNotIn("not complete", report_answer.answer(data)[0])
        self.assertEqual(data.to_target(data.rows[1], data.tokens_to_target).count, "2")

    def test_arm_on_all_links_is_named_once(self) -> None:
        text = " ".join(report_answer.answer(report_data.Comparison(comparison())))
        self.assertNotIn("Async, 1 Gbit/s", text)


class TargetTest(unittest.TestCase):
    """The target is 2. A run is there at its end, or at half of its time if its loss is at most 1."""

    def test_a_miss_makes_no_tie(self) -> None:
        """The review's case: the fastest arm misses with one seed."""
        text = told({"base": [1.9, 1.95, 2.0], "a": [1.9, 2.05, 2.0]},
                    seconds={"base": [288, 288, 288], "a": [20, 20, 20.2]})
        self.assertIn("Without a link, a reaches the target first: 20.2 s (2 of 3 seeds, one never); base needs "
                      "4 min 48 s (3 of 3 seeds), 14.3 times as long.", text)
        self.assertIn("Of the arms that reach it with every seed, base is first: 4 min 48 s (3 of 3 seeds).", text)
        self.assertNotIn(" tie", text)

    def test_overlapping_times_are_no_tie(self) -> None:
        text = told({"base": [2.0, 2.0, 2.0], "a": [2.0, 2.0, 2.0]},
                    seconds={"base": [30, 50, 70], "a": [20, 40, 60]})
        self.assertIn("Without a link, a reaches the target first: 40 s (3 of 3 seeds). Not separable from it, because "
                      "times of their seeds overlap: base, 50 s (3 of 3 seeds).", text)
        self.assertNotIn("times as long", text)
        self.assertEqual(text.count(" tie"), 1)  # of the losses, which are equal

    def test_a_miss_of_the_baseline(self) -> None:
        seconds = {"base": [90, 90, 90], "a": [20, 21, 22]}
        text = told({"base": [2.0, 3.0, 3.0], "a": [2.0, 2.0, 2.0]}, seconds=seconds)
        self.assertIn("a reaches the target first: 21 s (3 of 3 seeds); base does with 1 of 3 seeds only.", text)
        text = told({"base": [3.0, 3.0, 3.0], "a": [2.0, 2.0, 2.0]}, seconds=seconds)
        self.assertIn("a reaches the target first: 21 s (3 of 3 seeds); base never does (0 of 3 seeds).", text)

    def test_no_arm_is_there(self) -> None:
        self.assertIn("Without a link, no arm reaches the target.", told({"base": [3.0, 3.0]}))
        self.assertIn("Without a link, no arm reaches the target with most of its seeds: base with 1 of 3 seeds.",
                      told({"base": [3.0, 3.0, 2.0]}))

    def test_one_seed_among_several_does_not_win(self) -> None:
        text = told({"base": [2.0, 2.0], "a": [2.0]}, seconds={"base": [30, 30], "a": [1]})
        self.assertIn("Without a link, base reaches the target first: 30 s (2 of 2 seeds).", text)

    def test_tokens_of_local_training(self) -> None:
        text = told({"base": [2.0, 2.0], "a": [2.0, 2.0], "b": [1.0, 1.0], "c": [3.0, 3.0], "d": [2.0, 3.0]})
        self.assertIn("To the target, local training needs 0.5 to 1 times the tokens of base (medians over 2 seeds); c "
                      "(0 of 2 seeds) and d (1 of 2 seeds) reach the target with too few seeds.", text)
        self.assertIn("needs as many tokens as base", told({"base": [2.0, 2.0], "a": [2.0, 2.0]}))


class TimeTest(unittest.TestCase):
    def page(self, **more: Any) -> tuple[str, report_data.Comparison]:
        data = tiny({"base": [2.0, 2.1], "a": [2.0, 2.1]}, **more)
        return report_compare.build(data)[0], data

    def test_computed_times_say_so(self) -> None:
        page, data = self.page()
        line = "Times are computed by atoll plan, not measured: from a step of 20 ms, measured on 2026-11-26 21:50 " \
               "UTC with 2 processes at a time."
        self.assertIn(f"<p>{line}</p>", page[: page.index('class="legend"')])  # in the answer
        how = "computed by atoll plan from a step of 20 ms"
        for title in ("Time to the target on each link", "Loss against time", "Time on each link"):
            self.assertIn(f"<h2>{title}, {how}</h2>", page)
        self.assertIn(f"time without a link, {how}, without evaluations", page)  # beside the axis
        self.assertNotIn("Warning", page)
        row = dict(zip(*report_compare.csv_rows(data)[:2], strict=True))
        self.assertEqual((row["source"], row["step_seconds"], row["step_source"], row["run_step_seconds"]),
                         ("plan", 0.02, "measured", 0.019))

    def test_a_contradicted_step_is_a_warning(self) -> None:
        step = {**STEP, "source": "runs", "seconds": 0.0291, "runs_s": 0.0291, "measured_s": 0.0733, "apart": True,
                "runs": 6}
        page, _ = self.page(steps=[step])
        self.assertIn("Times are computed by atoll plan, not measured: from a step of 29.1 ms, the median of 6 runs.",
                      page)
        self.assertIn('<p class="warn">Warning: base and a: a step took 29.1 ms in 6 runs (median), 60 % less than the '
                      "73.3 ms measured on 2026-11-26 21:50 UTC with 2 processes at a time. The times use the step of "
                      "the runs.</p>", page)

    def test_several_steps_and_measured_arms(self) -> None:
        data = report_data.Comparison(comparison())
        text = report_answer.timed_text(data)
        self.assertIn("The times of Async are measured behind the relay of atoll launch --link.", text)
        self.assertEqual(report_answer.how_timed(data),
                         "computed by atoll plan from a step of 6.7 ms (measured: Async)")
        steps = [{**STEP, "arms": ["ddp"]}, {**STEP, "arms": ["alone"], "source": "scaled", "seconds": 0.5}]
        data = report_data.Comparison({**comparison(), "steps": steps})
        self.assertIn("with 2 processes at a time (DDP; see the table of steps).",
                      report_answer.timed_text(data))
        self.assertIn("500 ms, measured and scaled as the runs of other arms", report_compare.step_table(data))
        only = {**comparison(), "steps": [], "arms": [arm for arm in comparison()["arms"] if arm["name"] == "async"],
                "runs": [run for run in comparison()["runs"] if run["arm"] == "async"], "baseline": "async"}
        self.assertEqual(report_answer.timed_text(report_data.Comparison(only)),
                         "Times are measured behind the relay of atoll launch --link.")


class TableTest(unittest.TestCase):
    def test_settings_that_differ(self) -> None:
        table = report_compare.arm_table(report_data.Comparison(comparison()))
        lines = {line.split("</span>")[1].split("</td>")[0]: line for line in table.split("<tr>")[2:]}
        self.assertIn("train.sync_every 180 (baseline 1), train.method diloco (baseline ddp)",
                      lines["DiLoCo, H 8"].replace("train.sync_every 8", "train.sync_every 180"))
        self.assertNotIn("train.max_steps", table)
        self.assertIn("the baseline", lines["DDP"])

    def test_near_tie_of_trials(self) -> None:
        table = report_compare.tuning_table(report_data.Comparison(comparison()))
        line = next(line for line in table.split("<tr>") if "Local SGD" in line)
        self.assertIn("inside the list; 0.006 has the lowest mean loss, 2.3020, but of values within 0.5 % of it the "
                      "smallest wins: 0.003 has 2.3050", line)

    def test_untuned_arms_are_named(self) -> None:
        self.assertIn("Not tuned: base and a. Another learning rate may change the order.",
                      report_compare.tuning_table(tiny({"base": [2.0], "a": [2.0]})))
        self.assertNotIn("Not tuned", report_compare.tuning_table(report_data.Comparison(comparison())))

    def test_unfinished_trials(self) -> None:
        content = comparison()
        content["arms"][0]["tuned"] |= {"best": None, "trials": content["arms"][0]["tuned"]["trials"][:1]}
        line = report_compare.tuning_table(report_data.Comparison(content)).split("<tr>")[2]
        self.assertIn("not known: trials are missing", line)
        self.assertNotIn("inside the list", line)

    def test_numbers_have_their_seeds(self) -> None:
        data = tiny({"base": [2.0, 2.0, 2.0], "a": [2.0, 2.0, 2.5]})
        row = report_compare.time_table(data).split("<tr>")[-1]
        self.assertIn('30 s <span class="n">(2 of 3)</span>', row.replace("40 s", "30 s"))
        self.assertIn('40 s <span class="n">(3)</span>', row)
        self.assertIn("<th>verdict</th>", report_compare.loss_table(data))
        self.assertNotRegex(report_compare.build(data)[0], r"\b1 seeds|<th>is</th>")

    def test_rules_are_on_the_page(self) -> None:
        page = html.unescape(report_compare.build(tiny({"base": [2.0, 2.1]}))[0])
        self.assertIn("Arms rank by the median over seeds, in which a miss is infinite", page)
        self.assertIn("Tie: the 90 % interval lies inside the margin of 0.5 % of the baseline's loss, ±0.0102 (two "
                      "one-sided tests at 5 %: Schuirmann, 1987).", page)

    def test_links_of_a_chart(self) -> None:
        charts = {chart.name: chart for chart, _ in report_compare.charts(report_data.Comparison(comparison()))}
        name = next(name for name in charts if name.startswith("seconds-3"))
        self.assertIn("time at 10 Mbit/s, rtt 50 ms, computed by atoll plan", charts[name].svg)
        self.assertEqual(len([name for name in charts if name.startswith("seconds-")]), len(LINKS))


if __name__ == "__main__":
    unittest.main()
