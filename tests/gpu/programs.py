"""The programs of tests/gpu/run: their list, their build, and the pack for another machine."""

import glob
import os
import shutil
import subprocess
import sys

import libraries

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("ATOLL_BUILD", os.path.join(ROOT, "build"))
# Tests of tests/parity that run on any device; a second build of each is gpu_NAME.
PARITY = ("kernels_vectors", "kernels_rows", "kernels_layers", "muon", "recompute")
CODECS = ("delta", "outer", "stage", "theta")
PROGRAMS = ["atoll", "atoll-coordinator", "atoll-worker"]
GOLDEN = os.path.join("tests", "golden") # files that the programs read from their working directory
GOLDEN_FILES = ("muon_steps.bin",)


def targets(emulated):
    names = ["bench_gpu"] + [f"gpu_{name}" for name in PARITY + CODECS]
    return names + PROGRAMS + ["atoll_cuda_emulated" if emulated else "atoll_cuda"]


def libatoll(folder):
    """libatoll.so beside the folder of the programs, in a build and in a pack."""
    return os.path.join(os.path.dirname(folder), "lib", "libatoll.so")


def build(args):
    try:
        os.makedirs(os.path.join(BUILD, "gpu"), exist_ok=True)
    except OSError as error:
        sys.exit(f"tests/gpu/run: cannot build in {BUILD}: {error.strerror}: name another folder in ATOLL_BUILD")
    log = os.path.join(BUILD, "gpu", "build.log")
    generator = "Ninja" if shutil.which("ninja") else "Unix Makefiles"
    steps = [["cmake", "-S", ROOT, "-B", BUILD, "-G", generator, "-DATOLL_CUDA=ON"],
             ["cmake", "--build", BUILD, "--parallel", str(os.cpu_count() or 1), "--target", "libatoll"]
             + targets(args.emulated)]
    if glob.glob(os.path.join(BUILD, "build.ninja")) + glob.glob(os.path.join(BUILD, "Makefile")):
        steps[0] = ["cmake", BUILD]
    print(f"tests/gpu/run: building, log in {log}", flush=True)
    with open(log, "w", encoding="utf-8") as file:
        for step in steps:
            try:
                code = subprocess.call(step, stdout=file, stderr=subprocess.STDOUT,
                                       env={**libraries.cudnn_home(), **os.environ})
            except OSError as error:
                code = error.strerror
            if code:
                with open(log, encoding="utf-8", errors="replace") as output:
                    why = [line.strip() for line in output if "rror" in line][:1]
                sys.exit(f"tests/gpu/run: {step[0]} failed ({code}){': ' if why else ''}{''.join(why)}; see {log}; "
                         "or build elsewhere with --pack and use --bin (see the head of tests/gpu/run)")


def pack(with_cublas):
    """Collect the programs and their libraries for a machine that cannot build them."""
    folder = os.path.join(BUILD, "gpu", "pack")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "lib", GOLDEN):
        os.makedirs(os.path.join(folder, name))
    for name in GOLDEN_FILES:
        shutil.copy2(os.path.join(ROOT, GOLDEN, name), os.path.join(folder, GOLDEN))
    shutil.copy2(libatoll(os.path.join(BUILD, "bin")), os.path.join(folder, "lib"))
    for name in targets(False):
        path = os.path.join(BUILD, "bin", name + (".so" if name == "atoll_cuda" else ""))
        shutil.copy2(path, os.path.join(folder, "bin"))
        for library, file in libraries.linked(path, with_cublas).items():
            shutil.copy2(file, os.path.join(folder, "lib", library))
    cublas = glob.glob(os.path.join(folder, "lib", "libcublasLt*"))
    if with_cublas and not cublas:
        sys.exit("tests/gpu/run: --with-cublas: no libcublasLt on this machine: set LD_LIBRARY_PATH")
    size = sum(os.path.getsize(file) for file in glob.glob(os.path.join(folder, "*", "*"))) / 1e6
    print(f"{folder}: {size:.0f} MB, {'with' if cublas else 'without'} libcublasLt"
          f"{'' if cublas else ' (the other machine needs CUDA or PyTorch; if not: --with-cublas)'}")
    print(f"copy this folder, python, tests/gpu and tests/python to that machine, then: tests/gpu/run --bin "
          f"{os.path.join(folder, 'bin')}")
