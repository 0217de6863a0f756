"""The programs of tests/gpu/run: which they are, their build, and the pack that carries them to another machine."""

import glob
import os
import shutil
import subprocess
import sys

import libraries

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("ATOLL_BUILD", os.path.join(ROOT, "build"))
# Tests of tests/parity that run on any device; each is built once more as gpu_NAME.
PARITY = ("kernels_vectors", "kernels_rows", "kernels_layers", "muon", "recompute")
CODECS = ("delta", "outer", "stage", "theta")
PROGRAMS = ["atoll", "atoll-coordinator", "atoll-worker"]
GOLDEN = os.path.join("tests", "golden") # what programs read that compare, from where they run
GOLDEN_FILES = ("muon_steps.bin",)


def targets(emulated):
    names = ["bench_gpu"] + [f"gpu_{name}" for name in PARITY + CODECS]
    return names + PROGRAMS + ["atoll_cuda_emulated" if emulated else "atoll_cuda"]


def build(args):
    try:
        os.makedirs(os.path.join(BUILD, "gpu"), exist_ok=True)
    except OSError as error:
        sys.exit(f"tests/gpu/run: cannot build in {BUILD}: {error.strerror}: name another folder in ATOLL_BUILD")
    log = os.path.join(BUILD, "gpu", "build.log")
    generator = "Ninja" if shutil.which("ninja") else "Unix Makefiles"
    steps = [["cmake", "-S", ROOT, "-B", BUILD, "-G", generator, "-DATOLL_CUDA=ON"],
             ["cmake", "--build", BUILD, "--parallel", str(os.cpu_count() or 1), "--target"] + targets(args.emulated)]
    if glob.glob(os.path.join(BUILD, "build.ninja")) + glob.glob(os.path.join(BUILD, "Makefile")):
        steps[0] = ["cmake", BUILD]
    print(f"tests/gpu/run: builds, see {log}", flush=True)
    with open(log, "w", encoding="utf-8") as file:
        for step in steps:
            try:
                code = subprocess.call(step, stdout=file, stderr=subprocess.STDOUT,
                                       env={**libraries.cudnn_home(), **os.environ})
            except OSError as error:
                code = error.strerror
            if code:
                with open(log, encoding="utf-8", errors="replace") as said:
                    why = [line.strip() for line in said if "rror" in line][:1]
                sys.exit(f"tests/gpu/run: {step[0]} failed ({code}){': ' if why else ''}{''.join(why)}; see {log}; "
                         "or build elsewhere with --pack and use --bin (see the head of tests/gpu/run)")


def pack(with_cublas):
    """Programs and what they link, for a machine that can build nothing."""
    folder = os.path.join(BUILD, "gpu", "pack")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "lib", GOLDEN):
        os.makedirs(os.path.join(folder, name))
    for name in GOLDEN_FILES:
        shutil.copy2(os.path.join(ROOT, GOLDEN, name), os.path.join(folder, GOLDEN))
    for name in targets(False):
        path = os.path.join(BUILD, "bin", name + (".so" if name == "atoll_cuda" else ""))
        shutil.copy2(path, os.path.join(folder, "bin"))
        for library, file in libraries.linked(path, with_cublas).items():
            shutil.copy2(file, os.path.join(folder, "lib", library))
    cublas = glob.glob(os.path.join(folder, "lib", "libcublasLt*"))
    if with_cublas and not cublas:
        sys.exit("tests/gpu/run: --with-cublas: the plugin finds no libcublasLt here: see LD_LIBRARY_PATH")
    size = sum(os.path.getsize(file) for file in glob.glob(os.path.join(folder, "*", "*"))) / 1e6
    print(f"{folder}: {size:.0f} MB, {'with' if cublas else 'without'} libcublasLt"
          f"{'' if cublas else ', which the other machine has in CUDA or PyTorch for it (else --with-cublas)'}")
    print(f"carry this folder and tests/gpu, then tests/gpu/run --bin {os.path.join(folder, 'bin')}")
