# Runs of one worker with GPUs beside the run of the CPU: source after lib.sh and write_config.
# shellcheck shell=bash disable=SC2154 # ended, started and pid are lib.sh's
command=("$BIN/atoll" launch run.yaml --workers 1 --train.max_steps=10 --train.eval_every=100)

run() { # folder settings...
    local dir=$1
    shift
    "${command[@]}" --dir "$dir" "$@" >"$dir.log" 2>&1 || fail "the run in $dir ended with $?"
}

# The last loss of each step, in order.
losses() { json lines "$1/metrics.jsonl" step step loss | awk '{ loss[$1] = $2 } END { for (s in loss) print s, loss[s] }' |
    sort -n; }

same_as_cpu() { # folder [folder of the CPU's run]
    (($(losses "$1" | wc -l) == 10)) || fail "$1 has not 10 steps"
    paste -d' ' <(losses "${2:-cpu}") <(losses "$1") | awk -v run="$1" '
        { d = $2 - $4; if (d < 0) d = -d; if (d > most) most = d }
        END { printf "%s: losses differ from those of the CPU by at most %g\n", run, most; exit !(NR > 0 && most < 1e-4) }
    ' || fail "$1: the losses differ"
}
