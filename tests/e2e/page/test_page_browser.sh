#!/usr/bin/env bash
# The page in Chromium: a new round appears without a reload, a name with HTML is text, each screen, an outage, a page
# that comes back, and 10,000 rounds. PAGE_SHOTS=FOLDER keeps the screenshots.
# ctest: timeout=300 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/page/page.sh
source "$HERE/page/page.sh"

for tool in chromium chromedriver python3; do
    command -v $tool >/dev/null || { echo "skipped: there is no $tool: install chromium, chromium-driver and python3" && exit 77; }
done

# --- a run that trains, with a hostile name
make_data
write_config run.yaml train.max_steps=1000000 train.eval_every=2 coordinator.min_workers=2
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
until_true 20 "the coordinator's address" test -s run/address
for name in kitchen "<img src=x onerror=document.title='owned'>"; do
    start worker.log "$BIN/atoll-worker" --join run --dir "worker-${#name}" --name "$name" \
        --data.train="$WORK/data/train_*.bin" --data.val="$WORK/data/val_*.bin" --train.threads=1
done
until_true 60 "some rounds" rounds_reach 20
serve page.log run --interval 0.5
shots=${PAGE_SHOTS:-$WORK}
start browser.log python3 "$HERE/page/browser.py" "$port" "$shots"
browser=$pid
says() { grep -q "^$1" browser.log || ! kill -0 "$browser"; } # WORD: also when the browser failed
until_true 120 "the checks in the browser" says ready
kill -TERM "$page"
finish "$page" 20 0 "the page"
until_true 60 "the outage in the browser" says outage
start page.log "$BIN/atoll" page run --listen "127.0.0.1:$port"
page=$pid
finish "$browser" 60 0 "the browser"
kill -TERM "$page"
finish "$page" 20 0 "the second page"
for name in desktop dark phone; do [[ -s $shots/$name.png ]] || fail "there is no picture $name.png"; done

# --- 10,000 rounds, with their steps
mkdir long
awk 'BEGIN {
    srand(1)
    for (r = 1; r <= 10000; r++) {
        loss = 2 + 8 / (1 + r / 100) + 0.1 * rand()
        for (s = 1; s <= 10; s++)
            printf "{\"time\":%.1f,\"event\":\"step\",\"worker\":\"w\",\"step\":%d,\"round\":%d,\"tokens\":%d,\"loss\":%.4f,\"lr\":0.001,\"grad_norm\":0.5,\"tokens_per_s\":1000}\n", 1e9 + 10 * r + s, 10 * r + s, r, 1000 * r, loss
        printf "{\"time\":%.1f,\"event\":\"round\",\"round\":%d,\"rounds\":20000,\"tokens\":%d,\"loss\":%.4f,\"bytes_up\":%d,\"bytes_down\":%d,\"round_s\":10}\n", 1e9 + 10 * r, r, 1000 * r, loss, 5000 * r, 5000 * r
        if (r % 5 == 0) printf "{\"time\":%.1f,\"event\":\"eval\",\"round\":%d,\"tokens\":%d,\"val_loss\":%.4f,\"eval_s\":1}\n", 1e9 + 10 * r, r, 1000 * r, loss + 0.1
    }
}' >long/metrics.jsonl
touch long/lock
serve long.log long --interval 0.5
python3 "$HERE/page/browser.py" "$port" --long 10000 || fail "10,000 rounds"
python3 "$HERE/page/browser.py" "$port" --statuses || fail "statuses"
