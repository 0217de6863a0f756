"""The answer of a comparison in plain words, from its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .report_data import Comparison, Row, known, link_name, median
from .report_plot import ratio_text, time_text


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def answer(data: Comparison) -> list[str]:
    """Sentences: final loss, the cost of local training, the winner on each link."""
    rows = [row for row in data.rows if row.losses]
    if not rows or data.baseline is None or not data.baseline.losses:
        return ["No arm can be compared yet: the baseline has no valid run."]
    return [part for part in (_loss(data, rows), _local(data, rows), *(_fastest(data, link) for link in data.links))
            if part]


def _mean(row: Row) -> float:
    return row.mean("final_loss") or math.inf


def _loss(data: Comparison, rows: list[Row]) -> str:
    assert data.baseline is not None
    best = min(rows, key=_mean)
    told = f"{best.label[:1].upper()}{best.label[1:]} ends with the lowest mean loss, {_mean(best):.3f}"
    told += "." if best is data.baseline else f"; {data.baseline.title} ends with {_mean(data.baseline):.3f}."
    for verdict, words in (("lower", "lower than"), ("tie", "a tie with"), ("higher", "higher than")):
        found = _names(data, [row for row in rows if (d := data.difference(row)) and d.verdict == verdict])
        if found:
            told += f" {words[0].upper()}{words[1:]} {data.baseline.title}: {listed(found)}."
    return told


def _names(data: Comparison, rows: list[Row]) -> list[str]:
    """Titles; an arm whose rows on all links are among them is named once."""
    whole = {index for index in {row.index for row in rows}
             if sum(row.index == index for row in rows) == sum(row.index == index for row in data.rows)}
    return list(dict.fromkeys(row.title if row.index in whole else row.label for row in rows))


def _span(values: list[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-0.000", "+0.000")


def _apart(differences: list[float]) -> str:
    """Differences of the loss in words: "0.010 to 0.020 above"."""
    for sign, word in ((1, "above"), (-1, "below")):
        if all(sign * value > -5e-4 for value in differences):
            return f"{_span([abs(value) for value in differences], '{:.3f}'.format)} {word}"
    return f"{_span(differences, _signed)} from"


def _local(data: Comparison, rows: list[Row]) -> str:
    """What local training costs: loss and tokens, against the baseline, if that is DDP."""
    base = data.baseline
    local = [row for row in rows if row.arm["workers"] > 1 and row.arm["method"] != "ddp"]
    if base is None or base.arm["method"] != "ddp" or not local:
        return ""
    differences = [d.mean for row in local if (d := data.difference(row))]
    if not differences:
        return ""
    told = f"At equal tokens, local training ends {_apart(differences)} {base.title} in loss"
    need = median(map(data.tokens_to_target, base.runs))
    found = [median(map(data.tokens_to_target, row.runs)) for row in local]
    ratios = [value / need for value in found if known(value)] if known(need) and need else []
    if ratios:
        told += f", and needs {_span(ratios, ratio_text)} times its tokens to the target"
    misses = sum(value == math.inf for value in found)
    if misses:
        told += f"; {misses} of {len(local)} never {'reaches' if misses == 1 else 'reach'} the target"
    return told + "."


def _fastest(data: Comparison, link: str) -> str:
    times: Mapping[int, list[Any]] = {
        i: [data.seconds_to_target(run, link) for run in row.runs] for i, row in enumerate(data.rows_on(link))}
    rows = data.rows_on(link)
    medians = {i: value for i, each in times.items() if (value := median(each)) is not None}
    place = f"At {link_name(link)}" if link != "none" else "Without a link"
    if not medians:
        return ""
    best = min(medians, key=lambda i: medians[i])
    if math.isinf(medians[best]):
        return f"{place}, no arm reaches the target."
    slowest = max(value for value in times[best] if value is not None)
    equal = [rows[i].title for i in medians if i != best and min(v for v in times[i] if v is not None) <= slowest
             and not math.isinf(medians[i])]
    told = f"{place}, {rows[best].title} reaches the target first, in {time_text(medians[best])}"
    if equal:
        told += f", a tie with {listed(equal)} (times of single seeds overlap)"
    base = next((i for i in medians if data.baseline and rows[i].arm is data.baseline.arm), best)
    if base != best:
        late = medians[base]
        told += f"; {rows[base].title} never does" if math.isinf(late) else \
            f"; {rows[base].title} needs {time_text(late)}, {ratio_text(late / medians[best])} times as long" \
            if rows[base].title not in equal else ""
    return told + "."


def target_text(data: Comparison) -> str:
    if data.target is None:
        return "There is no target: its arm has no valid run."
    return f"The target is a loss of {data.target:.4f} ({data.content['target']['how']})."
