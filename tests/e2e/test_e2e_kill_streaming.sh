#!/usr/bin/env bash
# test_e2e_kill.sh with train.method streaming: fragments have sync points of their own, and training goes on meanwhile.
# ctest: timeout=300 waits=1
here=$(dirname "${BASH_SOURCE[0]}")
SETTINGS="train.method=streaming train.overlap=6 train.fragments=2 ${SETTINGS:-}" exec bash "$here/test_e2e_kill.sh"
