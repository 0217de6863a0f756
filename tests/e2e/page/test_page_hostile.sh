#!/usr/bin/env bash
# Hostile clients of the page: garbage, large heads, slow and idle connections, many streams, viewers that do not read.
# A viewer is served all the while, and the page's memory stays small.
# ctest: timeout=120 waits=1 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/page/page.sh
source "$HERE/page/page.sh"
command -v python3 >/dev/null || { echo "skipped: there is no python3" && exit 77; }

mkdir run
awk 'BEGIN { for (r = 1; r <= 5000; r++) printf "{\"time\":%d,\"event\":\"round\",\"round\":%d,\"tokens\":%d,\"loss\":%.3f,\"bytes_up\":%d,\"bytes_down\":1}\n", r, r, r, 3 + sin(r), r }' >run/metrics.jsonl
touch run/lock
serve page.log run --interval 0.2
until_true 20 "the rounds" metric_is atoll_rounds_total 5000
python3 "$HERE/page/hostile.py" "$port" "$page" || fail "see above"
kill -TERM "$page"
finish "$page" 20 0 "the page"
