#!/usr/bin/env bash
# deploy/slurm on a real Slurm: four slurmd of one slurmctld and a munged, all of this test, on loopback.
# - atoll.sbatch: a run of three nodes. The first node dies, with the coordinator, later another one; the job continues
#   on other nodes. Then it reaches its time limit and continues. Its theta hash is that of an undisturbed run.
# - site.sbatch: an array of three tasks joins a run with its coordinator elsewhere. The node of a task dies. The same hash.
# - Wrong settings and missing data end the job with 2.
# The processes have a PID namespace of their own: they end with this script, however it ends.
# ctest: labels=long timeout=900 waits=1
set -euo pipefail
if [[ ! ${DEPLOY_ALONE:-} ]]; then
    for tool in slurmctld slurmd sbatch munged; do
        [[ $(type -P $tool || true) ]] || { echo "skipped: $tool is missing: apt-get install slurm-wlm munge" && exit 77; }
    done
    unshare --pid --fork --mount-proc true 2>/dev/null || { echo "skipped: needs root and namespaces" && exit 77; }
    DEPLOY_ALONE=1 exec unshare --pid --fork --mount-proc --kill-child=TERM bash "$0"
fi
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
SLURM=$HERE/../../deploy/slurm

# --- the cluster: n1 to n4

user=$(id -un)
port=$((20000 + RANDOM % 10000))
mkdir -m 700 munge state
head -c 1024 /dev/urandom >munge/key
chmod 600 munge/key
cat >slurm.conf <<CONF
ClusterName=atoll
SlurmctldHost=$(uname -n | cut -d . -f 1)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
# cred_expire also is the wait of a job that queues itself again, 120 s by default
AuthInfo=socket=$WORK/munge/socket,cred_expire=5
StateSaveLocation=$WORK/state
SlurmdSpoolDir=$WORK/spool.%n
SlurmctldPidFile=$WORK/slurmctld.pid
SlurmdPidFile=$WORK/slurmd.%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=10
$(for n in 1 2 3 4; do echo "NodeName=n$n NodeAddr=127.0.0.1 Port=$((port + n)) CPUs=4"; done)
PartitionName=all Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$WORK/slurm.conf PATH=$BIN:$PATH
start munged.log munged --foreground --force --key-file="$WORK/munge/key" --socket="$WORK/munge/socket" \
    --pid-file="$WORK/munge/pid" --log-file="$WORK/munge/log" --seed-file="$WORK/munge/seed"
until_true 20 "munged" test -S munge/socket
start slurmctld.log slurmctld -D

declare -A node_pid
node_start() { # NODE
    mkdir -p "spool.$1"
    start "slurmd.$1.log" slurmd -D -N "$1"
    node_pid[$1]=$pid
}

of_node() { tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | grep -qx "SLURMD_NODENAME=$2"; } # PID NODE

# node_kill NODE: kills slurmd, each slurmstepd, then the processes of the jobs: a dead node reports no end of a job.
node_kill() {
    local proc id parent steps=() jobs=()
    for proc in /proc/[0-9]*; do
        id=${proc#/proc/}
        of_node "$id" "$1" || continue
        jobs+=("$id")
        parent=$(sed -nE 's/^PPid:\s*//p' "$proc/status" 2>/dev/null || true)
        [[ $(cat "/proc/$parent/comm" 2>/dev/null || true) != slurmstepd ]] || steps+=("$parent")
    done
    ((${#steps[@]})) || fail "no slurmstepd on $1"
    for id in "${node_pid[$1]}" "${steps[@]}" "${jobs[@]}"; do kill -KILL "$id" 2>/dev/null || true; done
    wait "${node_pid[$1]}" 2>/dev/null || true
    ended "${node_pid[$1]}"
}

idle() { (($(sinfo -h -t idle -o %D) == $1)); } # NODES
field() { scontrol show job "$1" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$2=//p"; } # JOB NAME
ended_with() { [[ $(field "$1" JobState) == "$2" && $(field "$1" ExitCode) == "$3" ]]; } # JOB STATE CODE
restarts_are() { (($(field "$1" Restarts) == $2)); }
hash_of() { json get "$1/summary.json" theta_hash; }

for n in n1 n2 n3 n4; do node_start $n; done
until_true 60 "four idle nodes" idle 4

# --- the undisturbed run

make_data
write_config run.yaml train.sync_every=10 train.max_steps=6000 train.eval_every=0
common=(--train.sync_every=10 --train.max_steps=6000 --train.eval_every=0)
"$BIN/atoll" launch run.yaml --workers 3 --dir plain "${common[@]}" --coordinator.min_workers=3 >plain.log 2>&1 ||
    fail "the undisturbed run: $(tail -n 3 plain.log)"
sed -i 's/max_steps: 60, sync_every: 5/max_steps: 6000, sync_every: 10/; s/eval_every: 4/eval_every: 0/' run.yaml

# --- atoll.sbatch: a dead node, then the time limit

job=$(sbatch --parsable --nodes=3 --time=2 --signal=B:USR1@30 --output=job.log "$SLURM/atoll.sbatch" run.yaml run data)
until_true 60 "20 rounds" rounds_reach 20
[[ $(stat -c %a run/join) == 600 ]] || fail "the mode of run/join is $(stat -c %a run/join)"
first=$(field "$job" BatchHost)
node_kill "$first"
at=$(rounds_done)
until_true 90 "the job on other nodes" restarts_are "$job" 1
until_true 60 "10 more rounds" rounds_reach $((at + 10))
[[ $(field "$job" BatchHost) != "$first" ]] || fail "the job runs on the dead node $first"
node_start "$first"
until_true 60 "an idle node" idle 1
last=$(scontrol show hostnames "$(field "$job" NodeList)" | tail -n 1)
[[ $last != "$(field "$job" BatchHost)" ]] || fail "the job has one node"
node_kill "$last"
at=$(rounds_done)
until_true 90 "the job without node $last" restarts_are "$job" 2
until_true 60 "10 more rounds" rounds_reach $((at + 10))
# A stopped worker holds the run until the time limit.
held=''
for proc in /proc/[0-9]*; do
    [[ $(tr '\0' ' ' <"$proc/cmdline" 2>/dev/null || true) == atoll-worker*worker-1* ]] && held=${proc#/proc/}
done
kill -STOP "$held"
at=$(rounds_done)
((at < 600)) || fail "the run was too fast to be held"
until_true 150 "the coordinator's stop before the time limit" test ! -e run/address
kill -CONT "$held"
until_true 60 "the third restart" restarts_are "$job" 3
until_true 120 "the end of the run" ended_with "$job" COMPLETED 0:0
[[ $(hash_of run) == "$(hash_of plain)" ]] || fail "the run's hash is $(hash_of run), undisturbed it is $(hash_of plain)"
(($(ls -d run/workers/* | wc -l) == 3)) || fail "the workers' folders: $(ls run/workers)"
grep -q 'coordinator: exit code 75, workers: 75, restarts of the job: 2' job.log || fail "no clean stop: $(tail job.log)"
node_start "$last"
until_true 60 "four idle nodes" idle 4

# --- site.sbatch: an array joins a coordinator elsewhere

start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir far --coordinator.min_workers=3 --coordinator.evict_after_s=600
coordinator=$pid
until_true 20 "the coordinator's address" test -s far/address
# Names decide the order of merging: those of the undisturbed run sort as site-0 to site-2 do.
sites=$(sbatch --parsable --array=0-2 --output=site-%a.log "$SLURM/site.sbatch" far/address sites data)
until_true 60 "20 rounds" rounds_reach 20 far
node_kill "$(field "${sites}_1" BatchHost)"
until_true 90 "the task on another node" restarts_are "${sites}_1" 1
finish "$coordinator" 120 0 "the coordinator"
for task in 0 1 2; do until_true 30 "the end of task $task" ended_with "${sites}_$task" COMPLETED 0:0; done
[[ $(hash_of far) == "$(hash_of plain)" ]] || fail "the hash with sites is $(hash_of far), undisturbed it is $(hash_of plain)"

# --- what no restart helps ends the job

sed 's/sync_every: 10/sync_every: -1/' run.yaml >wrong.yaml
job=$(sbatch --parsable --nodes=1 --output=wrong.log "$SLURM/atoll.sbatch" wrong.yaml wrong data)
until_true 30 "exit code 2 of a wrong setting: $(cat wrong.log 2>/dev/null)" ended_with "$job" FAILED 2:0
job=$(sbatch --parsable --nodes=2 --output=nodata.log "$SLURM/atoll.sbatch" run.yaml nodata missing)
until_true 60 "exit code 2 of missing data" ended_with "$job" FAILED 2:0
