"""Description of the machine in the benchmarks' JSON files."""

import os
import platform


def cpu_name():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def describe():
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release()}
