#!/usr/bin/env bash
# test_e2e_kill with as little kept as can be: a checkpoint every round, and only the newest.
# ctest: labels=long timeout=180
SETTINGS="checkpoint.every=1 checkpoint.keep=1" exec bash tests/e2e/test_e2e_kill.sh
