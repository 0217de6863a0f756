"""Hostile lines of metrics.jsonl: each is skipped and counted, and no reader ends with a traceback."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import time
import unittest
import warnings
from typing import Any

from folder import FolderTest
from test_numpy_board import point_of

from atoll import metrics
from atoll.board import cmd as board
from atoll.board.points import Point
from atoll.compare import run as compare_run
from atoll.report import cmd as report, data as report_data, run as report_run
from atoll.train.launch import _is_done

DRAWS = importlib.util.find_spec("matplotlib") is not None
draws = unittest.skipUnless(DRAWS, "no matplotlib")
DEEP = "[" * 100_000
GOOD: dict[str, dict[str, Any]] = {
    "step": {"time": 10.0, "event": "step", "worker": "w", "step": 3, "round": 1, "tokens": 64, "loss": 3.0, "lr": 0.1,
             "grad_norm": 1.0, "tokens_per_s": 5.0, "tflops": 0.1, "bytes_up": 1, "bytes_down": 1, "compute_s": 1.0,
             "compress_s": 0.1, "send_s": 0.1, "wait_s": 0.1, "apply_s": 0.1},
    "round": {"time": 11.0, "event": "round", "round": 1, "rounds": 2, "version": 1, "tokens": 64, "loss": 3.0,
              "val_loss": 3.0, "bytes_up": 1, "bytes_down": 1, "other_bytes_up": 1, "other_bytes_down": 1,
              "codec": "fp32", "compute_s": 1.0, "wait_s": 0.1, "round_s": 1.5, "eval_s": 0.5, "link_s": 0.1,
              "eta_s": 1.0, "workers": 1, "delivered": 1, "slowest": "w", "norm_ratio": 0.5, "norm_worker": "w",
              "rho": 0.5, "gain": 1.0, "agreement": 0.5, "noise_tokens": 5.0},
    "eval": {"time": 12.0, "event": "eval", "round": 1, "version": 1, "tokens": 64, "loss": 3.0, "val_loss": 3.0,
             "eval_s": 0.5},
    "update": {"time": 11.0, "event": "update", "round": 1, "version": 1, "fragment": 0, "tokens": 64, "lr": 0.7,
               "codec": "fp32", "update_bytes": 5, "relay_bytes": 6, "union_bytes": 7},
    "join": {"time": 9.0, "event": "join", "worker": "w", "text": "joined"},
    "fault": {"time": 9.0, "event": "fault", "worker": "w", "text": "x"},
    "change": {"time": 9.0, "event": "change", "round": 1, "key": "k", "from": "a", "to": "b"},
    "done": {"time": 13.0, "event": "done", "round": 2, "tokens": 128, "val_loss": 2.5},
}
NEEDS = {kind: tuple(event) for kind, event in GOOD.items()}
# Lines that are damaged as a whole, with the reason.
LINES: list[tuple[bytes, str]] = [
    (b"", "no JSON"), (b"{", "no JSON"), (b"nonsense", "no JSON"), (b"\x00" * 4096, "no JSON"), (b"[]", "no object"),
    (b"3", "no object"), (b"null", "no object"), (b'"text"', "no object"), (b"NaN", "no object"),
    (b"1e999", "no object"), (b"9" * 5000, "20 digits"), (DEEP.encode(), "no JSON"),
    (b'{"event":' + DEEP.encode(), "no JSON"),
    (b'{"event":"round","round":' + b"9" * 400 + b"}", "20 digits"), (b"\xff\xfe", "no UTF-8"),
    (b'{"event":"ro\xc3und"}', "no UTF-8"), (b'{"event":"\xed\xa0\x80"}', "no UTF-8"), (b"{}", "event is no text"),
    (b'{"event":null}', "event is no text"), (b'{"event":["round"]}', "event is no text"),
    (b'{"event":{"a":1}}', "event is no text"), (b'{"event":3}', "event is no text"),
    (b'{"event":"\\ud800"}', "event is no text"), (b'{"event":"round"}', "is missing"),
    (b'{"event":"step","time":1}', "is missing"),
    (b'{"event":"x","pad":"' + b"x" * metrics.LINE_MAX + b'"}', "1048576"),
]
# Values that no number and no text of a line may have, as JSON.
NUMBERS = ('"text"', "[1]", "{}", "true", '"1"', "-1e300", "[" * 50 + "]" * 50)
COUNTS = (*NUMBERS, "-1", "1.5", "1e999", "-1e999", "NaN", "Infinity", "9223372036854775808", "1e3")
TEXTS = ("3", "[]", "{}", "false", '"\\ud800"', json.dumps("x" * 5000))
REMOVED = object()


def with_value(kind: str, key: str, value: str) -> bytes:
    """The line of this kind with this JSON as the value of the key."""
    event = {**GOOD[kind], key: "?value?"}
    return json.dumps(event).replace('"?value?"', value).encode()


def table() -> list[tuple[str, bytes]]:
    """(name, line) of damaged lines: over each event and each key."""
    found = [(f"line {i}", line) for i, (line, _) in enumerate(LINES)]
    for kind, event in GOOD.items():
        for key, good in event.items():
            values = COUNTS if isinstance(good, int) else TEXTS if isinstance(good, str) else NUMBERS
            found += [(f"{kind} {key} {value[:20]}", with_value(kind, key, value)) for value in values]
            found.append((f"{kind} without {key}",
                          json.dumps({k: v for k, v in event.items() if k != key}).encode()))
    return found


class MetricsTest(FolderTest):
    def write(self, *lines: bytes) -> None:
        (self.dir / "metrics.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))

    def good_lines(self) -> list[bytes]:
        second = {**GOOD["round"], "round": 2, "tokens": 128, "loss": 2.5, "time": 12.0}
        return [json.dumps(event).encode() for event in (*GOOD.values(), second)]

    def warned(self, call: Any) -> tuple[Any, str]:
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            return call(), errors.getvalue()

    def test_each_damaged_line_is_refused(self) -> None:
        lines = table()
        self.assertGreater(len(lines), 300)
        for i, (line, why) in enumerate(LINES):
            taken = metrics.Lines(NEEDS)
            self.assertIsNone(taken.take(line), f"line {i}")
            self.assertIn(why, taken.first, f"line {i}")
        for name, line in lines:
            taken = metrics.Lines(NEEDS)
            self.assertIsNone(taken.take(line), name)
            self.assertEqual(taken.skipped, 1)
            self.assertTrue(taken.told().isprintable(), name)

    def test_good_lines_and_unknown_values(self) -> None:
        taken = metrics.Lines(NEEDS)
        for event in GOOD.values():
            self.assertEqual(taken.take(json.dumps(event).encode()), event)
        self.assertEqual((taken.skipped, taken.told()), (0, ""))
        for value in ("NaN", "Infinity", "1e999", "null"):  # a measured value that is not known
            event = metrics.Lines({}).take(with_value("round", "loss", value))
            assert event
            self.assertIsNone(event["loss"], value)
        self.assertEqual(metrics.Lines({}).take(b'{"event":"of a later version","more":[1]}'),
                         {"event": "of a later version", "more": [1]})

    def test_board(self) -> None:
        """Each reader takes the good lines beside all damaged ones, and says in one line how many it left out."""

        class Sink:
            points: list[Point] = []

            def put(self, point: Point) -> None:
                self.points.append(point)

            def flush(self) -> None: ...
            def close(self) -> None: ...

        hostile = [line for _, line in table()]
        self.write(*hostile, *self.good_lines())
        for axis in ("steps", "tokens"):
            sink = Sink()
            sink.points = []
            n, errors = self.warned(lambda: board.follow(str(self.dir), [sink], axis, once=True))
            self.assertEqual(n, len(sink.points))
            self.assertGreaterEqual(n, 4)
            self.assertTrue(all(isinstance(v, float) for point in sink.points for v in point.values.values()))
            self.assertRegex(errors, r"warn: .*metrics.jsonl: skipped \d+ damaged lines, the first is line 1: it is no "
                                     r"JSON\n$")
            self.assertEqual(errors.count("\n"), 1)
        for name, line in table():
            point_of(line, "steps")  # whatever it returns, it raises nothing

    def test_report(self) -> None:
        hostile = [line for _, line in table()]
        (self.dir / "config.yaml").write_bytes(b"run: {name: \xff}\n")
        self.write(*hostile, *self.good_lines())
        run, errors = self.warned(lambda: report_run.read(self.dir))
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertRegex(errors, r"skipped \d+ damaged lines, the first is line 1: it is no JSON")
        self.assertIn(2, run.rounds)
        self.assertIn("128 tokens", report_run._told(run))
        report_run.csv_rows(run)
        if DRAWS:
            text, charts = report_run.build(run)
            self.assertIn("128 tokens", text)
            self.assertTrue(charts)

    def test_report_of_each_line(self) -> None:
        """A line alone beside good ones: some keys are not needed by a page, and none of them ends it."""
        for name, line in table():
            self.write(*self.good_lines(), line)
            run, _ = self.warned(lambda: report_run.read(self.dir))
            try:
                run.points(), run.parts(), run.seconds(), report_run._totals(run), report_run._told(run)
            except Exception as error:
                self.fail(f"{name}: {error!r}")

    @draws
    def test_extreme_values_are_drawn(self) -> None:
        rounds = [{**GOOD["round"], "round": n, "loss": 3.4e38 if n == 2 else 3.0 / n, "round_s": 9.9e9,
                   "tokens": 2**62 if n == 4 else 9 * n, "bytes_up": 2**62, "time": 253402300799.0}
                  for n in (1, 2, 3, 4)]
        steps = [{**GOOD["step"], "worker": f"w{i}", "compute_s": -5.0 if i % 2 else 1e9} for i in range(150)]
        evals = [{**GOOD["eval"], "round": n, "val_loss": -3.4e38 if n == 3 else 1.0} for n in (1, 3)]
        self.write(*(json.dumps(event).encode() for event in (*rounds, *steps, *evals)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            path, _ = self.warned(lambda: report.write(self.dir))
        self.assertIn("(100 of 150 workers)", path.read_text(encoding="utf-8"))

    def test_summary_of_a_stranger(self) -> None:
        self.write(*self.good_lines())
        for value in ('"x"', "[]", "{}", "1e999", "NaN", "true", "null", "9" * 4000, '"\\ud800\\u001b[2J"'):
            keys = ("run", "method", "workers", "params", "steps", "final_val_loss", "other_bytes_up", "ddp_bytes",
                    "utilization", "restarts", "theta_hash")
            (self.dir / "summary.json").write_text("{" + ",".join(f'"{key}":{value}' for key in keys) + "}")
            run = report_run.read(self.dir)
            text = report_run._totals(run) + report_run._told(run)
            text.encode()
            self.assertNotIn("\x1b", text)
        if DRAWS:
            text, _ = report_run.build(run)  # the last one
            text.encode()
            self.assertNotIn("\x1b", text)
        for content in (DEEP, "[]", "{", '{"a":' + "9" * 5000 + "}"):
            (self.dir / "summary.json").write_text(content)
            with self.assertRaisesRegex(report_run.Problem, "summary.json is damaged"):
                report_run.read(self.dir)

    @draws
    def test_comparison_of_a_stranger(self) -> None:
        for content in (DEEP, "[]", "{", "3", '{"version":2}', '{"version":[]}', json.dumps(
                {"version": 2, "links": ["none"], "arms": [{"name": "a"}], "runs": [{"arm": "a"}], "seeds": [1],
                 "target": {"loss": "x"}, "price": 3, "margin": "x", "steps": [], "baseline": "a"})):
            (self.dir / "comparison.json").write_text(content)
            with self.assertRaises(report_data.Problem) as raised:
                report.write(self.dir)
            self.assertTrue(str(raised.exception).isprintable())

    @draws
    def test_names_in_other_scripts(self) -> None:
        """The font of the charts lacks these characters: the reader's browser has them."""
        names = ("工人一", "عامل", "कर्मी", "한국\u202e", "e\x1b[2J")
        self.write(*self.good_lines(), *(json.dumps({**GOOD["step"], "worker": name}).encode() for name in names))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            page, errors = self.warned(lambda: report.write(self.dir))
        self.assertEqual([str(each.message) for each in caught if "lyph" in str(each.message)], [])
        self.assertEqual(errors, "")
        text = page.read_text(encoding="utf-8")
        self.assertIn("工人一", text)
        self.assertNotIn("\u202e", text)
        self.assertNotIn("\x1b", text)

    def test_compare(self) -> None:
        """A comparison does not use a run whose file is damaged."""
        cell = compare_run.Cell("x", "run", "x", 1, "/dev/null", None, 1, None, {}, {}, barrier=True)
        for name, line in table():
            events = compare_run.read_events([json.dumps(GOOD["join"]).encode(), line, *self.good_lines()[:4]])
            for barrier in (True, False):
                events.ends(barrier)
            compare_run._step_seconds(events, 64)
            compare_run._curve(events)
            compare_run.judge(events, {"final_val_loss": 2.0}, cell)
        events = compare_run.read_events([json.dumps(GOOD["round"]).encode(), b"{"])
        self.assertEqual(compare_run.judge(events, {"final_val_loss": 2.0}, cell),
                         "metrics.jsonl: skipped a damaged line, line 2: it is no JSON")

    def test_end_of_a_run(self) -> None:
        self.write(*(line for _, line in table()[: len(LINES)]))
        self.assertFalse(_is_done(str(self.dir)))
        self.write(json.dumps(GOOD["done"]).encode(), b"[]", DEEP.encode()[:5000], b"3", b"\xff")
        self.assertTrue(_is_done(str(self.dir)))

    def test_long_line(self) -> None:
        """100 MB without an end of line take neither the time of a square nor the memory of all of it."""
        with open(self.dir / "metrics.jsonl", "wb") as file:
            for _ in range(100):
                file.write(b"x" * 1_000_000)
            file.write(b"\n" + b"".join(line + b"\n" for line in self.good_lines()))
        began = time.monotonic()
        lines = list(metrics.Follower(str(self.dir / "metrics.jsonl")).lines())
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(lines[1:], self.good_lines())
        self.assertLessEqual(len(lines[0]), metrics.LINE_MAX + 1)
        taken = metrics.Lines({})
        taken.take(lines[0])
        self.assertEqual(taken.told(), "skipped a damaged line, line 1: it has more than 1048576 bytes")


if __name__ == "__main__":
    unittest.main()
