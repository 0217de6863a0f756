"""atoll-report: a page about a comparison or a run that opens without a network.

PATH is the folder of an `atoll compare`, or that of a run. The page is report.html. Beside it are results.csv and the
charts for papers, report-NAME.svg and report-NAME.png. Each file is written as a whole.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..command import DONE, Options, catch_signals, hold_signals, replace_file, run, say, wrong
from . import charts as report_charts, compare as report_compare, data as report_data, run as report_run


def _csv(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Writes the report of a folder and returns the path of its page. Raises Problem."""
    folder = Path(folder)
    page = Path(out) if out else folder / "report.html"
    report_charts.load()
    if (folder / "comparison.json").exists():
        data = report_data.read(folder / "comparison.json")
        try:
            (text, charts), rows = report_compare.build(data), report_compare.csv_rows(data)
        except report_data.UNFIT as error:
            raise report_data.unfit(folder / "comparison.json", error) from None
    elif (folder / "metrics.jsonl").exists():
        one = report_run.read(folder)
        (text, charts), rows = report_run.build(one), report_run.csv_rows(one)
    else:
        raise wrong(f"{folder} has no comparison.json and no metrics.jsonl: give a folder of atoll compare or of a run")
    with hold_signals():
        for chart in charts:
            for ending, content in chart.files.items():
                replace_file(page.with_name(f"{page.stem}-{chart.name}.{ending}"), content)
        replace_file(page.with_name("results.csv"), _csv(rows))
        replace_file(page, text.encode())
    return page


def body(words: Sequence[str]) -> int:
    o = Options(
        "atoll report",
        "PATH [options]",
        "Write a page about a comparison or a run: report.html, results.csv and the charts.\n"
        "The page is one file and needs no network.",
    )
    o.add_argument("path", metavar="PATH", help="folder of atoll compare, or of a run")
    o.add_argument("--out", metavar="FILE", help="the page (default PATH/report.html); other files go beside it")
    options = o.parse(words)
    if not os.path.isdir(options.path):
        raise wrong(f"{options.path} is not a folder: give a folder of atoll compare or of a run")
    catch_signals()
    say(f"wrote {write(options.path, options.out)}")
    return DONE


def main(words: Sequence[str] | None = None) -> int:
    """The program. Returns the exit code."""
    return run(body, words, "stopped by a signal: start it again")

