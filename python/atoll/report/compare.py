"""The page, the table and the charts of a comparison."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from ..units import bytes_text, count_text, duration_text, percent_text
from . import html
from .answer import answer, how_timed, listed, place_of, signed, step_text, target_text, timed_text, warnings
from .charts import loss_chart, panels
from .data import OPEN, Comparison, Row, Stat, counted, curve, known, link_name, time_on, traffic
from .plot import Chart, outside

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
    never = [row.index for row, stat in reach if stat.value == math.inf]
    some = [f"{row.title} {stat.count}" for row, stat in reach if 0 < stat.reached < stat.n]
    above = outside(curves, data.target)
    caption = [f"Above the chart: {', '.join(above)}." if above else "",
               f"Seeds that reach the target: {'; '.join(some)}." if some else ""]
    label = f"time {place_of(link)}, {how_timed(data)}, without evaluations" if link else None
    return loss_chart(name, curves, axis, data.target, never, label), " ".join(filter(None, caption))


def _panels(data: Comparison, name: str, axis: str, of: Callable[[Row, str], Stat]) -> Chart:
    """A panel for each link, a row for each arm."""
    found = [[next((of(row, link) for row in data.rows_on(link) if row.index == i), Stat(None, 0, 0))
              for i in range(len(data.arms))] for link in data.links]
    return panels(name, [link_name(link) for link in data.links], [_title(arm) for arm in data.arms], found,
                  range(len(data.arms)), axis)


def _title(arm: Any) -> str:
    return str(arm["title"] or arm["name"])


def _seconds(data: Comparison) -> Callable[[Row, str], Stat]:
    return lambda row, link: data.to_target(row, lambda run: data.seconds_to_target(run, link))


def _utilization(row: Row, link: str) -> Stat:
    return row.median(lambda run: (time_on(run, link) or {}).get("utilization"))


# --- tables -----------------------------------------------------------------------------------------------------------


def _show(stat: Stat, text: Callable[[float], str], kind: str = "") -> str:
    """A number with the seeds behind it."""
    if stat.value is None:
        return html.cell("–", f"{kind} miss".strip())
    number = "∞" if math.isinf(stat.value) else html.text(text(stat.value))
    return html.cell(f"{number} {html.count(stat.count)}", kind if known(stat.value) else f"{kind} miss".strip())


def _plain(value: float | None, text: Callable[[float], str]) -> str:
    """A number of one run."""
    return html.cell("–", "miss") if value is None else \
        html.cell("∞", "miss") if math.isinf(value) else html.cell(html.text(text(value)))


def _difference(data: Comparison, row: Row) -> str:
    if data.baseline is not None and row.arm is data.baseline.arm:
        return html.cell("baseline", "miss") * 3
    found = data.difference(row)
    if found is None:
        return html.cell("–", "miss") * 3
    mean = html.cell(f"{signed(found.mean, 4)} {html.count(str(found.seeds))}")
    if found.half95 is None:
        return mean + html.cell("–", "miss") + html.cell("one seed", "miss")
    interval = f"{signed(found.mean - found.half95, 4)} … {signed(found.mean + found.half95, 4)}"
    kind = "tag open" if found.verdict == OPEN else "tag"
    return mean + html.cell(interval) + html.cell(f'<span class="{kind}">{found.verdict}</span>')


def _deviation(row: Row) -> str:
    values = list(row.losses.values())
    if len(values) < 2:
        return ""
    mean = sum(values) / len(values)
    return f" ± {math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)):.4f}"


def loss_table(data: Comparison) -> str:
    heads = ["arm", "final loss", "difference", "95 % interval", "verdict", "tokens to target", "bytes to target",
             "sent up", "sent down"]
    rows = []
    if data.content["untrained_loss"] is not None:
        rows.append(html.cell("untrained model") + html.cell(f"{data.content['untrained_loss']:.4f}")
                    + html.cell("") * 7)
    for row in data.rows:
        rows.append(
            html.cell(html.swatch(row.index) + html.text(row.label))
            + (_show(row.loss, lambda loss, row=row: f"{loss:.4f}{_deviation(row)}")  # type: ignore[misc]
               if row.losses else html.cell("no valid run", "miss"))
            + _difference(data, row)
            + _show(data.to_target(row, data.tokens_to_target), count_text)
            + _show(data.to_target(row, data.bytes_to_target), bytes_text)
            + _show(row.mean("bytes_up"), bytes_text) + _show(row.mean("bytes_down"), bytes_text)
        )
    return html.table(heads, rows)


def money(data: Comparison) -> Callable[[float], str]:
    currency = str(data.price["currency"]) if data.price else ""
    return lambda value: f"{value:.2f} {currency}" if value >= 0.1 else f"{value:.2g} {currency}"


def time_table(data: Comparison) -> str:
    """For each link: seconds to the target, seconds of the whole run, utilization, money."""
    seconds = _seconds(data)
    kinds: list[tuple[str, Callable[[Row, str], Stat], Callable[[float], str]]] = [
        ("to target", seconds, duration_text),
        ("whole run", lambda row, link: row.median(lambda run: (time_on(run, link) or {}).get("seconds")),
         duration_text),
        ("utilization", _utilization, percent_text),
    ]
    if data.price:
        kinds += [
            ("money to target", lambda row, link: data.to_target(row, lambda run: data.cost_to_target(run, link)),
             money(data)),
            ("money in all", lambda row, link: row.median(lambda run: data.cost(run, link)), money(data))]
    group = "".join(f'<th class="first" colspan="{len(kinds)}">{html.text(link_name(link))}</th>'
                    for link in data.links)
    heads = ["arm"] + [f'<th class="first">{name}</th>' if name == "to target" else name
                       for _ in data.links for name, _, _ in kinds]
    values = {(row.index, link, name): of(row, link) for link in data.links for row in data.rows_on(link)
              for name, of, _ in kinds}
    rows = []
    for i, arm in enumerate(data.arms):
        cells = html.cell(html.swatch(i) + html.text(_title(arm)))
        for link in data.links:
            for name, _, shown in kinds:
                stat = values.get((i, link, name), Stat(None, 0, 0))
                others = [other.value for (_, at, of), other in values.items() if (at, of) == (link, name)]
                best = name.endswith("to target") and known(stat.value) and stat.value == min(filter(known, others))
                cells += _show(stat, shown, " ".join(filter(None, ("first" if name == "to target" else "",
                                                                   "best" if best else ""))))
        rows.append(cells)
    return html.table(heads, rows, f'<tr class="group"><th></th>{group}</tr>')


def step_table(data: Comparison) -> str:
    """The steps behind the computed times."""
    rows = []
    for entry in data.steps:
        measured, runs = entry["measured_s"], entry["runs_s"]
        rows.append(html.cell(html.text(listed(data.titles(entry)))) + html.cell(html.text(step_text(entry)), "text")
                    + _plain(measured, duration_text)
                    + (html.cell(f"{duration_text(runs)} {html.count(counted(entry['runs'], 'run'))}") if runs else
                       html.cell("–", "miss")))
    heads = ["arms", '<th class="text">step of the plan</th>', "measured", "in the runs"]
    return html.table(heads, rows) if rows else ""


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


def tuning_table(data: Comparison) -> str:
    rows = []
    for arm in data.arms:
        tuned = arm["tuned"]
        if not tuned:
            continue
        losses: dict[Any, list[str]] = {}
        for trial in tuned["trials"]:
            loss = f"{trial['loss']:.4f}" if known(trial["loss"]) else "diverged"
            losses.setdefault(trial["value"], []).append(loss)
        trials = "; ".join(f"{_value(value)}: {', '.join(found)}" for value, found in losses.items())
        rows.append(html.cell(html.text(_title(arm))) + html.cell(html.text(tuned["key"]), "text")
                    + html.cell(html.text(trials), "text wrap") + html.cell(html.text(_value(tuned["best"])), "best")
                    + html.cell(html.text(_why_best(tuned)), "text wrap"))
    heads = ["arm", '<th class="text">key</th>', '<th class="text">value: final loss of each seed</th>', "best",
             '<th class="text">the best value lies</th>']
    untuned = [_title(arm) for arm in data.arms if not arm["tuned"]]
    note = f'<p class="note">Not tuned: {html.text(listed(untuned))}. Another learning rate may change the order.</p>'
    return (html.table(heads, rows) if rows else "") + (note if untuned else "")


def check_table(data: Comparison) -> str:
    titles = {arm["name"]: arm["title"] or arm["name"] for arm in data.arms}
    rows = []
    for check in data.content["checks"]:
        planned, measured = check["planned_s"], check["measured_s"]
        error = "–"
        if planned and measured:
            error = f"{'+' if planned >= measured else '-'}{percent_text(abs(planned / measured - 1))}"
        rows.append(
            html.cell(html.text(titles.get(check["arm"], check["arm"]))) + html.cell(html.text(check["seed"]))
            + html.cell(html.text(link_name(check["link"])), "text") + _plain(planned, duration_text)
            + _plain(measured, duration_text) + html.cell(error)
            + _plain(check["planned_utilization"], percent_text)
            + _plain(check["measured_utilization"], percent_text)
            + html.cell("yes" if check["same_hash"] else "no", "" if check["same_hash"] else "best")
        )
    heads = ["arm", "seed", '<th class="text">link</th>', "planned", "measured", "error", "planned utilization",
             "measured utilization", "same bits"]
    return html.table(heads, rows) if rows else ""


def invalid_table(data: Comparison) -> str:
    rows = [html.cell(html.text(run["arm"])) + html.cell(html.text(run["seed"]))
            + html.cell(html.text(link_name(run["link"]) if run["link"] else "–"), "text")
            + html.cell(html.text(run["why_invalid"]), "text wrap") for run in data.runs if not run["valid"]]
    heads = ["arm", "seed", '<th class="text">link</th>', '<th class="text">reason</th>']
    return html.table(heads, rows) if rows else ""


def _seed_table(data: Comparison) -> str:
    rows = []
    for row in data.rows:
        for run in row.runs:
            rows.append(
                html.cell(html.text(row.label)) + html.cell(html.text(run["seed"]))
                + _plain(run["final_loss"], lambda v: f"{v:.4f}") + _plain(data.tokens_to_target(run), count_text)
                + _plain(data.bytes_to_target(run), bytes_text)
                + "".join(_plain(data.seconds_to_target(run, link), duration_text) for link in data.links)
                + _plain(traffic(run), bytes_text) + html.cell(html.text(run["theta_hash"] or "–"), "text")
            )
    heads = ["arm", "seed", "final loss", "tokens to target", "bytes to target",
             *(f"to target, {html.text(link_name(link))}" for link in data.links), "sent, both ways",
             '<th class="text">theta_hash</th>']
    return html.table(heads, rows)


def _own_settings(data: Comparison, arm: Any) -> str:
    """The resolved settings that differ from the baseline's."""
    base = next(other["resolved"] for other in data.arms if other["name"] == data.content["baseline"])
    if arm["name"] == data.content["baseline"]:
        return "the baseline"
    found = [f"{key} {arm['resolved'].get(key, '–')} (baseline {base.get(key, '–')})"
             for key in dict.fromkeys([*base, *arm["resolved"]]) if arm["resolved"].get(key) != base.get(key)]
    return ", ".join(found) or "as the baseline"


def arm_table(data: Comparison) -> str:
    rows = [html.cell(html.swatch(i) + html.text(_title(arm))) + html.cell(html.text(arm["method"]), "text")
            + html.cell(html.text(arm["workers"])) + html.cell(html.text(arm["note"] or ""), "text wrap")
            + html.cell(html.text(_own_settings(data, arm)), "text wrap")
            for i, arm in enumerate(data.arms)]
    return html.table(["arm", '<th class="text">method</th>', "workers", '<th class="text">note</th>',
                       '<th class="text">settings that differ from the baseline</th>'], rows)


def _baseline_settings(data: Comparison) -> str:
    base = next(arm["resolved"] for arm in data.arms if arm["name"] == data.content["baseline"])
    return html.code("\n".join(f"{key}: {value}" for key, value in base.items()))


# --- the page ---------------------------------------------------------------------------------------------------------

_RANKS = """<p class="note">Arms rank by the median over seeds, in which a miss is infinite: half of the seeds are there
by then. The answer also names the first arm that reaches the target with every seed. An arm with one seed has
no rank beside arms with more. Two arms are not separable if times of seeds that reach the target overlap.</p>"""


def _read(data: Comparison) -> str:
    base = data.baseline
    margin = f"{percent_text(data.margin)} of the baseline's loss"
    margin += f", ±{data.margin_of(base):.4f}" if base and base.losses else ""
    return f"""<p class="note">In brackets: the number of seeds; (2 of 3) says that two of three reach the target.
Final loss: mean ± standard deviation over seeds, of the merged model on the validation set. Difference: final loss of
the arm minus that of the baseline with the same seed, with the 95 % interval of a paired t test. Lower, higher: the
interval excludes 0. Tie: the 90 % interval lies inside the margin of {margin} (two one-sided tests at 5 %: Schuirmann,
1987). Not separable: neither holds with these seeds. To target: the first evaluation at or below the target, the median
over seeds; a miss is infinite (∞). Bytes: those of all workers. Times: of training, without evaluations.</p>"""


def _machine_text(machine: Any) -> str:
    gpus = machine.get("gpus", [])
    names = [f"{gpus.count(name)} {name}" for name in dict.fromkeys(gpus)]
    return ", ".join([*names, machine["cpu"], counted(machine["cores"], "core"), machine["system"]])


def _about(data: Comparison) -> str:
    c = data.content
    machines = c.get("machines") or [c["machine"]]  # one machine: before cells could be imported
    parts = [c["created"], f"atoll {c['atoll']}", f"commit {c['commit']}" if c["commit"] else "",
             listed([_machine_text(machine) for machine in machines])]
    return html.text(" · ".join(filter(None, map(str, parts))))


def charts(data: Comparison) -> list[tuple[Chart, str]]:
    """Charts and captions: tokens, bytes, time to target and utilization, then seconds on each link."""
    first = data.first_rows
    found = [_loss_chart(data, "tokens", "tokens", first), _loss_chart(data, "bytes", "bytes", first),
             (_panels(data, "target", "seconds", _seconds(data)), ""),
             (_panels(data, "utilization", "utilization", _utilization), "")]
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
    tokens, sent, to_target, utilization, *seconds = (html.figure(chart, html.text(note)) for chart, note in drawn)
    linked = [row.label for row in data.first_rows if row.link]
    note = f'<p class="note">Its loss depends on the link, so this chart shows: {html.text(", ".join(linked))}.</p>' \
        if linked else ""
    names = [link_name(link) for link in data.links]
    price = ""
    if data.price:
        hour, gigabyte = data.price["machine_hour"], data.price["gb"]
        price = (f'<p class="note">Prices: {hour:g} for an hour of a worker and {gigabyte:g} for '
                 f"a gigabyte, in {html.text(data.price['currency'])}.</p>")
    how = html.text(how_timed(data))
    timed = f'<p class="note">{html.text(timed_text(data))}</p>'
    return "".join([
        f"<h2>Time to the target on each link, {how}</h2>{timed}{to_target}",
        f'<h2>Loss against tokens</h2><p class="note">{_means(data)}</p>{tokens}{note}',
        f"<h2>Loss against time, {how}</h2>{html.tabs('seconds', names, seconds)}",
        f"<h2>Loss against bytes</h2>{sent}{note}",
        f'<h2>Utilization, {how}</h2><p class="note">The share of the time in which the workers compute.</p>',
        utilization,
        f"<h2>Loss and bytes of each arm</h2>{loss_table(data)}{_read(data)}",
        f"<h2>Time on each link, {how}</h2>{time_table(data)}{_RANKS}{price}",
    ])


def _evidence(data: Comparison) -> str:
    parts = []
    for title, found in (("Tuning", tuning_table(data)),
                         ("Steps behind the computed times", step_table(data)),
                         ("Planned times against times measured on the link", check_table(data)),
                         ("Invalid runs: no loss, and a diverged seed misses the target", invalid_table(data))):
        if found:
            parts.append(f"<h2>{title}</h2>{found}")
    rules = data.content.get("rules")
    if rules:
        parts.append(f'<p class="note">{html.text(rules)}</p>')
    commands = "\n".join(dict.fromkeys(str(run["command"]) for run in data.runs))
    return "".join(parts) + "<h2>Everything behind the numbers</h2>" + "".join([
        html.details("Each seed", _seed_table(data)),
        html.details("Arms: settings that differ from the baseline", arm_table(data)),
        html.details("All settings of the baseline", _baseline_settings(data)),
        html.details("Grid", html.code(data.content["grid"])), html.details("Commands", html.code(commands))])


def build(data: Comparison) -> tuple[str, list[Chart]]:
    """The page and its charts."""
    drawn = charts(data)
    told = "".join(f"<p>{html.text(text)}</p>" for text in [*answer(data), target_text(data), timed_text(data)])
    told += "".join(f'<p class="warn">Warning: {html.text(text)}</p>' for text in warnings(data))
    names = html.legend([str(arm["title"] or arm["name"]) for arm in data.arms])
    content = f'<div class="answer">{told}</div>{names}{_sections(data, drawn)}{_evidence(data)}'
    return html.page(str(data.content["title"]), _about(data), content), [chart for chart, _ in drawn]
