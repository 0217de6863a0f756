# Runs of one worker on GPUs, compared with the same run on the CPU: source after lib.sh and write_config.
# shellcheck shell=bash disable=SC2154 # lib.sh sets ended, started and pid
command=("$BIN/atoll" launch run.yaml --workers 1 --train.max_steps=10 --train.eval_every=100)

run() { # FOLDER SETTINGS...
    local dir=$1
    shift
    "${command[@]}" --dir "$dir" "$@" >"$dir.log" 2>&1 || fail "atoll launch in $dir: exit code $?"
}

# losses FOLDER: prints "STEP LOSS" lines in order; a repeated step counts with its last loss.
losses() { json lines "$1/metrics.jsonl" step step loss | awk '{ loss[$1] = $2 } END { for (s in loss) print s, loss[s] }' |
    sort -n; }

same_as_cpu() { # FOLDER [FOLDER_OF_CPU_RUN]
    (($(losses "$1" | wc -l) == 10)) || fail "$1: $(losses "$1" | wc -l) steps, expected 10"
    paste -d' ' <(losses "${2:-cpu}") <(losses "$1") | awk -v run="$1" '
        { d = $2 - $4; if (d < 0) d = -d; if (d > most) most = d }
        END { printf "%s: largest difference of the losses to the CPU: %g\n", run, most; exit !(NR > 0 && most < 1e-4) }
    ' || fail "$1: the losses differ from the CPU"
}
