"""The folder of tests/gpu/record that travels: programs and their libraries, Python modules, settings and tokens."""

import dataclasses
import glob
import json
import os
import shutil
import subprocess
import sys

import libraries
import programs
import record_grid
import record_text

MOST_MIB = 55 # of the folder
PROGRAMS = ("atoll", "atoll-coordinator", "atoll-worker")
MODULES = ("libraries.py", "record_grid.py", "record_run.py", "record_text.py")
COMPARE = ("command.py", "metrics.py", "progress.py", "units.py", "compare/data.py", "compare/grid.py",
           "compare/progress.py", "compare/run.py", "compare/store.py", "compare/timing.py", "report/data.py")
SMALL_MB = {"val": 0.05, "train": 12} # of text, without a GPU; else as much as fetch-code takes
TOKENIZER_MB = 32


def fail(text):
    sys.exit(f"tests/gpu/record: {text}")


def call(what, *words, **more):
    print(f"tests/gpu/record: {what}", flush=True)
    code = subprocess.call(words, **more)
    if code:
        fail(f"{what} failed: {os.path.basename(words[0])} ended with code {code}")


def head(path, out, megabytes):
    """Copies the first documents of a .jsonl that fit into so many MB."""
    left = megabytes * 1e6
    with open(path, "rb") as file, open(out + ".part", "wb") as to:
        for line in file:
            if len(line) <= left:
                left -= len(line)
                to.write(line)
    os.replace(out + ".part", out)


def text(folder, with_gpu):
    """The text of the package linux-source, split into train and val; a line that names the package."""
    source = os.path.join(folder, "source")
    if not os.path.exists(source):
        print("tests/gpu/record: fetching the text (a package of 140 MB)", flush=True)
        got = subprocess.run([os.path.join(programs.ROOT, "tests", "demo", "fetch-code"), folder],
                             stdout=subprocess.PIPE, text=True, check=False)
        if got.returncode:
            fail("tests/demo/fetch-code failed: see above")
        with open(source + ".part", "w", encoding="utf-8") as file:
            file.write(got.stdout)
        os.replace(source + ".part", source)
    if not with_gpu and not os.path.exists(os.path.join(folder, "small", "train.jsonl")):
        os.makedirs(os.path.join(folder, "small"), exist_ok=True)
        for name, megabytes in SMALL_MB.items():
            head(os.path.join(folder, f"{name}.jsonl"), os.path.join(folder, "small", f"{name}.jsonl"), megabytes)
    with open(source, encoding="utf-8") as file:
        return file.read().strip()


def tokenized(folder, venv):
    """Token shards in FOLDER/data/train and FOLDER/data/val."""
    tokenizer, train = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "train.jsonl")
    python, prepare = (os.path.join(venv, "bin", name) for name in ("python", "atoll-prepare"))
    if not os.path.exists(tokenizer):
        code = ("import record_text, sys; record_text.train_tokenizer(sys.argv[1], sys.argv[2], "
                f"{record_grid.VOCABULARY}, {TOKENIZER_MB})")
        call(f"training a BPE of {record_grid.VOCABULARY} entries", python, "-c", code, train, tokenizer,
             env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1",
                  "PYTHONPATH": os.path.dirname(os.path.realpath(__file__))})
    for name in ("val", "train"):
        out = os.path.join(folder, "data", name)
        if not os.path.exists(os.path.join(out, "meta.json")):
            call(f"tokenizing {name}", prepare, out,
                 os.path.join(folder, f"{name}.jsonl"), "--tokenizer", tokenizer, "--val-fraction", "0", "--force")
    return os.path.join(folder, "data")


def copy_programs(pack):
    for name in ("bin", "lib"):
        os.makedirs(os.path.join(pack, name))
    plugin = os.path.join(programs.BUILD, "bin", "atoll_cuda.so")
    paths = [os.path.join(programs.BUILD, "bin", name) for name in PROGRAMS]
    for path in paths + ([plugin] if os.path.exists(plugin) else []):
        shutil.copy2(path, os.path.join(pack, "bin"))
        for library, file in libraries.linked(path, False).items():
            shutil.copy2(file, os.path.join(pack, "lib", library))


def copy_python(pack):
    """Modules of the package atoll, and PyYAML's part in Python: a machine with the GPU may have neither, nor NumPy."""
    here = os.path.dirname(os.path.realpath(__file__))
    folder = os.path.join(pack, "python")
    os.makedirs(folder)
    for name in MODULES:
        shutil.copy2(os.path.join(here, name), folder)
    shutil.copy2(os.path.join(here, "record"), pack)
    for room in ("", "compare", "report"): # the package's own __init__.py needs NumPy
        os.makedirs(os.path.join(folder, "atoll", room))
        open(os.path.join(folder, "atoll", room, "__init__.py"), "w", encoding="utf-8").close()
    for name in COMPARE:
        shutil.copy2(os.path.join(programs.ROOT, "python", "atoll", name), os.path.join(folder, "atoll", name))
    venv = os.path.join(programs.ROOT, "build", "python", "bin", "python")
    for python in (venv, sys.executable):
        code = "import yaml; print(yaml.__path__[0])"
        got = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             check=False) if os.path.exists(python) else None
        if got and got.returncode == 0:
            break
    else:
        fail("no python here has PyYAML: run ./run python")
    shutil.copytree(got.stdout.strip(), os.path.join(folder, "yaml"),
                    ignore=shutil.ignore_patterns("__pycache__", "*.so"))


def linux_tokens(names):
    """The folder of the tokens, and their source in words."""
    with_gpu = any(record_grid.SIZES[name]["gpu"] for name in names)
    venv = os.path.join(programs.ROOT, "build", "python")
    if not os.path.exists(os.path.join(venv, "bin", "atoll-prepare")):
        fail("the Python package is missing: run ./run python first")
    if subprocess.call([os.path.join(venv, "bin", "python"), "-c", "import tokenizers"], stderr=subprocess.DEVNULL):
        call("installing tokenizers", os.path.join(venv, "bin", "python"), "-m", "pip", "install", "-q",
             "--disable-pip-version-check", "tokenizers>=0.20")
    folder = os.path.join(programs.BUILD, "record-text")
    os.makedirs(folder, exist_ok=True)
    source = text(folder, with_gpu)
    return tokenized(folder if with_gpu else os.path.join(folder, "small"), venv), source


def make(pack, names, arms, call_s, asked, data):
    """Makes the folder `pack` for sizes of record_grid. asked: tokens of each run, or 0. data: a folder with train/ and
    val/ of `atoll prepare`, or None for the Linux source."""
    if os.path.exists(pack) and not os.path.exists(os.path.join(pack, "record.json")):
        fail(f"{pack} is no folder of this program: remove it, or give another --folder")
    with_gpu = any(record_grid.SIZES[name]["gpu"] for name in names)
    for name in PROGRAMS:
        if not os.access(os.path.join(programs.BUILD, "bin", name), os.X_OK):
            fail(f"the program {name} is missing: run ./run build first")
    if with_gpu and not os.path.exists(os.path.join(programs.BUILD, "bin", "atoll_cuda.so")):
        fail("this build has no CUDA back end, which 30m and 124m need: install a CUDA toolkit and run ./run build, "
             "or use --sizes 1m")
    shards, source = (data, os.path.basename(os.path.abspath(data))) if data else linux_tokens(names)
    found = {name: sorted(glob.glob(os.path.join(shards, name, "train_*.bin"))) for name in ("train", "val")}
    for name, paths in found.items():
        if not paths:
            fail(f"no token shards in {os.path.join(shards, name)}: atoll prepare writes them there")
    with open(os.path.join(shards, "train", "meta.json"), encoding="utf-8") as file:
        train_tokens = json.load(file)["train_tokens"]
    part = pack + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(os.path.join(part, "configs"))
    copy_programs(part)
    copy_python(part)
    for arm in record_grid.ARMS.values():
        shutil.copy2(os.path.join(programs.ROOT, "configs", arm["base"] + ".yaml"), os.path.join(part, "configs"))
    for name, paths in found.items():
        print(f"tests/gpu/record: packing the tokens of {name}", flush=True)
        record_text.pack(paths, os.path.join(part, "packed", name))
    speed = record_grid.Speed(record_grid.history(programs.ROOT))
    sizes = record_grid.sizes_of(names, arms, call_s, speed, asked)
    plan = {"call_s": call_s, "source": source, "train_tokens": train_tokens, "arms": arms,
            "sizes": [dataclasses.asdict(size) for size in sizes],
            "seconds": {size.name: {arm: speed.seconds(size.name, arm, size.steps) for arm in arms}
                        for size in sizes if record_grid.SIZES[size.name]["gpu"]}}
    with open(os.path.join(part, "record.json"), "w", encoding="utf-8") as file:
        json.dump(plan, file, indent=1)
    files = [os.path.join(where, name) for where, _, names in os.walk(part) for name in names]
    size = sum(map(os.path.getsize, files)) / 2**20
    for line in record_grid.plan_lines(sizes, arms, speed, call_s):
        print(line)
    if size > MOST_MIB:
        fail(f"the folder has {size:.1f} MiB, more than {MOST_MIB}: give fetch-code fewer --megabytes")
    shutil.rmtree(pack, ignore_errors=True)
    os.rename(part, pack)
    print(f"{pack}: {size:.1f} MiB, at most {MOST_MIB}")
