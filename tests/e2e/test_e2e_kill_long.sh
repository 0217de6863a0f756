#!/usr/bin/env bash
# test_e2e_kill five times, each with other victims at other instants.
# ctest: labels=long timeout=600
set -euo pipefail
for seed in 101 202 303 404 505; do SEED=$seed bash tests/e2e/test_e2e_kill.sh; done
