#!/usr/bin/env bash
# Runs the commands of all documents. ./run python installs, so no other test runs meanwhile.
# ctest: labels=long timeout=1800 serial=1
set -euo pipefail

exec python3 "$(dirname "${BASH_SOURCE[0]}")/play.py"
