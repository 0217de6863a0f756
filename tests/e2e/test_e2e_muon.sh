#!/usr/bin/env bash
# test_e2e_kill with inner.optimizer muon and inner.moments bf16: momentum and moments are saved and come back, and are
# rounded as if nothing had happened.
# ctest: timeout=300 waits=1
ROUNDS=${ROUNDS:-69} SETTINGS="inner.optimizer=muon inner.moments=bf16 ${SETTINGS:-}" exec bash tests/e2e/test_e2e_kill.sh
