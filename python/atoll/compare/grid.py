"""The grid of atoll compare: reads GRID.yaml, checks it, and expands it into arms.

- An arm is one method with its settings. An axis of an arm (H, codec, workers) makes one arm for each value.
- Settings of a stronger place win: the base file, then `settings` of the grid, then those of the arm, then its axes.
- `atoll config print` checks every setting and gives the resolved values.
"""

from __future__ import annotations

import difflib
import glob
import itertools
import math
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..command import Problem, need, wrong

TOKENS_APART = 0.005  # arms whose tokens differ by more are not comparable
MARGIN = 0.005  # of the baseline's loss: differences inside it are a tie
GRID_KEYS = ("title", "base", "settings", "workers", "seeds", "links", "tune", "baseline", "target", "margin", "price",
             "step_seconds", "machine", "verify", "arms")
ARM_KEYS = ("title", "note", "base", "settings", "workers", "links", "tune", "tokens", "one_process", "H", "codec")
# Settings that the tool sets itself.
OWN_SETTINGS = {
    "run.seed": "the grid's seeds set it",
    "coordinator.listen": "each run takes a free port",
    "coordinator.min_workers": "workers sets it",
    "checkpoint.every": "the tool deletes the checkpoints of a finished run",
    "checkpoint.keep": "the tool deletes the checkpoints of a finished run",
    "model.init_from": "it would be the model of every seed",
}
_RATE = r"\d+(\.\d+)?(kbit|mbit|gbit)"
_TIME = r"\d+(\.\d+)?(ms|s)"
_LINK_WORD = re.compile(rf"none|{_RATE}|(up|down)={_RATE}|(rtt|jitter)={_TIME}|outage={_TIME}\+{_TIME}")

Resolve = Callable[["Arm"], dict[str, str]]


@dataclass(frozen=True)
class Tuning:
    """The trials of one setting: each value trains once with each seed, and the lowest mean final loss wins
    (store.settle)."""

    key: str
    values: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, str] = field(default_factory=dict)  # of the trials alone


# What one worker needs to take the steps of a ddp run: the mean of one delta is the delta, and fp32 is exact.
_ONE_PROCESS = {
    "train.method": "local-sgd", "outer.optimizer": "sgd", "outer.learning_rate": "1",
    "outer.momentum": "0", "merge.rule": "mean", "codec.up": "fp32", "codec.down": "fp32",
}
_ROUND_STEPS = 100  # of such a worker that never evaluates


@dataclass(frozen=True)
class Arm:
    """One method of the comparison."""

    name: str
    title: str
    note: str
    base: str  # a configuration file
    config: Any  # its content
    settings: dict[str, str]
    workers: int
    is_local: bool  # one machine: no link takes part
    own_tokens: bool  # `tokens: own`: it may train on another number of tokens
    one_process: bool  # ddp only: one worker takes the batch of all
    whole_machine: bool  # `machine: whole` of the grid
    tune: Tuning | None
    resolved: dict[str, str] = field(default_factory=dict)  # all settings, by their names
    origin: dict[str, Any] = field(default_factory=dict)  # version and data of its runs (data.identify)

    @property
    def method(self) -> str:
        return self.resolved["train.method"]

    def number(self, key: str) -> int:
        return int(self.resolved[key])

    @property
    def eval_every(self) -> tuple[int, bool]:
        """train.eval_every, and whether it counts steps, not rounds."""
        every, _, unit = self.resolved["train.eval_every"].partition(" ")
        return int(every), bool(unit)

    @property
    def step_tokens(self) -> int:
        """Tokens of one inner step of one worker."""
        return self.number("train.batch_size") * self.number("train.grad_accum") * self.number("model.block_size")

    @property
    def tokens(self) -> int:
        return self.number("train.max_steps") * self.step_tokens * self.workers

    @property
    def needs_link(self) -> bool:
        """Each link needs a run of its own, because the trajectory depends on the times of arrival. Workers that share
        a machine do not have the times of whole machines."""
        return self.is_timed and not self.whole_machine

    @property
    def is_timed(self) -> bool:
        """The trajectory depends on the times of arrival."""
        timed = self.method == "async" or self.resolved["train.dynamic_steps"] in ("on", "true")
        return not self.is_local and (timed or self.resolved["coordinator.quorum"] != "all")

    @property
    def model(self) -> dict[str, str]:
        return {key: value for key, value in self.resolved.items() if key.startswith("model.")}

    def with_settings(self, more: Mapping[str, str]) -> Arm:
        return replace(self, settings={**self.settings, **more}, resolved={**self.resolved, **more})

    def tuned(self, value: str) -> Arm:
        """The arm with a value of its tuned setting."""
        assert self.tune
        return self.with_settings({self.tune.key: value})

    def as_run(self) -> Arm:
        """The arm as its runs train it. `one_process` makes one worker of all: their samples, and the mean gradient up
        to rounding."""
        if not self.one_process:
            return self
        every, _ = self.eval_every  # a round of ddp is a step
        steps = every or min(_ROUND_STEPS, self.number("train.max_steps"))
        accumulated = str(self.workers * self.number("train.grad_accum"))
        return replace(self.with_settings({**_ONE_PROCESS, "train.sync_every": str(steps),
                                           "train.grad_accum": accumulated, "train.eval_every": f"{every} steps"}),
                       workers=1)


@dataclass(frozen=True)
class Check:
    """A cell under `verify`: the arm runs on the link, and its time is compared with the planned one."""

    arm: str
    link: str
    seed: int


@dataclass(frozen=True)
class Grid:
    path: str
    text: str
    title: str
    seeds: tuple[int, ...]
    links: tuple[str, ...]
    baseline: str
    target: dict[str, Any]  # {"loss": x}, or {"arm": name, "factor": x}
    margin: float  # part of the baseline's loss
    price: dict[str, Any] | None
    step_seconds: float | None  # of a step of the baseline; None: measured
    whole_machine: bool  # `machine: whole`: the times are those of workers that have a machine like this one each
    checks: tuple[Check, ...]
    arms: tuple[Arm, ...]

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)


# --- reading ----------------------------------------------------------------------------------------------------------


def text_of(value: object, where: str) -> str:
    """A setting's value as the command line has it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, float)) or (isinstance(value, str) and value):
        return str(value)
    raise wrong(f"{where}: needs a number or a text")


def flatten(value: object, where: str) -> dict[str, str]:
    """{"train": {"max_steps": 9}} and {"train.max_steps": 9} are the same settings."""
    flat: dict[str, str] = {}
    for key, inner in _mapping(value, where).items():
        if isinstance(inner, dict):
            more = {f"{key}.{name}": text_of(v, f"{where}.{key}.{name}") for name, v in inner.items()}
        else:
            more = {str(key): text_of(inner, f"{where}.{key}")}
        for name in more:
            if name in flat:
                raise wrong(f"{where}: {name} appears twice: remove one")
            if name in OWN_SETTINGS:
                raise wrong(f"{where}: remove {name}: {OWN_SETTINGS[name]}")
        flat.update(more)
    return flat


def _mapping(value: object, where: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(f"{where}: needs KEY: VALUE pairs")
    return value


def _keys(value: object, where: str, allowed: Sequence[str]) -> Mapping[Any, Any]:
    pairs = _mapping(value, where)
    for key in pairs:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, 1)
            raise wrong(f"{where}: unknown key {key}: " +
                        (f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}"))
    return pairs


def _whole(value: object, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(f"{where}: needs a whole number from {least}, not {value}")
    return value


def _real(value: object, where: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not (0 <= number < math.inf):
        raise wrong(f"{where}: needs a number from 0, not {value}")
    return number


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise wrong(f"{where}: needs a list, as [1, 2]")
    return value


def _distinct(values: Sequence[Any], where: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise wrong(f"{where}: {value} appears twice: remove one")


def link_of(value: object, where: str) -> str:
    """Checks a link: words separated by commas; one link for each worker is a list separated by semicolons."""
    for link in str(value).split(";"):
        for word in link.strip().split(","):
            if not _LINK_WORD.fullmatch(word.strip()):
                raise wrong(f"{where}: '{word.strip()}' is no word of a link: write none, or for example "
                            '"100mbit,rtt=50ms"; others are up=, down=, jitter= and outage=60s+10s')
    return str(value).replace(" ", "")


def _load(path: str) -> tuple[Any, str]:
    try:
        import yaml
    except ImportError:
        raise need("yaml", "atoll compare") from None

    class Loader(yaml.SafeLoader):
        """Refuses a key that appears twice; PyYAML takes the last one."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [key.value for key, _ in node.value]
            for i, (key, _) in enumerate(node.value):
                if key.value in names[:i]:
                    raise wrong(f"{path}:{key.start_mark.line + 1}: the key {key.value} appears twice: remove one")
            return super().construct_mapping(node, deep)

    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        return yaml.load(text, Loader), text
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise wrong(f"{path}{line}: no YAML: {getattr(error, 'problem', None) or 'cannot read it'}") from None


def load_config(path: str) -> Any:
    """The content of a configuration file, without comments. All values stay texts."""
    import yaml

    with open(path, encoding="utf-8") as file:
        try:
            return yaml.load(file, yaml.BaseLoader)
        except yaml.YAMLError:
            raise wrong(f"{path}: no YAML: atoll config print {path} says where") from None


# --- arms -------------------------------------------------------------------------------------------------------------


def _tuning(value: object, where: str, grid: Tuning | None) -> Tuning | None:
    if value is False:
        return None
    pairs = _keys(value, where, ("key", "values", "seeds", "settings"))
    key = str(pairs.get("key", grid.key if grid else "inner.learning_rate"))
    if "values" in pairs:
        values = tuple(text_of(v, f"{where}.values") for v in _list(pairs["values"], f"{where}.values"))
        for number in values:
            _real(number, f"{where}.values")
    elif grid:
        values = grid.values
    else:
        raise wrong(f"{where}: values are missing: write for example values: [1.5e-3, 3.0e-3]")
    _distinct(values, f"{where}.values")
    if key in OWN_SETTINGS:
        raise wrong(f"{where}.key: {key} cannot be tuned: {OWN_SETTINGS[key]}")
    seeds = pairs.get("seeds", list(grid.seeds) if grid else [101])
    seeds = tuple(_whole(seed, f"{where}.seeds", 0) for seed in _list(seeds, f"{where}.seeds"))
    _distinct(seeds, f"{where}.seeds")
    settings = flatten(pairs["settings"], f"{where}.settings") if "settings" in pairs else grid.settings if grid else {}
    if key in settings:
        raise wrong(f"{where}.settings: remove {key}: the trials set it")
    return Tuning(key, values, seeds, settings)


def slug(value: str) -> str:
    """A part of a name: letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", value).strip("-")


def _codecs(value: str) -> dict[str, str]:
    """"UP DOWN", or one codec for both directions."""
    up, *down = value.split()
    if len(down) > 1:
        raise wrong(f"codec: '{value}' has more than two codecs: write \"UP DOWN\"")
    return {"codec.up": up, "codec.down": down[0] if down else up}


def _axis(arm: Mapping[Any, Any], name: str, where: str) -> list[tuple[str, str]]:
    """(value, suffix of the name); [("", "")] if the arm does not have the axis."""
    if name not in arm:
        return [("", "")]
    value = arm[name]
    if not isinstance(value, list):
        return [(text_of(value, f"{where}.{name}"), "")]
    values = [text_of(v, f"{where}.{name}") for v in _list(value, f"{where}.{name}")]
    _distinct(values, f"{where}.{name}")
    letter = {"H": "h", "codec": "", "workers": "w"}[name]
    return [(v, f"-{letter}{slug(v)}") for v in values]


def _expand(name: str, value: object, where: str, top: Mapping[Any, Any], tune: Tuning | None) -> list[Arm]:
    """The arms that one entry under `arms` makes."""
    pairs = _keys(value, where, ARM_KEYS)
    if not re.fullmatch("[a-z0-9][a-z0-9.-]*", name):
        raise wrong(f"{where}: an arm's name has small letters, digits, '.' and '-'")
    if pairs.get("links", "none") != "none":
        raise wrong(f"{where}.links: only none is allowed: the arm runs on one machine")
    if pairs.get("tokens", "own") != "own":
        raise wrong(f"{where}.tokens: only own is allowed: the arm may train on another number of tokens")
    if pairs.get("one_process", True) is not True:
        raise wrong(f"{where}.one_process: only on is allowed: one worker takes the batch of all")
    settings = {**flatten(top.get("settings"), "settings"), **flatten(pairs.get("settings"), f"{where}.settings")}
    base = pairs.get("base", top.get("base", os.devnull))
    if isinstance(base, dict):
        settings, base = {**flatten(base, "base"), **settings}, os.devnull
    base = str(base)
    if not os.path.exists(base):
        raise wrong(f"{where}: there is no base file {base}: paths begin at the current folder")
    arms = []
    axes = (_axis(pairs, "H", where), _axis(pairs, "codec", where), _axis(pairs, "workers", where))
    for (h, h_name), (codec, codec_name), (workers, workers_name) in itertools.product(*axes):
        own = {**settings, **({"train.sync_every": h} if h else {}), **(_codecs(codec) if codec else {})}
        more = [f"H {h}" if h_name else "", codec if codec_name else "", f"{workers} workers" if workers_name else ""]
        n = int(workers) if workers.isdecimal() else workers or top.get("workers", 2)
        arms.append(Arm(name=name + h_name + codec_name + workers_name,
                        title=", ".join([str(pairs.get("title", name)), *filter(None, more)]),
                        note=str(pairs.get("note", "")),
                        base=base,
                        config=load_config(base),
                        settings=own,
                        workers=_whole(n, f"{where}.workers", 1),
                        is_local="links" in pairs,
                        own_tokens="tokens" in pairs,
                        one_process="one_process" in pairs,
                        whole_machine=top.get("machine") == "whole",
                        tune=_tuning(pairs["tune"], f"{where}.tune", tune) if "tune" in pairs else tune))
    return arms


def ask_config(program: str) -> Resolve:
    """A function that lets `atoll config print` check the settings of an arm and resolve them."""

    def resolve(arm: Arm) -> dict[str, str]:
        if arm.tune and arm.tune.settings:
            ask(replace(arm, settings={**arm.settings, **arm.tune.settings}))
        return ask(arm)

    def ask(arm: Arm) -> dict[str, str]:
        values = {arm.tune.key: arm.tune.values[0]} if arm.tune else {}
        flags = [f"--{key}={value}" for key, value in {**arm.settings, **values}.items()]
        words = [program, "config", "print", arm.base, *flags]
        got = subprocess.run(words, capture_output=True, text=True, check=False)
        if got.returncode:
            line = (got.stderr.strip().splitlines() or ["atoll config failed"])[-1]
            raise wrong(f"arm {arm.name}: {re.sub('^atoll: (command line: )?', '', line)}")
        import yaml

        sections = yaml.load(got.stdout, yaml.BaseLoader)  # all values stay texts
        return {f"{name}.{key}": value for name, keys in sections.items() for key, value in keys.items()}

    return resolve


# --- checks across arms -----------------------------------------------------------------------------------------------


def _check_data(arm: Arm) -> None:
    for key in ("data.train", "data.val"):
        if not glob.glob(arm.resolved[key]):
            raise wrong(f"arm {arm.name}: {key}: no file matches '{arm.resolved[key]}': make the token shards with "
                        "atoll prepare DIR FILE...")


def _check_one_process(arm: Arm) -> None:
    """The one worker of a ddp arm computes what all would: their gradients must arrive as they are."""
    if arm.one_process and arm.is_local:
        raise wrong(f"arm {arm.name}: one_process is for workers behind links: remove it, or links: none")
    lossy = [key for key in ("codec.up", "codec.down") if arm.resolved[key] != "fp32"]
    if arm.one_process and (arm.method != "ddp" or lossy):
        raise wrong(f"arm {arm.name}: one_process needs train.method ddp and codec fp32, not " +
                    (arm.method if arm.method != "ddp" else f"{lossy[0]} {arm.resolved[lossy[0]]}"))


def _check_fair(grid: Grid) -> None:
    """Equal tokens, equal numbers of trials, seeds of trials that judge nothing, and links for all workers."""
    baseline = grid.arm(grid.baseline)
    for arm in grid.arms:
        if not arm.own_tokens and abs(arm.tokens - baseline.tokens) > TOKENS_APART * baseline.tokens:
            raise wrong(f"arm {arm.name} trains on {arm.tokens} tokens, {baseline.name} on {baseline.tokens}: set its "
                        "train.max_steps so that they agree, or write tokens: own")
    for link in grid.links:
        wrong_arms = [arm for arm in grid.arms if not arm.is_local and link.count(";") + 1 not in (1, arm.workers)]
        if wrong_arms:
            raise wrong(f"links: '{link}' has {link.count(';') + 1} links, arm {wrong_arms[0].name} has "
                        f"{wrong_arms[0].workers} workers: give one link, or one for each worker")
    for arm in grid.arms:
        for seed in arm.tune.seeds if arm.tune else ():
            if seed in grid.seeds:
                raise wrong(f"arm {arm.name}: tune.seeds has {seed}, a seed of the grid: give seeds that are not in "
                            f"{list(grid.seeds)}, so that no seed both chooses a value and judges it")
    tuned = [(arm.name, len(arm.tune.values) * len(arm.tune.seeds)) for arm in grid.arms if arm.tune]
    for name, n in tuned:
        if n != tuned[0][1]:
            raise wrong(f"arm {name} is tuned with {n} trials, {tuned[0][0]} with {tuned[0][1]}: give both as many, or "
                        "tune: false")


def _checks(value: object, grid: Grid) -> tuple[Check, ...]:
    checks = []
    for i, item in enumerate(_list(value, "verify") if value else []):
        where = f"verify[{i}]"
        pairs = _keys(item, where, ("arm", "link", "seed"))
        names = [arm.name for arm in grid.arms if not arm.is_timed and not arm.is_local and not arm.one_process]
        name, link = str(pairs.get("arm")), link_of(pairs.get("link", ""), f"{where}.link")
        seed = _whole(pairs.get("seed", grid.seeds[0]), f"{where}.seed", 0)
        if name not in names:
            raise wrong(f"{where}: {name} is no arm whose time is planned: those are {', '.join(names)}")
        if link not in grid.links or seed not in grid.seeds:
            raise wrong(f"{where}: its link and its seed must be among the grid's links and seeds")
        checks.append(Check(name, link, seed))
    return tuple(checks)


def _target(value: object, names: Sequence[str], baseline: str) -> dict[str, Any]:
    pairs = _keys(value, "target", ("arm", "factor", "loss"))
    if "loss" in pairs and len(pairs) == 1:
        return {"loss": _real(pairs["loss"], "target.loss")}
    if "loss" in pairs:
        raise wrong("target: give loss alone, or arm and factor")
    arm = str(pairs.get("arm", baseline))
    if arm not in names:
        raise wrong(f"target.arm: there is no arm {arm}: the arms are {', '.join(names)}")
    return {"arm": arm, "factor": _real(pairs.get("factor", 1.01), "target.factor")}


def _margin(value: object) -> float:
    margin = _real(value, "margin")
    if margin >= 1:
        raise wrong(f"margin: needs a fraction of the baseline's loss, as {MARGIN:g} for 0.5 %, not {value}")
    return margin


def _price(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    pairs = _keys(value, "price", ("machine_hour", "gb", "currency"))
    return {"machine_hour": _real(pairs.get("machine_hour", 0), "price.machine_hour"),
            "gb": _real(pairs.get("gb", 0), "price.gb"), "currency": str(pairs.get("currency", "USD"))}


def read_grid(path: str, resolve: Resolve) -> Grid:
    """Reads and checks a grid. Raises Problem with one line."""
    value, text = _load(path)
    try:
        return _grid_of(value, path, text, resolve)
    except Problem as problem:
        place = "" if str(problem).startswith(path) else f"{path}: "
        raise Problem(place + str(problem), problem.code) from None


def _grid_of(value: object, path: str, text: str, resolve: Resolve) -> Grid:
    top = _keys(value, "the grid", GRID_KEYS)
    tune = _tuning(top["tune"], "tune", None) if "tune" in top else None
    arms: list[Arm] = []
    for name, arm in _mapping(top.get("arms"), "arms").items():
        arms += _expand(str(name), arm, f"arms.{name}", top, tune)
    if not arms:
        raise wrong("arms: give at least one arm")
    names = [arm.name for arm in arms]
    _distinct(names, "arms")
    seeds = tuple(_whole(s, "seeds", 0) for s in _list(top.get("seeds", [1, 2, 3]), "seeds"))
    links = tuple(link_of(link, "links") for link in _list(top.get("links", ["none"]), "links"))
    _distinct(seeds, "seeds")
    _distinct(links, "links")
    baseline = str(top.get("baseline", names[0]))
    if baseline not in names:
        raise wrong(f"baseline: there is no arm {baseline}: the arms are {', '.join(names)}")
    step = top.get("step_seconds", "auto")
    arms = [replace(arm, resolved=resolve(arm)) for arm in arms]
    for arm in arms:
        if arm.resolved["model.family"] == "external":
            raise wrong(f"arm {arm.name}: atoll launch has no workers for model.family external: use gpt2 or llama")
        _check_data(arm)
        _check_one_process(arm)
    machine = top.get("machine", "shared")
    if machine not in ("shared", "whole"):
        raise wrong(f"machine: {machine} is neither shared nor whole: write whole if each worker has a machine like "
                    "this one for itself in the times")
    if machine == "whole" and "verify" in top:
        raise wrong("verify: remove it, or machine: whole: the workers of a run share this machine, so no such time "
                    "can be verified")
    grid = Grid(path, text, str(top.get("title", os.path.basename(path))), seeds, links, baseline,
                _target(top.get("target"), names, baseline), _margin(top.get("margin", MARGIN)),
                _price(top.get("price")), None if step == "auto" else _real(step, "step_seconds"), machine == "whole",
                (), tuple(arms))
    _check_fair(grid)
    return replace(grid, checks=_checks(top.get("verify"), grid))
