"""The answer of a comparison in plain words, from its numbers.

- Loss: arms rank by their mean final loss, those with fewer valid seeds behind the others.
- Time: arms rank by the median over seeds, in which a miss is infinite. The sentence says how many seeds reach the
  target. An arm with one seed ranks nowhere while others have more, and one seed alone gives no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..units import duration_text, ratio_text
from .data import HIGHER, LOWER, ONE_SEED, OPEN, TIE, WITHIN, Comparison, Difference, Row, Stat, counted, \
    how_measured, known, link_name, step_check

_WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def listed(names: Sequence[str]) -> str:
    """"a, b and c"; "a, x; b and c" if a name has a comma."""
    if len(names) < 2:
        return "".join(names)
    comma = "; " if any("," in name for name in names) else ", "
    return f"{comma.join(names[:-1])} and {names[-1]}"


def some_of(names: Sequence[str]) -> str:
    """The first name and the number of the others."""
    return listed(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} other arms"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def answer(data: Comparison) -> list[str]:
    """Sentences: final loss, the cost of local training in tokens, the first arm on each link."""
    rows = [row for row in data.rows if row.losses]
    if not rows or data.baseline is None or not data.baseline.losses:
        return ["No arm can be compared yet: the baseline has no valid run."]
    return [part for part in (_missing(data), _loss(data, rows), *_verdicts(data, rows), _local(data, rows),
                              *(_fastest(data, link) for link in data.links)) if part]


def _missing(data: Comparison) -> str:
    """The arms whose seeds have not all run."""
    found = [(row, f"{row.loss.n} of {len(data.seeds)} seeds") for row in data.rows if row.loss.n < len(data.seeds)]
    return f"The comparison is not complete: {_grouped(data, found, _once)}." if found else ""


def _once(texts: list[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


# --- loss -------------------------------------------------------------------------------------------------------------


def _seeds(stat: Stat) -> str:
    """"3 seeds", or "2 of 3 seeds"."""
    return f"{stat.count} seed{'' if stat.n == 1 else 's'}"


def _loss(data: Comparison, rows: list[Row]) -> str:
    assert data.baseline is not None
    most = max(row.loss.reached for row in rows)
    ranked = [row for row in rows if row.loss.reached == most]
    best = min(ranked, key=lambda row: row.loss.value or math.inf)
    told = f"{_capital(best.label)} ends with the lowest mean loss, {best.loss.value:.3f} ({_seeds(best.loss)})"
    base = data.baseline
    told += "." if best.arm is base.arm else f"; {base.title} ends with {base.loss.value:.3f} ({_seeds(base.loss)})."
    behind = [f"{row.label} ({_seeds(row.loss)})" for row in rows if row.loss.reached < most]
    if behind:
        told += f" Not ranked, with fewer valid seeds: {listed(behind)}."
    failed = [f"{row.label} ({len(row.diverged)} of {counted(row.loss.n, 'seed')} diverged)" for row in data.rows
              if not row.losses and row.loss.n]
    if failed:
        told += f" No valid run: {listed(failed)}."
    return told


def _verdicts(data: Comparison, rows: list[Row]) -> list[str]:
    """A sentence for each verdict and number of seeds."""
    assert data.baseline is not None
    groups: dict[tuple[str, int], list[tuple[Row, Difference]]] = {}
    for row in rows:
        found = data.difference(row)
        if found:
            groups.setdefault((found.verdict, found.seeds), []).append((row, found))
    title, margin = data.baseline.title, f"±{data.margin_of(data.baseline):.3f}"
    words = {LOWER: f"Lower than {title}", LOWER + WITHIN: f"Lower than {title}, but within the margin of {margin}",
             TIE: f"A tie with {title}, within {margin}", OPEN: f"Not separable from {title}",
             HIGHER + WITHIN: f"Higher than {title}, but within the margin of {margin}",
             HIGHER: f"Higher than {title}"}
    told = [f"{words[verdict]}, with {counted(n, 'seed')}: {_grouped(data, groups[verdict, n], _interval)}."
            for verdict in words for n in sorted({n for kind, n in groups if kind == verdict}, reverse=True)]
    single = [pair for (verdict, _), pairs in groups.items() if verdict == ONE_SEED for pair in pairs]
    return told + ([f"One seed gives no verdict: {_grouped(data, single, _interval)}."] if single else [])


def _grouped(data: Comparison, found: Sequence[tuple[Row, Any]], text: Callable[[list[Any]], str]) -> str:
    """Titles with a text about what was found; an arm whose rows on all links are among them is named once."""
    parts = []
    for index in dict.fromkeys(row.index for row, _ in found):
        pairs = [pair for pair in found if pair[0].index == index]
        if len(pairs) == sum(row.index == index for row in data.rows):
            parts.append(f"{pairs[0][0].title} ({text([each for _, each in pairs])})")
        else:
            parts += [f"{row.label} ({text([each])})" for row, each in pairs]
    return listed(parts)


def _interval(found: list[Difference]) -> str:
    """From the lowest to the highest end of the intervals that give the verdict; one seed has the difference alone."""
    halves = [each.half90 if each.verdict == TIE else each.half95 for each in found]
    low = signed(min(each.mean - (half or 0.0) for each, half in zip(found, halves, strict=True)))
    high = signed(max(each.mean + (half or 0.0) for each, half in zip(found, halves, strict=True)))
    return low if low == high else f"{low} … {high}"


def signed(value: float, digits: int = 3) -> str:
    text = f"{value:+.{digits}f}"
    return text if float(text) else f"+{abs(float(text)):.{digits}f}"


# --- the target -------------------------------------------------------------------------------------------------------


def _span(values: list[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _local(data: Comparison, rows: list[Row]) -> str:
    """The tokens that local training needs to the target, against the baseline, if that is DDP."""
    base = data.baseline
    local = [row for row in rows if row.arm["workers"] > 1 and row.arm["method"] != "ddp"]
    need = data.to_target(base, data.tokens_to_target).value if base else None
    if base is None or base.arm["method"] != "ddp" or not local or not known(need) or not need:
        return ""
    found = [(row, data.to_target(row, data.tokens_to_target)) for row in local]
    ratios = [stat.value / need for _, stat in found if known(stat.value)]
    told: list[str] = []
    if ratios:
        ratio = _span(ratios, ratio_text)
        needs = f"as many tokens as {base.title}" if ratio == "1" else f"{ratio} times the tokens of {base.title}"
        counts = sorted({stat.n for _, stat in found if known(stat.value)})
        over = counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
        some = [f"{row.label} with {stat.count}" for row, stat in found if known(stat.value) and stat.reached < stat.n]
        over += f"; {listed(some)}" if some else ""
        told.append(f"to the target, local training needs {needs} (medians over {over})")
    never = [(row, stat) for row, stat in found if stat.value == math.inf]
    if never:
        reach = "reaches" if len({row.index for row, _ in never}) == 1 else "reach"
        some = any(stat.reached for _, stat in never)
        told.append(f"{_grouped(data, never, _reach)} "
                    + (f"{reach} the target with too few seeds" if some else f"never {reach} the target"))
    return _capital("; ".join(told)) + "." if told else ""


def _reach(stats: list[Stat]) -> str:
    return " or ".join(dict.fromkeys(map(_seeds, stats)))


def _fastest(data: Comparison, link: str) -> str:
    """The first arm at the target on a link, the baseline, and arms that are not separable from the first."""
    found = [(row, stat) for row in data.rows_on(link) if (stat := _seconds(data, row, link)).value is not None]
    if not found:
        return ""
    place = _capital(place_of(link))
    ranked = [pair for pair in found if pair[1].n > 1]
    best, first = min(ranked or found, key=lambda pair: pair[1].value)
    if math.isinf(first.value):
        some = [f"{row.title} with {_seeds(stat)}" for row, stat in found if stat.reached]
        return f"{place}, no arm reaches the target" + (f" with most of its seeds: {listed(some)}." if some else ".")
    base = next((pair for pair in found if data.baseline and pair[0].arm is data.baseline.arm), None)
    if not ranked:
        times = [f"{row.title} {duration_text(stat.value) if stat.reached else 'never'}" for row, stat in found]
        return f"{place}, one seed gives no verdict. Times to the target (1 seed each): {'; '.join(times)}."
    told = f"{place}, {best.title} reaches the target first: {_time(first)}"
    near = [pair for pair in ranked if pair[0] is not best and _overlap(data, best, pair[0], link)]
    if base and base[0] is not best and base not in near:
        told += f"; {base[0].title} {_late(base[1], first)}"
    told += "."
    if near:
        titles = [f"{row.title}, {_time(stat)}" for row, stat in near]
        told += f" Not separable from it, because times of their seeds overlap: {'; '.join(titles)}."
    if first.reached < first.n:
        told += _complete(ranked)
    return told


def place_of(link: str) -> str:
    return f"at {link_name(link)}" if link != "none" else "without a link"


def _seconds(data: Comparison, row: Row, link: str) -> Stat:
    return data.to_target(row, lambda run: data.seconds_to_target(run, link))


def _time(stat: Stat) -> str:
    """"20.2 s (2 of 3 seeds, one never)"."""
    misses = stat.n - stat.reached
    never = f", {_WORDS[misses] if misses < len(_WORDS) else misses} never" if misses else ""
    return f"{duration_text(stat.value or 0.0)} ({stat.reached} of {counted(stat.n, 'seed')}{never})"


def _late(stat: Stat, first: Stat) -> str:
    """How the baseline compares with the first arm."""
    assert stat.value is not None and first.value
    if math.isinf(stat.value):
        return f"does with {_seeds(stat)} only" if stat.reached else f"never does ({_seeds(stat)})"
    if stat.n == 1:
        return f"needs {_time(stat)}, and one seed gives no verdict"
    return f"needs {_time(stat)}, {ratio_text(stat.value / first.value)} times as long"


def _overlap(data: Comparison, a: Row, b: Row, link: str) -> bool:
    """The times of the seeds that reach the target lie in ranges that overlap."""
    low, high = ([value for run in row.runs if known(value := data.seconds_to_target(run, link))] for row in (a, b))
    return bool(low and high) and min(low) <= max(high) and min(high) <= max(low)


def _complete(ranked: list[tuple[Row, Stat]]) -> str:
    """The first arm that misses the target with no seed."""
    complete = [pair for pair in ranked if pair[1].reached == pair[1].n]
    if not complete:
        return " No arm reaches it with every seed."
    row, stat = min(complete, key=lambda pair: pair[1].value)
    return f" Of the arms that reach it with every seed, {row.title} is first: {_time(stat)}."


def target_text(data: Comparison) -> str:
    if data.target is None:
        return "There is no target: its arm has no valid run."
    return f"The target is a loss of {data.target:.4f} ({data.content['target']['how']})."


# --- computed or measured ---------------------------------------------------------------------------------------------


def _sources(data: Comparison) -> tuple[bool, list[str]]:
    """Whether times are computed, and the arms whose times are measured."""
    found = {(time["source"], row.title) for row in data.rows for run in row.runs for time in run["times"]}
    measured = [row.title for row in data.first_rows if ("measured", row.title) in found]
    return any(source == "plan" for source, _ in found) or not measured, measured


def how_timed(data: Comparison) -> str:
    """For titles: "computed by atoll plan from a step of 20 ms", and the arms that were measured instead."""
    computed, measured = _sources(data)
    if not computed:
        return "measured behind the relay"
    steps = sorted({entry["seconds"] for entry in data.steps})
    span = _span(steps, duration_text) if steps else ""
    told = "computed by atoll plan" + (f" from {'a step' if len(steps) == 1 else 'steps'} of {span}" if steps else "")
    return told + (f" (measured: {listed(measured)})" if measured else "")


def timed_text(data: Comparison) -> str:
    """How the page knows its times."""
    computed, measured = _sources(data)
    relay = "measured behind the relay of atoll launch --link"
    if not computed:
        return f"Times are {relay}."
    entry = data.step
    told = "Times are computed by atoll plan, not measured"
    if entry:
        others = f" ({some_of(data.titles(entry))}; see the table of steps)" if len(data.steps) > 1 else ""
        told += f": from a step of {step_text(entry)}{others}"
    return told + "." + (f" The times of {listed(measured)} are {relay}." if measured else "")


def step_text(entry: Mapping[str, Any]) -> str:
    """A step and where it comes from."""
    seconds, source = duration_text(entry["seconds"]), entry["source"]
    if source == "measured":
        return f"{seconds}, {how_measured(entry)}"
    if source == "runs":
        return f"{seconds}, the median of {counted(entry['runs'], 'run')}"
    return f"{seconds}, {'given by the grid' if source == 'given' else 'measured and scaled as the runs of other arms'}"


def warnings(data: Comparison) -> list[str]:
    """Steps whose measurement the runs contradict."""
    return [f"{some_of(data.titles(entry))}: {step_check(entry)}. The times use the step of the runs."
            for entry in data.steps if entry["apart"]]
