"""The page, the table and the charts of a comparison."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from typing import Any

from ..units import bytes_text, count_text, duration_text, percent_text
from . import html
from .answer import answer, how_timed, listed, place_of, signed, step_text, target_text, timed_text, warnings
from .charts import Chart, loss_chart, outside, panels
from .data import OPEN, Comparison, Row, Stat, counted, curve, known, link_name, time_on, traffic

COLUMNS = (
    "arm", "title", "method", "workers", "seed", "link", "valid", "why_invalid", "final_loss", "tokens", "bytes_up",
    "bytes_down", "source", "step_seconds", "step_source", "seconds", "utilization", "round_s", "tokens_to_target",
    "bytes_to_target", "seconds_to_target", "cost", "cost_to_target", "run_step_seconds", "theta_hash",
)


def csv_rows(data: Comparison) -> list[list[Any]]:
    """A line for each run and link, and for each invalid run. Infinite is `inf`, unknown is empty.

    `source` is plan (computed by atoll plan from `step_seconds`, which has its `step_source`) or measured. The run's
    own median step is `run_step_seconds`.
    """
    arms = {arm["name"]: arm for arm in data.arms}
    sources = {name: entry["source"] for entry in data.steps for name in entry["arms"]}
    rows: list[list[Any]] = [list(COLUMNS)]
    for run in data.runs:
        arm = arms[run["arm"]]
        for time in run["times"] or [{"link": run["link"]}]:
            values = {**arm, **run, "run_step_seconds": run["step_seconds"], "step_seconds": None, **time,
                      "arm": run["arm"]}
            values["step_source"] = sources.get(run["arm"]) if time.get("source") == "plan" else None
            if run["valid"]:
                values |= {"tokens_to_target": data.tokens_to_target(run), "bytes_to_target": data.bytes_to_target(run)}
                for key, of in (("seconds_to_target", data.seconds_to_target), ("cost", data.cost),
                                ("cost_to_target", data.cost_to_target)):
                    values[key] = of(run, time["link"])
            rows.append(["" if (value := values.get(key)) is None else value for key in COLUMNS])
    return rows


# --- charts -----------------------------------------------------------------------------------------------------------


def _slug(link: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", link.lower()).strip("-")[:60]


def _loss_chart(data: Comparison, name: str, axis: str, rows: list[Row], link: str | None = None) -> tuple[Chart, str]:
    curves = [found for row in rows if (found := curve(row, axis, link)) and found.x[-1] > 0]
    reach = [(row, data.to_target(row, data.tokens_to_target)) for row in rows]
    some = [f"{row.title} {stat.count}" for row, stat in reach if 0 < stat.reached < stat.n]
    above = outside(curves, data.target)
    caption = [f"Above the chart: {', '.join(above)}." if above else "",
               f"Seeds that reach the target: {'; '.join(some)}." if some else ""]
    label = f"time {place_of(link)}, {how_timed(data)}, without evaluations" if link else None
    return loss_chart(name, curves, axis, data.target, label), " ".join(filter(None, caption))


def _panels(data: Comparison, name: str, axis: str, of: Callable[[Row, str], Stat]) -> Chart:
    """A panel for each link, a row for each arm."""
    columns = {link_name(link): [next((of(row, link) for row in data.rows_on(link) if row.index == i), _UNKNOWN)
                                 for i in range(len(data.arms))] for link in data.links}
    return panels(name, columns, [_title(arm) for arm in data.arms], axis)


_UNKNOWN = Stat(None, 0, 0)


def _title(arm: Any) -> str:
    return str(arm["title"] or arm["name"])


def _to_target(data: Comparison) -> Callable[[Row, str], Stat]:
    return lambda row, link: data.to_target(row, lambda run: data.seconds_to_target(run, link))


def _of_time(key: str) -> Callable[[Row, str], Stat]:
    """The median of a value of `times`."""
    return lambda row, link: row.median(lambda run: (time_on(run, link) or {}).get(key))


# --- tables -----------------------------------------------------------------------------------------------------------


def _plain(value: float | None, text: Callable[[float], str]) -> str:
    return "–" if value is None else "∞" if math.isinf(value) else text(value)


def _show(stat: Stat, text: Callable[[float], str]) -> str:
    """A number with the seeds behind it."""
    return "–" if stat.value is None else html.count(_plain(stat.value, text), stat.count)


def _difference(data: Comparison, row: Row) -> list[Any]:
    """Cells: difference, interval, verdict."""
    if data.baseline is not None and row.arm is data.baseline.arm:
        return [html.Cell("baseline", "miss")] * 3
    found = data.difference(row)
    if found is None:
        return ["–"] * 3
    mean = html.count(signed(found.mean, 4), str(found.seeds))
    if found.half95 is None:
        return [mean, "–", html.Cell("one seed", "miss")]
    interval = f"{signed(found.mean - found.half95, 4)} … {signed(found.mean + found.half95, 4)}"
    kind = "tag open" if found.verdict == OPEN else "tag"
    return [mean, interval, html.Markup(f'<span class="{kind}">{found.verdict}</span>')]


def _final_loss(row: Row) -> Any:
    """Mean and deviation."""
    values = list(row.losses.values())
    if not values:
        return html.Cell("no valid run", "miss")
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return _show(row.loss, lambda loss: f"{loss:.4f}{deviation}")


def loss_table(data: Comparison) -> str:
    heads = ["arm", "final loss", "difference", "95 % interval", "verdict", "tokens to target", "bytes to target",
             "sent up", "sent down"]
    untrained = data.content["untrained_loss"]
    rows = [["untrained model", f"{untrained:.4f}", *[""] * 7]] if untrained is not None else []
    rows += [[html.arm(row.index, row.label), _final_loss(row), *_difference(data, row),
              _show(data.to_target(row, data.tokens_to_target), count_text),
              _show(data.to_target(row, data.bytes_to_target), bytes_text),
              _show(row.mean("bytes_up"), bytes_text), _show(row.mean("bytes_down"), bytes_text)] for row in data.rows]
    return html.table(heads, rows)


def money(data: Comparison) -> Callable[[float], str]:
    currency = str(data.price["currency"]) if data.price else ""
    return lambda value: f"{value:.2f} {currency}" if value >= 0.1 else f"{value:.2g} {currency}"


def time_table(data: Comparison) -> str:
    """For each link: seconds to the target, seconds of the whole run, utilization, money."""
    kinds: dict[str, tuple[Callable[[Row, str], Stat], Callable[[float], str]]] = {
        "to target": (_to_target(data), duration_text),
        "whole run": (_of_time("seconds"), duration_text),
        "utilization": (_of_time("utilization"), percent_text),
    }
    if data.price:
        kinds["money to target"] = \
            (lambda row, link: data.to_target(row, lambda run: data.cost_to_target(run, link)), money(data))
        kinds["money in all"] = (lambda row, link: row.median(lambda run: data.cost(run, link)), money(data))
    columns = [(name, {row.index: of(row, link) for row in data.rows_on(link)}, shown)
               for link in data.links for name, (of, shown) in kinds.items()]
    rows = [[html.arm(i, _title(arm)), *(_best(name, found, i, shown) for name, found, shown in columns)]
            for i, arm in enumerate(data.arms)]
    group = "".join(f'<th class="first" colspan="{len(kinds)}">{html.text(link_name(link))}</th>'
                    for link in data.links)
    heads = ["arm", *(f"first: {name}" if name == "to target" else name for name, _, _ in columns)]
    return html.table(heads, rows, f'<tr class="group"><th></th>{group}</tr>')


def _best(name: str, found: dict[int, Stat], index: int, shown: Callable[[float], str]) -> html.Cell:
    """A cell of the table of times; the lowest value to the target is the best one."""
    stat = found.get(index, _UNKNOWN)
    best = name.endswith("to target") and known(stat.value) and \
        stat.value == min(other.value for other in found.values() if known(other.value))
    return html.Cell(_show(stat, shown), "first" * (name == "to target") + " best" * best)


def step_table(data: Comparison) -> str:
    """The steps behind the computed times."""
    rows = [[listed(data.titles(entry)), step_text(entry), _plain(entry["measured_s"], duration_text),
             html.count(duration_text(entry["runs_s"]), counted(entry["runs"], "run")) if entry["runs_s"] else "–"]
            for entry in data.steps]
    return html.table(["arms", "text: step of the plan", "measured", "in the runs"], rows)


def _value(value: Any) -> str:
    """A tuned setting, which may be a text."""
    return "–" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _why_best(tuned: Any) -> str:
    """Where the best value lies, and whether the rule for near ties chose it."""
    if tuned["best"] is None:
        return "not known: trials are missing"
    edge = "at the edge of the list: a value beyond it may be better" if tuned["edge"] else "inside the list"
    near = tuned["near_tie"]
    if not near:
        return edge
    lowest = f"{_value(near['lowest'])} has the lowest mean loss, {near['lowest_loss']:.4f}"
    rule = f"of values within {percent_text(near['within'])} of it the smallest wins"
    return f"{edge}; {lowest}, but {rule}: {_value(tuned['best'])} has {near['best_loss']:.4f}"


def _trials(tuned: Any) -> str:
    losses: dict[Any, list[str]] = {}
    for trial in tuned["trials"]:
        loss = f"{trial['loss']:.4f}" if known(trial["loss"]) else "diverged"
        losses.setdefault(trial["value"], []).append(loss)
    return "; ".join(f"{_value(value)}: {', '.join(found)}" for value, found in losses.items())


def tuning_table(data: Comparison) -> str:
    rows = [[_title(arm), tuned["key"], _trials(tuned), html.Cell(_value(tuned["best"]), "best"), _why_best(tuned)]
            for arm in data.arms if (tuned := arm["tuned"])]
    heads = ["arm", "text: key", "text wrap: value: final loss of each seed", "best", "text wrap: the best value lies"]
    untuned = [_title(arm) for arm in data.arms if not arm["tuned"]]
    rest = f"Not tuned: {listed(untuned)}. Another learning rate may change the order." if untuned else ""
    return html.table(heads, rows) + html.note(rest)


def check_table(data: Comparison) -> str:
    titles = {arm["name"]: _title(arm) for arm in data.arms}
    rows = []
    for check in data.content["checks"]:
        planned, measured = check["planned_s"], check["measured_s"]
        error = f"{'+' if planned >= measured else '-'}{percent_text(abs(planned / measured - 1))}" \
            if planned and measured else "–"
        rows.append([
            titles.get(check["arm"], check["arm"]), check["seed"], link_name(check["link"]),
            _plain(planned, duration_text), _plain(measured, duration_text), error,
            _plain(check["planned_utilization"], percent_text), _plain(check["measured_utilization"], percent_text),
            "yes" if check["same_hash"] else html.Cell("no", "best")])
    return html.table(["arm", "seed", "text: link", "planned", "measured", "error", "planned utilization",
                       "measured utilization", "same bits"], rows)


def invalid_table(data: Comparison) -> str:
    rows = [[run["arm"], run["seed"], link_name(run["link"]) if run["link"] else "–", run["why_invalid"]]
            for run in data.runs if not run["valid"]]
    return html.table(["arm", "seed", "text: link", "text wrap: reason"], rows)


def _seed_table(data: Comparison) -> str:
    rows = [[row.label, run["seed"], _plain(run["final_loss"], lambda v: f"{v:.4f}"),
             _plain(data.tokens_to_target(run), count_text), _plain(data.bytes_to_target(run), bytes_text),
             *(_plain(data.seconds_to_target(run, link), duration_text) for link in data.links),
             _plain(traffic(run), bytes_text), run["theta_hash"] or "–"] for row in data.rows for run in row.runs]
    return html.table(["arm", "seed", "final loss", "tokens to target", "bytes to target",
                       *(f"to target, {link_name(link)}" for link in data.links), "sent, both ways",
                       "text: theta_hash"], rows)


def _own_settings(data: Comparison, arm: Any) -> str:
    """The resolved settings that differ from the baseline's."""
    base = data.baseline_settings
    if arm["name"] == data.content["baseline"]:
        return "the baseline"
    found = [f"{key} {arm['resolved'].get(key, '–')} (baseline {base.get(key, '–')})"
             for key in dict.fromkeys([*base, *arm["resolved"]]) if arm["resolved"].get(key) != base.get(key)]
    return ", ".join(found) or "as the baseline"


def arm_table(data: Comparison) -> str:
    rows = [[html.arm(i, _title(arm)), arm["method"], arm["workers"], arm["note"] or "", _own_settings(data, arm)]
            for i, arm in enumerate(data.arms)]
    return html.table(["arm", "text: method", "workers", "text wrap: note",
                       "text wrap: settings that differ from the baseline"], rows)


# --- the page ---------------------------------------------------------------------------------------------------------

_RANKS = """Arms rank by the median over seeds, in which a miss is infinite: half of the seeds are there
by then. The answer also names the first arm that reaches the target with every seed. An arm with one seed has
no rank beside arms with more. Two arms are not separable if times of seeds that reach the target overlap."""


def _read(data: Comparison) -> str:
    base = data.baseline
    margin = f"{percent_text(data.margin)} of the baseline's loss"
    margin += f", ±{data.margin_of(base):.4f}" if base and base.losses else ""
    return f"""In brackets: the number of seeds; (2 of 3) says that two of three reach the target.
Final loss: mean ± standard deviation over seeds, of the merged model on the validation set. Difference: final loss of
the arm minus that of the baseline with the same seed, with the 95 % interval of a paired t test. Lower, higher: the
interval excludes 0. Tie: the 90 % interval lies inside the margin of {margin} (two one-sided tests at 5 %: Schuirmann,
1987). Not separable: neither holds with these seeds. To target: the first evaluation at or below the target, the median
over seeds; a miss is infinite (∞). Bytes: those of all workers. Times: of training, without evaluations."""


def _machine_text(machine: Any) -> str:
    gpus = machine.get("gpus", [])
    names = [f"{gpus.count(name)} {name}" for name in dict.fromkeys(gpus)]
    return ", ".join([*names, machine["cpu"], counted(machine["cores"], "core"), machine["system"]])


def _about(data: Comparison) -> str:
    c = data.content
    machines = c.get("machines") or [c["machine"]]  # one machine: before cells could be imported
    parts = [c["created"], f"atoll {c['atoll']}", f"commit {c['commit']}" if c["commit"] else "",
             listed([_machine_text(machine) for machine in machines])]
    return " · ".join(filter(None, map(str, parts)))


def charts(data: Comparison) -> list[tuple[Chart, str]]:
    """Charts and captions: tokens, bytes, time to target and utilization, then seconds on each link."""
    first = data.first_rows
    found = [_loss_chart(data, "tokens", "tokens", first), _loss_chart(data, "bytes", "bytes", first),
             (_panels(data, "target", "seconds", _to_target(data)), ""),
             (_panels(data, "utilization", "utilization", _of_time("utilization")), "")]
    return found + [_loss_chart(data, f"seconds-{i + 1}-{_slug(link)}", "seconds", data.rows_on(link), link)
                    for i, link in enumerate(data.links)]


def _means(data: Comparison) -> str:
    """What a line of a chart is."""
    counts = sorted({len(row.runs) for row in data.first_rows if row.runs})
    if not counts or counts == [1]:
        return "Lines are single runs: one seed."
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"Lines are means over {seeds} seeds, bands reach from the lowest to the highest seed."


def _sections(data: Comparison, drawn: list[tuple[Chart, str]]) -> str:
    tokens, sent, to_target, utilization, *seconds = (html.figure(chart, note) for chart, note in drawn)
    linked = [row.label for row in data.first_rows if row.link]
    note = html.note(f"Its loss depends on the link, so this chart shows: {', '.join(linked)}." if linked else "")
    price, how = "", how_timed(data)
    if data.price:
        hour, gigabyte = data.price["machine_hour"], data.price["gb"]
        price = html.note(f"Prices: {hour:g} for an hour of a worker and {gigabyte:g} for a gigabyte, in "
                          f"{data.price['currency']}.")
    return "".join(f"<h2>{html.text(title)}</h2>{content}" for title, content in (
        (f"Time to the target on each link, {how}", html.note(timed_text(data)) + to_target),
        ("Loss against tokens", html.note(_means(data)) + tokens + note),
        (f"Loss against time, {how}", "".join(seconds)),
        ("Loss against bytes", sent + note),
        (f"Utilization, {how}", html.note("The share of the time in which the workers compute.") + utilization),
        ("Loss and bytes of each arm", loss_table(data) + html.note(_read(data))),
        (f"Time on each link, {how}", time_table(data) + html.note(_RANKS) + price)))


def _evidence(data: Comparison) -> str:
    tables = {"Tuning": tuning_table(data), "Steps behind the computed times": step_table(data),
              "Planned times against times measured on the link": check_table(data),
              "Invalid runs: no loss, and a diverged seed misses the target": invalid_table(data)}
    parts = [f"<h2>{title}</h2>{found}" for title, found in tables.items() if found]
    commands = "\n".join(dict.fromkeys(str(run["command"]) for run in data.runs))
    settings = "\n".join(f"{key}: {value}" for key, value in data.baseline_settings.items())
    return "".join(parts) + html.note(data.content.get("rules") or "") + "<h2>Everything behind the numbers</h2>" \
        + "".join(html.details(title, content) for title, content in (
            ("Each seed", _seed_table(data)), ("Arms: settings that differ from the baseline", arm_table(data)),
            ("All settings of the baseline", html.code(settings)),
            ("Grid", html.code(data.content["grid"])), ("Commands", html.code(commands))))


def build(data: Comparison) -> tuple[str, list[Chart]]:
    """The page and its charts."""
    drawn = charts(data)
    told = "".join(f"<p>{html.text(text)}</p>" for text in [*answer(data), target_text(data), timed_text(data)])
    told += "".join(f'<p class="warn">Warning: {html.text(text)}</p>' for text in warnings(data))
    names = html.legend([_title(arm) for arm in data.arms])
    content = f'<div class="answer">{told}</div>{names}{_sections(data, drawn)}{_evidence(data)}'
    return html.page(str(data.content["title"]), _about(data), content), [chart for chart, _ in drawn]
