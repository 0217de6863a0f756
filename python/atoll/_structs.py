"""The structures and callbacks of include/atoll.h for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p

DIMS_MAX = 8
TEXT_MAX = 512


class Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("text", c_char * TEXT_MAX)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("flags", c_uint32), ("ndim", c_uint32), ("shape", c_uint64 * DIMS_MAX)]


class Frozen(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("ndim", c_uint32),
        ("shape", c_uint64 * DIMS_MAX),
        ("bytes", c_uint64),
        ("hash", c_uint64),
    ]


class File(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("data", c_char_p), ("size", c_size_t)]


class Data(ctypes.Structure):
    _fields_ = [("hash", c_uint64), ("samples", c_uint64), ("sample_tokens", c_uint32)]


class Part(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


Save = ctypes.CFUNCTYPE(c_size_t, c_void_p, POINTER(Part), c_size_t)
Load = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
Read = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint64, c_void_p, c_size_t)
Log = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class State(ctypes.Structure):
    _fields_ = [("ctx", c_void_p), ("save", Save), ("load", Load)]


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("join", c_char_p),
        ("name", c_char_p),
        ("dir", c_char_p),
        ("devices", c_char_p),
        ("tensors", POINTER(Tensor)),
        ("n_tensors", c_uint32),
        ("files", POINTER(File)),
        ("n_files", c_uint32),
        ("train", Data),
        ("val", Data),
        ("state", State),
        ("threads", c_uint32),
        ("max_wait_s", c_uint32),
        ("frozen", POINTER(Frozen)),
        ("n_frozen", c_uint32),
        ("frozen_any", c_uint32),
        ("frozen_read", Read),
        ("frozen_ctx", c_void_p),
        ("theta", c_void_p),
        ("change", c_void_p),
    ]


class Round(ctypes.Structure):
    _fields_ = [
        ("round", c_uint64),
        ("steps", c_uint32),
        ("step_samples", c_uint32),
        ("position", c_double),
        ("position_rate", c_double),
        ("worker", c_uint32),
        ("lr", c_double),
        ("epoch", c_double),
    ]


class Step(ctypes.Structure):
    _fields_ = [
        ("tokens", c_uint64),
        ("loss", c_double),
        ("lr", c_double),
        ("grad_norm", c_double),
        ("step_us", c_uint64),
    ]


class Evaluation(ctypes.Structure):
    """A piece of an evaluation: samples start .. start + count, in parts of `part` samples."""

    _fields_ = [("start", c_uint64), ("count", c_uint64), ("part", c_uint64), ("n_parts", c_uint32)]


class Info(ctypes.Structure):
    _fields_ = [
        ("run", c_char * 96),
        ("name", c_char * 96),
        ("method", c_char * 32),
        ("family", c_char * 32),
        ("round", c_uint64),
        ("bytes_up", c_uint64),
        ("bytes_down", c_uint64),
        ("rtt_us", c_uint64),
        ("compute_s", c_double),
        ("compress_s", c_double),
        ("send_s", c_double),
        ("wait_s", c_double),
        ("apply_s", c_double),
        ("connected", c_uint32),
    ]
