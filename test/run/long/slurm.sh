#!/usr/bin/env bash
# jobs/ on a real SLURM: chains of the real job file, submitted with sbatch, whose walltime ends
# before the run is complete. They must end with the bits of one run, under srun (PMIx) and under
# mpiexec.
. "$(dirname "$0")/../lib/common.sh"
. "$root/test/run/lib/slurm.sh"
slurm_there || { fail "SLURM is here" "make test-long installs slurm-wlm and munge on Debian; elsewhere they are yours to install"; exit; }
trap 'slurm_stop; finish' EXIT
if ! slurm_start 4 >start.log 2>&1; then
  fail "SLURM starts" "see below"
  cat start.log
  exit
fi
pass "SLURM starts ($(sinfo -V)): munged, slurmctld, slurmd"

# Steps for a minute and a half: more than a job completes before its signal, fewer than all jobs
# complete.
limit=600
deck=("$debug" "data.train=[\"$work/text.txt\"]" optimizer.decay_steps=20 eval.interval=0)
rarely=checkpoint.interval=100000000
began=$(date +%s%N)
run 2 train "${deck[@]}" log.interval=500 $rarely run.dir=measure train.max_steps=4000
steps=$((4000 * 90000 / (($(date +%s%N) - began) / 1000000)))
deck+=(log.interval=$((steps / 100 + 1)))  # enough lines to compare, on a slow machine too
run 2 train "${deck[@]}" $rarely run.dir=straight train.max_steps="$steps"
expect "straight through, $steps steps" 0 "summary:"

submit() { (cd "$root" && CHOIR=$choir jobs/chain.sh "$@"); }
outputs() { for file in $(ls "$work/$1".*.out | sort -V); do cat "$file"; done; }
chain() {  # chain NAME JOBS SIGNAL_SECONDS STEPS: jobs of a minute; SLURM signals each this long before its end, or earlier
  command="chain.sh $1" code=0
  submit -n "$2" -o --time=1 -o --signal=B:USR1@"$3" -o --output="$work/$1.%j.out" jobs/generic.slurm "${deck[@]}" $rarely \
    train.max_steps="$4" run.dir="$work/$1" >out 2>&1 || code=$?
  expect "$1: $2 jobs are submitted" 0 "continue $work/$1, from step 0"
  check "$1: they end" slurm_wait 900
  outputs "$1" >out
}
ends() { sed -nE 's/^end [0-9]+ ([0-9]+) .*/\1/p' "$1/chains/1/record" | paste -sd' '; }
common_losses() {  # at steps that both logged; there must be some
  join <(losses "$1" | sort) <(losses "$2" | sort) >common.txt
  [ "$(wc -l <common.txt)" -ge 10 ] && awk '$2 != $3 { bad = 1 } END { exit bad }' common.txt
}
equal() {  # equal A B
  check "$2: the losses of straight through, bit by bit" common_losses "$1" "$2"
  check "$2: every tensor of straight through, bit by bit" same_tensors "$1" "$2"
}

chain with_srun 12 40 "$steps"
expect "srun, PMIx: the walltime signal of SLURM reaches the program" 0 "BATCH_SYSTEM= slurm" "srun -n 2" "--mpi=pmix" \
  "job: SIGUSR1: the time is almost up" "stopping after step" ": SIGUSR1" "resumed from" "nothing left for job"
check "with_srun: first 75, at last 0 (they ended with $(ends with_srun))" matches <(ends with_srun) '^75 (75 )*0$'
equal straight with_srun

LAUNCHER=openmpi chain with_mpiexec 2 1 2000000
expect "mpiexec: the program's own clock, set from what SLURM says is left" 0 "mpiexec -n 2" "walltime of" "resumed from"
check "with_mpiexec: two jobs saved in time ($(ends with_mpiexec))" test "$(ends with_mpiexec)" = "75 75"
step=$(readlink with_mpiexec/checkpoints/latest | sed 's/^step_0*//')
run 2 train "${deck[@]}" $rarely run.dir=straight_2 train.max_steps="${step:-1}"
equal straight_2 with_mpiexec

# A job that is killed with its script leaves no exit code; one that saved before is continued
# nevertheless.
command="chain.sh cancelled" code=0
submit -n 3 -o --time=5 -o --output="$work/cancelled.%j.out" jobs/generic.slurm "${deck[@]}" checkpoint.interval=200 \
  train.max_steps=2000000 run.dir="$work/cancelled" >out 2>&1 || code=$?
expect "cancelled: three jobs are submitted" 0 "chain: 3 jobs"
first=$(head -n 1 "$work/cancelled/chains/1/jobs" | cut -d' ' -f1)
until [ -e "$work/cancelled/checkpoints/latest" ] || [ -z "$(squeue -h)" ]; do sleep 0.5; done
scancel --signal=KILL --full "$first"
wait_second() { for _ in $(seq 120); do has "$work/cancelled/chains/1/record" "start $((first + 1)) " && return; sleep 0.5; done; return 1; }
check "... the one after a killed job goes on from its checkpoint" wait_second
check "... which is not step 0" matches "$work/cancelled/chains/1/record" "^start $((first + 1)) [1-9]"
command="chain.sh --cancel" code=0
submit --cancel "$work/cancelled" >out 2>&1 || code=$?
expect "--cancel takes the rest back" 0
check "... and nothing is left in the queue" slurm_wait 60

# No other rank sees it die, as on another node (no shared memory); srun alone would let the others
# wait for KillWait, 30 s here.
command="a rank that dies" code=0 began=$(now_ms)
(cd "$root" && timeout 60 salloc -n 2 jobs/launch "$choir" train "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/died" \
  parallel.transport=mpi parallel.timeout=100 eval.interval=0 fault.enable=true fault.kill_rank=1 fault.kill_step=10) >out 2>&1 || code=$?
took=$(($(now_ms) - began))
expect "a rank that dies under srun" 137 "fault: rank 1 is killed" "task 1: Killed"
in_time "a rank that dies takes the others with it in 11 s" "$took" 11000

# Without PMIx Debian's Open MPI does not start under srun, and the message names the cause.
command="srun --mpi=pmi2" code=0
(cd "$root" && timeout 60 srun --mpi=pmi2 -n 2 "$choir" train "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/pmi2") >out 2>&1 || code=$?
check "srun --mpi=pmi2 does not start Open MPI (exit code $code), hence PMIx" test "$code" != 0
# A program other than a training gets all ranks of the allocation, too.
command="salloc jobs/launch" code=0
(cd "$root" && timeout 60 salloc -n 2 jobs/launch "$choir" doctor --folder "$work") >out 2>&1 || code=$?
expect "jobs/launch in an allocation" 0 "\$ srun -n 2" "2 processes, one world" "use jobs/generic.slurm"

# A sweep as a job: each of its runs is a step of the one allocation.
command="sbatch jobs/scaling.slurm" code=0
(cd "$root" && CHOIR=$choir SCALING_WORK=$work/sweeps sbatch --nodes=1 --time=5 --output="$work/sweep.out" jobs/scaling.slurm --strong \
  --ranks "1 2" --global 4 --repeats 1 --seconds 0.1 --warmup 0 --no-plots --name job --results "$work" "$debug" \
  "data.train=[\"$work/text.txt\"]") >out 2>&1 || code=$?
expect "jobs/scaling.slurm is submitted" 0 "Submitted batch job"
check "... it ends" slurm_wait 120
cat sweep.out >out
expect "... with every row" 0 "VALID: 2 of 2 rows"
check "... which name the job and srun's line" eval 'grep -q "srun -n 2" "$work"/*-scaling-job.csv'
