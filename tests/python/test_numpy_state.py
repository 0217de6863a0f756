"""The program's state as bytes: what goes in comes out, and damaged bytes are refused."""

from __future__ import annotations

import collections
import ctypes
import random
import unittest

import numpy as np

from atoll import InvalidError
from atoll.train.state import State, Writer, get_random, read, write


class Values(unittest.TestCase):
    def test_values_come_back(self) -> None:
        value = {
            "none": None,
            "numbers": [1, -2.5, True, 10**40, float("inf"), 0.1 + 0.2],
            "tuple": (1, ("a", [])),
            3: {"nested": b"\x00\xff"},
            "counter": collections.Counter({5: 2}),
            "array": np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2],
            "scalar": np.float32(1.5),
            "empty": np.zeros((0, 3)),
            "large": np.random.default_rng(1).normal(size=(300, 100)),
        }
        back = read(write(value))
        self.assertEqual(list(back), list(value))
        for key in ("none", "numbers", "tuple", 3, "counter"):
            self.assertEqual(back[key], value[key])
            self.assertIs(type(back[key]), type(value[key]))
        for key in ("array", "scalar", "empty", "large"):
            np.testing.assert_array_equal(back[key], value[key])
            self.assertEqual(back[key].dtype, value[key].dtype)
            self.assertEqual(back[key].shape, value[key].shape)
        self.assertIs(type(back["scalar"]), np.float32)

    def test_large_arrays_are_not_copied(self) -> None:
        array = np.arange(100000, dtype=np.float64)
        writer = Writer()
        parts = writer.parts(writer.value([1, array, 2], "x"))
        self.assertIn((array.ctypes.data, array.nbytes), parts)

    def test_few_parts(self) -> None:
        """More large arrays than the library takes parts: the bytes stay the same."""
        arrays = [np.full(20000, i, np.float64) for i in range(9)]
        writer = Writer()
        parts = writer.parts(writer.value(arrays, "x"), 4)
        self.assertEqual(len(parts), 4)
        self.assertEqual(b"".join(ctypes.string_at(*part) for part in parts), write(arrays))

    def test_what_cannot_be_saved(self) -> None:
        for bad in (lambda: 1, {"a": [object()]}, np.array([None]), {(1, 2): 3}):
            with self.assertRaisesRegex(TypeError, "atoll saves"):
                write(bad)
        with self.assertRaisesRegex(TypeError, r"the value\['a'\]\[1\] is of type function"):
            write({"a": [0, self.test_few_parts.__func__]})

    def test_damaged_bytes(self) -> None:
        data = write({"a": np.arange(50), "b": [1, (2, 3)]})
        rng = random.Random(1)
        for cut in range(0, len(data), 7):
            with self.assertRaises(ValueError):
                read(data[:cut])
        for _ in range(3000):  # it may read another value, but nothing else may happen
            changed = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(data))] = rng.randrange(256)
            try:
                read(bytes(changed))
            except ValueError:
                pass


class Program(unittest.TestCase):
    def test_all_kinds_of_objects(self) -> None:
        class Counter:
            n = 0

            def state_dict(self):
                return {"n": self.n}

            def load_state_dict(self, saved):
                self.n = saved["n"]

        counter, moments, array = Counter(), {"m": np.zeros(4), "t": 0}, np.zeros(3)
        generators = [np.random.default_rng(5), random.Random(6), np.random.RandomState(7)]
        objects = [counter, moments, array, *generators]
        state = State([(f"state[{i}]", o) for i, o in enumerate(objects)])

        def go_on() -> list:
            counter.n += 1
            moments["m"] += 1
            moments["t"] += 1
            array[:] += 2
            drawn = [generators[0].random(), generators[1].random(), generators[2].rand()]
            drawn += [random.random(), np.random.rand()]
            return [counter.n, moments["m"].copy(), moments["t"], array.copy(), *drawn]

        state.note_initial()
        first = go_on()
        held = moments["m"]
        saved = b"".join(ctypes.string_at(*part) for part in state.save())
        second = go_on()
        state.load(saved)
        for a, b in zip(second, go_on()):
            np.testing.assert_array_equal(a, b)
        self.assertIs(moments["m"], held)  # in place: the program holds the array
        state.load(None)
        for a, b in zip(first, go_on()):
            np.testing.assert_array_equal(a, b)

    def test_a_state_of_another_script(self) -> None:
        saved = State([("state[0]", {"m": np.zeros(4)})]).copy()
        moments = {"m": np.ones(5)}
        state = State([("state[0]", moments)])
        state.note_initial()
        moments["m"] += 1
        with self.assertRaisesRegex(ValueError, r"state\[0\].*another shape"):
            state.load(saved)
        np.testing.assert_array_equal(moments["m"], np.ones(5))  # that of a new run
        with self.assertRaisesRegex(ValueError, "holds 1 objects, and this script gives 0"):
            State([]).load(saved)

    def test_an_older_state_of_two_ranks(self) -> None:
        """One file with the parts of all ranks, as releases before the files of ranks wrote it."""
        randoms = get_random()
        for apart in (False, True):
            other = {"random": randoms, "objects": [{"m": np.full(4, 2.0)}] if apart else None}
            data = write({"objects": ({"m": np.ones(4)},), "random": randoms, "ranks": [write(other)], "own": {}})
            for rank in (0, 1):
                moments = {"m": np.zeros(4)}
                state = State([("state[0]", moments)])
                state.note_initial()
                state._rank, state._size = rank, 2
                state.load(data)
                np.testing.assert_array_equal(moments["m"], np.full(4, 2.0 if apart and rank else 1.0))
        reason = (r"is of 2 processes, and this worker has 1: state\[0\]\['m'\] differs between them, .*: start it "
                  "with 2 processes, or with a new folder")
        with self.assertRaisesRegex(InvalidError, reason):
            state._rank, state._size = 0, 1
            state.load(data)

    def test_objects_without_state(self) -> None:
        with self.assertRaisesRegex(TypeError, r"state\[0\] is of type object, which has no state_dict"):
            State([("state[0]", object())])


if __name__ == "__main__":
    unittest.main()
