"""kill -9 of ranks, whole boxes and the coordinator: the run ends with the theta_hash of the undisturbed run.

`./run test --all` has ten kills. All of them, with the same seed:

    ATOLL_TEST_KILLS=30 ./run test --release --all torch_storm
"""
# ctest: timeout=2400

from __future__ import annotations

import os
import unittest

from boxes import BOXES, RANKS, BoxRun, Storm

KILLS = int(os.environ.get("ATOLL_TEST_KILLS", "10"))
SEED = 42
# Of each ten kills: five ranks, two boxes, two coordinators, a native worker.
VICTIMS = ["box-a/0", "coordinator", "box-b/1", "box-a", "box-b/0", "native", "box-a/1", "coordinator", "box-b",
           "box-a/0"]


class Kills(BoxRun):
    def storm(self, kind: str) -> None:
        rounds = 2 * KILLS + 10  # with few kills, chance takes a larger part of the rounds
        self.begin("plain", 5 * rounds, kind, 0)
        expected = self.end()
        self.begin("killed", 5 * rounds, kind, 0.03)
        storm = Storm(self, [VICTIMS[i % len(VICTIMS)] for i in range(KILLS)], SEED)
        storm.blow()
        self.assertEqual(self.end(), expected)
        print(f"{KILLS} kills, {storm.saves} in a save, {len(BOXES)} boxes of {RANKS} processes: theta {expected}",
              flush=True)

    def test_sharded_boxes(self) -> None:
        self.storm("fsdp")


if __name__ == "__main__":
    unittest.main()
