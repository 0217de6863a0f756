"""The grid of the experiment of record: its sizes, arms and rates, the seconds of each arm, and how many tokens fit.

One worker of four shares the GPU with the others, so that an arm takes the time of all its tokens on one GPU."""

import json
import os
from dataclasses import dataclass

SHARE = {"124m": 0.9} # of the FLOP/s that history/gpu-h100.json has for 124M; narrow matrices reach less: not measured
NARROW_SHARE = 0.6
LOOPBACK = 1e9 # bytes/s of all deltas and updates on one machine, with merging: not measured, meant to be low
START_S = 10 # of a run: four processes open the GPU
CALL_START_S = 20 # of a call: tokens are unpacked, and results written
WORKERS = 4
TOKENS_PER_PARAMETER = 20 # Hoffmann et al., arXiv 2203.15556
VOCABULARY = 8192
# lowest learning rates of the trials: 1/2, 1 and 2 times the middle one. batch: sequences of one worker's step.
SIZES = {
    "tiny": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32, "batch": 2, "warmup": 10, "trial_steps": 30,
             "rates": ["4.0e-3", "8.0e-3"], "gpu": False, "multiple": 60}, # for the test
    "1m": {"n_layer": 5, "n_head": 5, "n_embd": 80, "block_size": 128, "batch": 1, "warmup": 30, "trial_steps": 100,
           "rates": ["2.0e-3", "4.0e-3", "8.0e-3"], "gpu": False},
    "30m": {"n_layer": 8, "n_head": 8, "n_embd": 512, "block_size": 512, "batch": 64, "warmup": 200,
            "trial_steps": 400, "rates": ["1.0e-3", "2.0e-3", "4.0e-3"], "gpu": True},
    "124m": {"n_layer": 12, "n_head": 14, "n_embd": 896, "block_size": 1024, "batch": 32, "warmup": 100,
             "trial_steps": 0, "rates": [], "gpu": True},
}
# In the order in which they train. bits: of a parameter up and down.
ARMS = {
    "ddp": {"title": "DDP", "base": "ddp", "more": "one_process: on", "bits": 0},
    "diloco-h30": {"title": "DiLoCo, H 30, int8", "base": "diloco", "bits": 16.3, "every": 30},
    "async": {"title": "async, H 30, int8", "base": "async", "bits": 16.3, "every": 30},
    "sparse": {"title": "SparseLoCo, H 30", "base": "sparse", "bits": 1, "every": 30},
    "streaming": {"title": "Streaming DiLoCo, H 30, int8", "base": "streaming", "bits": 16.3, "every": 30},
    "local-sgd": {"title": "local SGD, H 30, fp32", "base": "local-sgd", "more": "codec: fp32", "bits": 64,
                  "every": 30},
    "snoo": {"title": "one worker, outer Nesterov (SNOO)", "base": "diloco", "bits": 0,
             "more": "workers: 1, links: none, codec: fp32, settings: {train.grad_accum: 4}"},
    "diloco-h100": {"title": "DiLoCo, H 100, int8", "base": "diloco", "more": "H: 100", "bits": 16.3, "every": 100},
}
FIRST = ("ddp", "diloco-h30") # these have both seeds before another arm begins
SEEDS = (1, 2)
LINKS = ("1gbit,rtt=50ms", "100mbit,rtt=50ms", "10mbit,rtt=50ms", "1mbit,rtt=50ms")


def parameters(size):
    """GPT-2 with tied embeddings: matrices, biases and norms of the blocks, embeddings, the last norm."""
    s = SIZES[size]
    c = s["n_embd"]
    return s["n_layer"] * (12 * c * c + 13 * c) + (VOCABULARY + s["block_size"]) * c + 2 * c


def step_tokens(size):
    """Tokens of one step of all workers."""
    s = SIZES[size]
    return WORKERS * s["batch"] * s["block_size"]


def flops(size):
    """FLOPs of a token, forward and backward: 6 for each parameter of a matrix, and causal attention."""
    s = SIZES[size]
    return 6 * (parameters(size) - s["block_size"] * s["n_embd"]) + 6 * s["n_layer"] * s["n_embd"] * s["block_size"]


class Speed:
    """The planned speed of a GPU, from the results of tests/gpu/run (docs/history/gpu-h100.json)."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        known = results["sections"]["train"]["models"]["124m"]["ours"]
        self.tokens, self.flops = known["tokens_per_s"], known["tokens_per_s"] * known["flops_per_token"]
        self.device = known["device"].split(" ", 1)[1].split(" bf16")[0]

    def tokens_per_s(self, size):
        return self.flops * SHARE.get(size, NARROW_SHARE) / flops(size)

    def seconds(self, size, arm, steps):
        """Of one run: its start, its steps on one GPU, and the bytes of its rounds."""
        a, rounds = ARMS[arm], steps / ARMS[arm].get("every", steps)
        moved = WORKERS * parameters(size) * a["bits"] / 8 * rounds
        return START_S + steps * step_tokens(size) / self.tokens_per_s(size) + moved / LOOPBACK


def whole_steps(tokens, size):
    """Steps for so many tokens: a multiple of 300, which rounds of 30 and of 100 steps divide."""
    multiple = SIZES[size].get("multiple", 300)
    return max(1, round(tokens / step_tokens(size) / multiple)) * multiple


@dataclass(frozen=True)
class Size:
    """One size in a pack. `why`: the reason for fewer steps than wanted."""

    name: str
    steps: int
    wanted: int
    why: str = ""

    @property
    def tokens(self):
        return self.steps * step_tokens(self.name)

    def cut(self):
        """In words: what is left of the tokens, and why; empty if all are."""
        if not self.why:
            return ""
        whole = self.wanted * step_tokens(self.name)
        return f"cut to {self.tokens / 1e6:.4g}M of {whole / 1e6:.4g}M tokens, all arms alike: {self.why}"


def grid(size, plan, rates=None):
    """The YAML of a grid of atoll compare. plan: {"source", "train_tokens", "arms"}; rates: of the arms, for a size
    without trials."""
    s, params = SIZES[size.name], parameters(size.name)
    cut = f"; {size.cut()}" if size.cut() else ""
    settings = (f"  data: {{train: \"data/train/train_*.bin\", val: \"data/val/train_*.bin\", tokenizer: none}}\n"
                f"  model: {{family: gpt2, n_layer: {s['n_layer']}, n_head: {s['n_head']}, n_embd: {s['n_embd']}, "
                f"block_size: {s['block_size']}, vocab_size: {VOCABULARY}}}\n"
                f"  train: {{batch_size: {s['batch']}, max_steps: {size.steps}, "
                f"eval_every: {max(30, size.steps // 15 // 50 * 50)} steps, eval_tokens: {1 << 30}"
                f"{', precision: bf16' if s['gpu'] else ''}}}\n"
                f"  inner: {{optimizer: adamw, schedule: cosine, warmup_steps: {s['warmup']}, min_lr_fraction: 0.1}}\n")
    tune = "" if rates else (f"tune: {{key: inner.learning_rate, values: [{', '.join(s['rates'])}], seeds: [101],\n"
                             f"       settings: {{train.max_steps: {s['trial_steps']}, "
                             f"inner.warmup_steps: {s['trial_steps'] // 10}}}}}\n")
    arms = []
    for name in plan["arms"]:
        arm = ARMS[name]
        parts = [f"title: \"{arm['title']}\"", f"base: configs/{arm['base']}.yaml"]
        more = arm.get("more", "")
        if rates:
            rate = f"inner.learning_rate: {rates[name]:.3g}"
            more = more.replace("settings: {", f"settings: {{{rate}, ") if "settings" in more else \
                ", ".join(filter(None, (more, f"settings: {{{rate}}}")))
        arms.append(f"  {name}: {{{', '.join(filter(None, parts + [more]))}}}\n")
    passes = size.tokens / plan["train_tokens"]
    return (f"# {params:,} parameters, {size.steps} steps of {step_tokens(size.name):,} tokens: "
            f"{size.tokens / params:.3g} tokens a parameter{cut}\n"
            f"# Text: {plan['source']}; {plan['train_tokens'] / 1e6:.4g}M tokens, so {passes:.2g} passes\n"
            f"title: \"Sync against local SGD, 4 workers, {params / 1e6:.3g}M parameters, "
            f"{size.tokens / 1e6:.4g}M tokens{' (cut)' if cut else ''}\"\n"
            f"settings:\n{settings}workers: {WORKERS}\nseeds: {list(SEEDS)}\nlinks: {json.dumps(LINKS)}\n{tune}"
            f"target: {{factor: 1.02}}\n"
            f"machine: whole # four workers share one GPU; each time is that of workers with such a GPU each\n"
            f"arms:\n{''.join(arms)}")


def scaled(rates, small, large):
    """Learning rates of the trials at one size, for another: AdamW's best rate falls as 1/width (Yang et al., Tensor
    Programs V, arXiv 2203.03466)."""
    ratio = SIZES[small]["n_embd"] / SIZES[large]["n_embd"]
    return {arm: rate * ratio for arm, rate in rates.items()}


def turn(arms, arm, seed):
    """The order of trials (seed None) and runs: both seeds of the first arms, then a seed of each arm."""
    number, which = arms.index(arm), 0 if seed is None else 1 + SEEDS.index(seed)
    return (0, which, number) if arm in FIRST else (1 if which < 2 else 2, number, which)


def plan_lines(sizes, arms, speed, call_s):
    """What a pack plans: a line for each size and arm."""
    if any(SIZES[size.name]["gpu"] for size in sizes):
        yield (f"planned for {speed.device}, from {speed.tokens:,} tokens/s at 124M, in calls of {call_s} s; loopback "
               f"{LOOPBACK / 1e9:g} GB/s is assumed")
    every = []
    for size in sizes:
        cells = []
        params = parameters(size.name)
        yield (f"{size.name}: {params:,} parameters, {size.tokens / 1e6:.4g}M tokens "
               f"({size.tokens / params:.3g} a parameter)" + (f"; {size.cut()}" if size.cut() else ""))
        if not SIZES[size.name]["gpu"]:
            yield "  for CPUs: no plan"
            continue
        yield f"  {speed.tokens_per_s(size.name):,.0f} tokens/s"
        for arm in arms:
            run = speed.seconds(size.name, arm, size.steps)
            steps = SIZES[size.name]["trial_steps"]
            trials = [speed.seconds(size.name, arm, steps)] * len(SIZES[size.name]["rates"]) if steps else []
            cells += [(turn(arms, arm, None), seconds) for seconds in trials]
            cells += [(turn(arms, arm, seed), run) for seed in SEEDS]
            tuned = f", trials {sum(trials):4.0f} s" if trials else ""
            yield f"  {ARMS[arm]['title']:<36} {run:5.0f} s a seed{tuned}"
        every += [seconds for _, seconds in sorted(cells)]
    if every:
        yield f"all: {sum(every) / 60:.0f} min, in {_calls(every, call_s)} calls"


def _calls(cells, call_s):
    """Calls for cells of so many seconds: each takes whatever still fits, in their order."""
    rest, n = cells, 0
    while rest:
        left, later, n = call_s - CALL_START_S, [], n + 1
        for seconds in rest:
            left, later = (left - seconds, later) if seconds <= left else (left, later + [seconds])
        if len(later) == len(rest):
            return "too many"
        rest = later
    return n


def sizes_of(names, arms, call_s, speed, asked):
    """The sizes, with all tokens that fit into a call; asked: tokens of a run if fewer are wanted, or 0."""
    return [_size(name, arms, call_s, speed, asked) for name in names]


def _size(name, arms, call_s, speed, asked):
    steps = wanted = whole_steps(TOKENS_PER_PARAMETER * parameters(name), name)
    if asked and whole_steps(asked, name) < wanted:
        return Size(name, whole_steps(asked, name), wanted, "as asked")
    if not SIZES[name]["gpu"]:
        return Size(name, steps, wanted)
    slowest = max(arms, key=lambda arm: speed.seconds(name, arm, wanted))
    while steps > 300 and speed.seconds(name, slowest, steps) > call_s - CALL_START_S:
        steps -= 300
    why = f"the slowest arm, {ARMS[slowest]['title']}, must fit into one call of {call_s} s" if steps < wanted else ""
    return Size(name, steps, wanted, why)


def history(root):
    return os.path.join(root, "docs", "history", "gpu-h100.json")
