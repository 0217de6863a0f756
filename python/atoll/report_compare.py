"""The page, the table and the charts of a comparison."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from . import report_html as html
from .report_answer import answer, target_text
from .report_data import Comparison, Row, curve, known, link_name, median, time_on, traffic
from .report_plot import Chart, bytes_text, count_text, loss_chart, outside, panels, time_text

COLUMNS = (
    "arm", "title", "method", "workers", "seed", "link", "valid", "why_invalid", "final_loss", "tokens", "bytes_up",
    "bytes_down", "source", "seconds", "utilization", "round_s", "tokens_to_target", "bytes_to_target",
    "seconds_to_target", "cost", "cost_to_target", "theta_hash",
)


def csv_rows(data: Comparison) -> list[list[Any]]:
    """A line for each run and link, and for each invalid run. Infinite is `inf`, unknown is empty."""
    arms = {arm["name"]: arm for arm in data.arms}
    rows: list[list[Any]] = [list(COLUMNS)]
    for run in data.runs:
        arm = arms[run["arm"]]
        for time in run["times"] or [{"link": run["link"]}]:
            values = {**arm, **run, **time, "arm": run["arm"]}
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
    never = [row.index for row in rows if row.runs and median(map(data.tokens_to_target, row.runs)) == math.inf]
    above = outside(curves, data.target)
    caption = f"Above the chart: {', '.join(above)}." if above else ""
    return loss_chart(name, curves, axis, data.target, never), caption


def _panels(data: Comparison, name: str, axis: str, value: Callable[[Any, str], float | None]) -> Chart:
    """A panel for each link, a row for each arm."""
    found = [[median(value(run, link) for row in data.rows_on(link) if row.index == i for run in row.runs)
              for i in range(len(data.arms))] for link in data.links]
    titles = [str(arm["title"] or arm["name"]) for arm in data.arms]
    return panels(name, [link_name(link) for link in data.links], titles, found, range(len(titles)), axis)


def _utilization(run: Any, link: str) -> float | None:
    time = time_on(run, link)
    return time["utilization"] if time else None


# --- tables -----------------------------------------------------------------------------------------------------------


def _show(value: float | None, text: Callable[[float], str]) -> str:
    if value is None:
        return html.cell("–", "miss")
    return html.cell("∞", "miss") if math.isinf(value) else html.cell(html.text(text(value)))


def _best(value: float | None, others: list[float | None], text: Callable[[float], str], first: str = "") -> str:
    shown = "–" if value is None else "∞" if math.isinf(value) else html.text(text(value))
    best = known(value) and value == min(other for other in others if known(other))
    kind = " ".join(filter(None, (first, "best" if best else "" if known(value) else "miss")))
    return html.cell(shown, kind)


def _difference(data: Comparison, row: Row) -> str:
    if data.baseline is not None and row.arm is data.baseline.arm:
        return html.cell("baseline", "miss") * 3
    found = data.difference(row)
    if found is None:
        return html.cell("–", "miss") * 3
    if found.half is None:
        return html.cell(f"{found.mean:+.4f}") + html.cell("one seed", "miss") + html.cell("–", "miss")
    interval = f"{found.mean - found.half:+.4f} … {found.mean + found.half:+.4f}"
    tag = html.cell(f'<span class="tag">{found.verdict}</span>')
    return html.cell(f"{found.mean:+.4f}") + html.cell(interval) + tag


def _deviation(row: Row) -> str:
    values = list(row.losses.values())
    if len(values) < 2:
        return ""
    mean = sum(values) / len(values)
    return f" ± {math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)):.4f}"


def loss_table(data: Comparison) -> str:
    heads = ["arm", "seeds", "final loss", "difference", "95 % interval", "is", "tokens to target", "bytes to target",
             "sent up", "sent down"]
    rows = []
    if data.content["untrained_loss"] is not None:
        rows.append(html.cell("untrained model") + html.cell("") + html.cell(f"{data.content['untrained_loss']:.4f}")
                    + html.cell("") * 7)
    for row in data.rows:
        loss = row.mean("final_loss")
        shown = "no valid run" if loss is None else f"{loss:.4f}{_deviation(row)}"
        rows.append(
            html.cell(html.swatch(row.index) + html.text(row.label))
            + html.cell(str(len(row.runs))) + html.cell(shown) + _difference(data, row)
            + _show(median(map(data.tokens_to_target, row.runs)), count_text)
            + _show(median(map(data.bytes_to_target, row.runs)), bytes_text)
            + _show(row.mean("bytes_up"), bytes_text) + _show(row.mean("bytes_down"), bytes_text)
        )
    return html.table(heads, rows)


def money(data: Comparison) -> Callable[[float], str]:
    currency = str(data.price["currency"]) if data.price else ""
    return lambda value: f"{value:.2f} {currency}" if value >= 0.1 else f"{value:.2g} {currency}"


def time_table(data: Comparison) -> str:
    """For each link: seconds to the target, seconds of the whole run, utilization, money."""
    kinds: list[tuple[str, Callable[[Any, str], float | None], Callable[[float], str]]] = [
        ("to target", data.seconds_to_target, time_text),
        ("whole run", lambda run, link: (time_on(run, link) or {}).get("seconds"), time_text),
        ("utilization", _utilization, lambda value: f"{100 * value:.1f} %"),
    ]
    if data.price:
        kinds += [("money to target", data.cost_to_target, money(data)), ("money in all", data.cost, money(data))]
    group = "".join(f'<th class="first" colspan="{len(kinds)}">{html.text(link_name(link))}</th>'
                    for link in data.links)
    heads = ["arm"] + [f'<th class="first">{name}</th>' if name == "to target" else name
                       for _ in data.links for name, _, _ in kinds]
    values = {(i, link, name): median(of(run, link) for row in data.rows_on(link) if row.index == i for run in row.runs)
              for i in range(len(data.arms)) for link in data.links for name, of, _ in kinds}
    rows = []
    for i, arm in enumerate(data.arms):
        cells = html.cell(html.swatch(i) + html.text(arm["title"] or arm["name"]))
        for link in data.links:
            for name, _, shown in kinds:
                others = [values[j, link, name] for j in range(len(data.arms))] if name.endswith("to target") else []
                value = values[i, link, name]
                first = "first" if name == "to target" else ""
                cells += _best(value, others, shown, first) if others else _show(value, shown)
        rows.append(cells)
    return html.table(heads, rows, f'<tr class="group"><th></th>{group}</tr>')


def _value(value: Any) -> str:
    """A tuned setting, which may be a text."""
    return "–" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


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
        edge = "at the edge of the list: a value beyond it may be better" if tuned["edge"] else "inside the list"
        rows.append(html.cell(html.text(arm["title"] or arm["name"])) + html.cell(html.text(tuned["key"]), "text")
                    + html.cell(html.text(trials), "text") + html.cell(html.text(_value(tuned["best"])), "best")
                    + html.cell(edge, "text"))
    heads = ["arm", '<th class="text">key</th>', '<th class="text">value: final loss of each seed</th>', "best",
             '<th class="text">the best value lies</th>']
    return html.table(heads, rows) if rows else ""


def check_table(data: Comparison) -> str:
    titles = {arm["name"]: arm["title"] or arm["name"] for arm in data.arms}
    rows = []
    for check in data.content["checks"]:
        planned, measured = check["planned_s"], check["measured_s"]
        error = f"{100 * (planned / measured - 1):+.1f} %" if planned and measured else "–"
        rows.append(
            html.cell(html.text(titles.get(check["arm"], check["arm"]))) + html.cell(html.text(check["seed"]))
            + html.cell(html.text(link_name(check["link"])), "text") + _show(planned, time_text)
            + _show(measured, time_text) + html.cell(error)
            + _show(check["planned_utilization"], lambda v: f"{100 * v:.1f} %")
            + _show(check["measured_utilization"], lambda v: f"{100 * v:.1f} %")
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
                + _show(run["final_loss"], lambda v: f"{v:.4f}") + _show(data.tokens_to_target(run), count_text)
                + _show(data.bytes_to_target(run), bytes_text)
                + "".join(_show(data.seconds_to_target(run, link), time_text) for link in data.links)
                + _show(traffic(run), bytes_text) + html.cell(html.text(run["theta_hash"] or "–"), "text")
            )
    heads = ["arm", "seed", "final loss", "tokens to target", "bytes to target",
             *(f"to target, {html.text(link_name(link))}" for link in data.links), "sent, both ways",
             '<th class="text">theta_hash</th>']
    return html.table(heads, rows)


def _arm_table(data: Comparison) -> str:
    rows = [html.cell(html.swatch(i) + html.text(arm["title"] or arm["name"]))
            + html.cell(html.text(arm["method"]), "text")
            + html.cell(html.text(arm["workers"])) + html.cell(html.text(arm["note"] or ""), "text wrap")
            + html.cell(html.text(", ".join(f"{k}={v}" for k, v in arm["settings"].items())), "text wrap")
            for i, arm in enumerate(data.arms)]
    return html.table(["arm", '<th class="text">method</th>', "workers", '<th class="text">note</th>',
                       '<th class="text">settings</th>'], rows)


# --- the page ---------------------------------------------------------------------------------------------------------

_READ = """<p class="note">Final loss: mean ± standard deviation over seeds, of the merged model on the validation set.
Difference: final loss of the arm minus that of the baseline with the same seed, with the 95 % interval of a paired
t test. A tie: the interval contains 0. To target: the first evaluation at or below the target, the median over seeds; a
miss is infinite (∞). Bytes: those of all workers. Times are those of training, without evaluations.</p>"""


def _about(data: Comparison) -> str:
    c, machine = data.content, data.content["machine"]
    parts = [c["created"], f"atoll {c['atoll']}", f"commit {c['commit']}" if c["commit"] else "",
             f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"]
    return html.text(" · ".join(filter(None, map(str, parts))))


def charts(data: Comparison) -> list[tuple[Chart, str]]:
    """Charts and captions: tokens, bytes, time to target and utilization, then seconds on each link."""
    first = data.first_rows
    found = [_loss_chart(data, "tokens", "tokens", first), _loss_chart(data, "bytes", "bytes", first),
             (_panels(data, "target", "seconds", data.seconds_to_target), ""),
             (_panels(data, "utilization", "utilization", _utilization), "")]
    return found + [_loss_chart(data, f"seconds-{i + 1}-{_slug(link)}", "seconds", data.rows_on(link), link)
                    for i, link in enumerate(data.links)]


def _sections(data: Comparison, drawn: list[tuple[Chart, str]]) -> str:
    tokens, sent, to_target, utilization, *seconds = (html.figure(chart, html.text(note)) for chart, note in drawn)
    linked = [row.label for row in data.first_rows if row.link]
    note = f'<p class="note">Its loss depends on the link, so this chart shows: {html.text(", ".join(linked))}.</p>' \
        if linked else ""
    band = '<p class="note">Lines are means over seeds, bands reach from the lowest to the highest seed.</p>'
    names = [link_name(link) for link in data.links]
    price = ""
    if data.price:
        hour, gigabyte = data.price["machine_hour"], data.price["gb"]
        price = (f'<p class="note">Prices: {hour:g} for an hour of a worker and {gigabyte:g} for '
                 f"a gigabyte, in {html.text(data.price['currency'])}.</p>")
    return "".join([
        f"<h2>Time to the target on each link</h2>{to_target}",
        f"<h2>Loss against tokens</h2>{band}{tokens}{note}",
        f"<h2>Loss against time</h2>{html.tabs('seconds', names, seconds)}",
        f"<h2>Loss against bytes</h2>{sent}{note}",
        f"<h2>Utilization: share of the time in which workers compute</h2>{utilization}",
        f"<h2>Loss and bytes of each arm</h2>{loss_table(data)}{_READ}",
        f"<h2>Time on each link</h2>{time_table(data)}{price}",
    ])


def _evidence(data: Comparison) -> str:
    parts = []
    for title, found in (("Tuning: each arm had the same trials", tuning_table(data)),
                         ("Planned times against times measured on the link", check_table(data)),
                         ("Invalid runs, which count nowhere", invalid_table(data))):
        if found:
            parts.append(f"<h2>{title}</h2>{found}")
    rules = data.content.get("rules")
    if rules:
        parts.append(f'<p class="note">{html.text(rules)}</p>')
    commands = "\n".join(dict.fromkeys(str(run["command"]) for run in data.runs))
    return "".join(parts) + "<h2>Everything behind the numbers</h2>" + "".join([
        html.details("Each seed", _seed_table(data)), html.details("Arms and settings", _arm_table(data)),
        html.details("Grid", html.code(data.content["grid"])), html.details("Commands", html.code(commands))])


def build(data: Comparison) -> tuple[str, list[Chart]]:
    """The page and its charts."""
    drawn = charts(data)
    told = "".join(f"<p>{html.text(sentence)}</p>" for sentence in [*answer(data), target_text(data)])
    names = html.legend([str(arm["title"] or arm["name"]) for arm in data.arms])
    content = f'<div class="answer">{told}</div>{names}{_sections(data, drawn)}{_evidence(data)}'
    return html.page(str(data.content["title"]), _about(data), content), [chart for chart, _ in drawn]
