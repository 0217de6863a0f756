#!/usr/bin/env bash
# test_e2e_members with a worker stopped for 20 s.
# ctest: labels=long timeout=180
ATOLL_LONG=1 exec bash tests/e2e/test_e2e_members.sh
