"""Finds CUDA, cuDNN and PyTorch in toolkits and in the wheels of all pythons, and the libraries of a program."""

import glob
import os
import re
import shutil
import subprocess
import sys


def gpu_here():
    if os.path.exists("/proc/driver/nvidia/version") or glob.glob("/dev/nvidia[0-9]*"):
        return True
    try:
        import ctypes
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except (OSError, AttributeError):
        return False


def python_folders():
    """The package folders of all pythons that may hold CUDA wheels or PyTorch."""
    bases = [base for base in sys.path if base.endswith("-packages")]
    pythons = [os.environ.get("ATOLL_TORCH_PYTHON"), shutil.which("python3"), shutil.which("python"), sys.executable]
    prefixes = [os.path.dirname(os.path.dirname(python)) for python in pythons if python]
    prefixes += [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    prefixes += ["/usr", "/usr/local", "/opt/*", "/opt/*/*", "/opt/*/.venv", os.path.expanduser("~/*"),
                 os.path.expanduser("~/.venv"), "/venv", "/.venv", "/workspace/*"]
    for prefix in prefixes:
        for kind in ("site", "dist"):
            bases += sorted(glob.glob(os.path.join(prefix, "lib", "python3*", f"{kind}-packages")))
    return list(dict.fromkeys(bases))


def cuda_folders(programs, environment):
    """Existing folders with CUDA libraries, the most likely first."""
    folders = [os.path.normpath(os.path.join(os.path.abspath(programs), "..", "lib"))]
    home = environment.get("CUDA_HOME", "/usr/local/cuda")
    folders += [os.path.join(home, "lib64"), os.path.join(home, "lib")]
    folders += sorted(glob.glob("/usr/local/cuda-1[23]*/lib64"), reverse=True)
    for base in python_folders():
        folders += sorted(glob.glob(os.path.join(base, "nvidia", "*", "lib")))
    folders += ["/usr/local/nvidia/lib64", "/usr/lib64-nvidia", "/usr/lib/wsl/lib"] # drivers of containers
    return list(dict.fromkeys(folder for folder in folders if os.path.isdir(folder)))


def cudnn_home():
    """CUDNN_HOME if the headers come from a wheel; cmake itself looks in the CUDA toolkit."""
    for base in python_folders():
        if os.path.exists(os.path.join(base, "nvidia", "cudnn", "include", "cudnn_backend.h")):
            return {"CUDNN_HOME": os.path.join(base, "nvidia", "cudnn")}
    return {}


def advice(errors, folders):
    """Advice for a missing libcublasLt; "" for other errors."""
    found = re.search(r"libcublasLt\.so\.(\d+)", "\n".join(errors))
    if not found:
        return ""
    library, version = found.group(0), found.group(1)
    wheel = "nvidia-cublas" if int(version) >= 13 else f"nvidia-cublas-cu{version}"
    return (f"tests/gpu/run: {library} (CUDA {version}) is not on this machine: give CUDA_HOME a toolkit {version}, or "
            f"`pip install {wheel}` for a python that is in PATH, or make the pack with --with-cublas; looked in "
            + (":".join(folders) or "nothing"))


def linked(path, with_cublas):
    """Libraries of a program for a pack: {name: file}, without the driver and without libc and its companions."""
    leave = ("libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libresolv.so", "ld-linux", "linux-vdso",
             "libstdc++.so", "libgcc_s.so")
    files = {}
    for line in subprocess.run(["ldd", path], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        words = line.split()
        if "=>" in words and len(words) > 2 and os.path.exists(words[2]) and not words[0].startswith(leave) \
                and (with_cublas or not words[0].startswith("libcublas")):
            files[words[0]] = words[2]
    return files
