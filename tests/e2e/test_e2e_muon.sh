#!/usr/bin/env bash
# test_e2e_kill with inner.optimizer muon: its momentum is saved and comes back.
# ctest: timeout=170
ROUNDS=${ROUNDS:-69} SETTINGS="inner.optimizer=muon ${SETTINGS:-}" exec bash tests/e2e/test_e2e_kill.sh
