#!/usr/bin/env bash
# jobs/: the launcher lines of the sites, and chains of jobs. The batch system here is a stand-in
# (lib/pbs_stand_in.sh); long/slurm.sh uses a real SLURM.
. "$(dirname "$0")/lib/common.sh"
. "$root/test/run/lib/pbs_stand_in.sh"
cd "$root" || exit 1  # where jobs are submitted
export CHOIR=$choir
out=$work/out
try() {  # try COMMAND...: sets code; out
  command="$*" code=0
  timeout $((limit * patience)) "$@" >"$out" 2>&1 </dev/null || code=$?
}
look() {  # check, with the path of its log
  cd "$work" || exit 1
  check "$@"
  cd "$root" || exit 1
}
words() {  # expect, with the path of out
  cd "$work" || exit 1
  expect "$@"
  cd "$root" || exit 1
}

# --- the scripts themselves ---------------------------------------------------------------------------------------
scripts=("$root"/jobs/{*.sh,*.pbs,*.slurm,launch,lib/*.sh,sites/*.sh})
parse() { for script in "${scripts[@]}"; do bash -n "$script" || return 1; done; }
clean() { (cd "$root" && shellcheck -x -P SCRIPTDIR "${scripts[@]}"); }
look "every script of jobs/ is bash" parse
if command -v shellcheck >/dev/null; then
  look "... and shellcheck has nothing to say" clean
else skip "... and shellcheck has nothing to say" "shellcheck is not installed"; fi

# --- the launcher lines of each site for two of its nodes, by hand from their documentation ---
module() { :; }
export -f module
printf '%s\n' a b >"$work/two_nodes"
printf '%s\n' a a a b b b >"$work/three_each"
site() { try env -u OMP_NUM_THREADS "$@" jobs/launch --dry-run "$choir" doctor; }
site PBS_NODEFILE="$work/two_nodes" PBS_O_HOST=polaris-login-01.hsn.cm.polaris.alcf.anl.gov
words "Polaris: PALS, cores beside the GPU" 0 \
  "\$ mpiexec -n 8 --ppn 4 --depth 8 --cpu-bind list:24-31:16-23:8-15:0-7 --envall --line-buffer $choir doctor"
site PBS_NODEFILE="$work/two_nodes" PBS_O_HOST=aurora-uan-0010.hostmgmt.cm.aurora.alcf.anl.gov
words "Aurora: processors, a socket for each rank" 0 \
  "\$ mpiexec -n 4 --ppn 2 --depth 51 --cpu-bind list:1-51:53-103 --envall --line-buffer $choir doctor"
site NERSC_HOST=perlmutter SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=2
words "Perlmutter: srun, all GPUs of a node visible" 0 \
  "\$ srun -n 8 --ntasks-per-node 4 --cpus-per-task 32 --cpu-bind cores --kill-on-bad-exit=1 --mpi=cray_shasta --gpus-per-node=4 --gpu-bind=none $choir doctor"
site SITE=generic LAUNCHER=hydra PBS_NODEFILE="$work/three_each" PBS_JOBID=1
words "MPICH: what PBS was asked for" 0 "\$ mpiexec -n 6 -ppn 3 -bind-to none -envall $choir doctor"
site SITE=generic LAUNCHER=openmpi PBS_NODEFILE="$work/three_each" OMP_NUM_THREADS=1000 NCCL_DEBUG=WARN
words "Open MPI: hosts, variables; no binding where there are too few cores" 0 \
  "\$ mpiexec -n 6 --hostfile $work/three_each --map-by ppr:3:node --bind-to none" "-x NCCL_DEBUG" "-x OMP_NUM_THREADS"
site SITE=generic LAUNCHER=srun SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=3 SLURM_TASKS_PER_NODE="1(x2),2" SLURM_JOB_CPUS_PER_NODE="64(x3)"
words "SLURM: nodes, tasks, an equal share of the cores" 0 "\$ srun -n 6 --ntasks-per-node 2 --cpus-per-task 32 "
site SITE=generic LAUNCHER=srun SRUN_MPI=pmix_v4 SLURM_JOB_ID=1
words "... PMIx sees by itself that a rank has died" 0 " --kill-on-bad-exit=0 --wait=60 --mpi=pmix_v4 "
site SITE=generic LAUNCHER=srun SRUN_MPI=pmi2 SLURM_JOB_ID=1
words "... others do not" 0 " --kill-on-bad-exit=1 --mpi=pmi2 "
if ! command -v srun >/dev/null; then
  site SITE=generic SLURM_JOB_ID=1 SLURM_NTASKS=6 SLURM_JOB_NUM_NODES=2
  words "... without srun: the true reason, and the tasks of the job" 0 "srun is not on the PATH: taking mpiexec" "mpiexec -n 6 "
  site SITE=generic SLURM_JOB_ID=1
  words "... whose number of tasks nobody knows" 0 "this job names no number of tasks (SLURM_NTASKS): taking 2 ranks a node; jobs/launch -n N"
else skip "... without srun" "srun is on the PATH"; fi
site MPIEXEC=mpiexec
words "a laptop" 0 "mpiexec -n "
look "... its line can be typed" env -i PATH="$PATH" HOME="$HOME" sh -c "$(sed -n 's/^\$ //p' <<<"$out" | sed "s|$choir doctor|true|")"
# A terminal of its own: messages of the launcher about an exit code of ours are left out, those
# that it alone has are not.
if command -v script >/dev/null && mpiexec --version | grep -q "Open MPI\|OpenRTE"; then
  # A terminal outlives the programs that run on it.
  on_terminal() { try script -qefc "SITE=local jobs/launch -n 2 $*; code=\$?; sleep 1; exit \$code" /dev/null; }
  on_terminal "$choir" train inputs/debug.json batch_size=3
  words "a refused deck on a terminal" 2 "unknown key 'batch_size'"
  look "... without the launcher's notices" lacks "$out" "Exit code"
  on_terminal "sh -c 'exit 9'"
  words "an exit code that is not ours is that of the launcher" 9
else skip "the launcher on a terminal" "it takes script(1) and Open MPI"; fi
# The notice of Open MPI about an exit code (it is not printed every time) is read from a pipe.
dashes=$(printf '%.0s-' {1..74})
notice() { printf '%s\n' "before" "$dashes" "mpiexec detected that one or more processes exited" "" "  Exit code:    $1" "$dashes" "behind"; }
for code_told in 9 2; do notice $code_told | jobs/lib/own_exit_codes.sh >"$work/told_$code_told"; done
look "an exit code that is not ours is told" cmp "$work/told_9" <(notice 9)
{ printf '%s\n' "$dashes" "mpiexec noticed that process rank 1 with PID 0 on node n7 exited on signal 9 (Killed)." "$dashes"; } |
  jobs/lib/own_exit_codes.sh >"$work/told_death"
look "... a rank that was killed is named in a line of ours" has "$work/told_death" "choir: the process of rank 1 on n7 was killed by signal 9"
look "... one of ours is not" cmp "$work/told_2" <(printf '%s\n' before behind)
# The same without a terminal, where nothing is lost: launch waits for what is written.
if mpiexec --version | grep -q "Open MPI\|OpenRTE"; then
  try env SITE=local jobs/launch -n 2 "$choir" train inputs/debug.json batch_size=3
  words "a refused deck in a file" 2 "unknown key 'batch_size'"
  look "... without the launcher's notices" eval '! grep -q -e "-----" -e "Primary job" "$out"'
  try env SITE=local jobs/launch -n 2 sh -c '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || kill -9 $$; sleep 5'
  words "the exit code of a killed rank, with its causes" 137 "launch: exit code 137: a rank was killed" "want of memory"
  try env SITE=local jobs/launch -n 2 sh -c 'exit 75'
  words "the exit code is that of the ranks" 75
  look "... which is all that is told" test "$(grep -c . "$out")" = 1
fi
site SITE=moon
words "a site that is not there" 2 "SITE is 'moon'" "Legal: " " perlmutter, polaris"
site SITE=generic LAUNCHER=prun
words "a launcher that is not there" 2 "LAUNCHER is 'prun': srun, openmpi, pals or hydra"
try jobs/launch -n 0 "$choir"
words "no ranks" 2 "-n takes a number of 1 or more, not '0'"
try jobs/launch -n 2 "$choir" train --check "$debug" "data.train=[\"$work/text.txt\"]"
words "it launches, too" 0 "mpiexec -n 2 $choir train --check" "run.dir=runs/debug" "deck OK"
try jobs/launch -np 2 "$choir" doctor
words "mpiexec's own -np" 2 "-np is -n here: jobs/launch -n 2 PROGRAM"
try jobs/launch -n 2 "$choir" --version
look "a version is printed once" test "$(grep -c "^choir " "$out")" = 1
try jobs/launch -n 2 "$choir" plan --help
look "... and help" test "$(grep -c "^Usage" "$out")" -le 1
try jobs/local.sh --help
words "the help of local.sh" 0 "RANKS=4 sets the number of ranks"
try jobs/launch --help
words "the help of launch" 0 "  -r  ranks on each node" "  -t  threads of each rank" "SITE=NAME"
try jobs/interactive.sh -p debug
words "a partition" 2 "-p is -q here" "-q debug"
try jobs/launch -n 2 sh -c 'echo saved >"$CHOIR_SAVED_FILE"; exit 1'
words "ranks that saved although mpiexec ends with 1" 75
try env CHOIR_SAVED_FILE="$work/mark" "$choir" train "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/saved" \
  fault.enable=true fault.stop_step=2
words "a run that is saved" 75 "run the same command again to continue"
look "... leaves the mark that jobs/launch asks for" test -s "$work/mark"
cd "$work" || exit 1
CHOIR_SAVED_FILE=$work/no_mark run_broken save-unmarked 0 train "$debug" "${small[@]}" run.dir=unmarked fault.enable=true fault.stop_step=2
check "... a program that leaves none is noticed" absent "$work/no_mark"
cd "$root" || exit 1
try jobs/launch -r
words "a word that is missing" 2 "-r takes a number of 1 or more"
try env MPIEXEC=no/mpiexec jobs/launch -n 2 "$choir" doctor
words "no launcher" 2 "no/mpiexec is not on the PATH: load the module of the MPI"
try jobs/launch -n 2 inputs
words "a folder is no program" 2 "inputs is no program"
site PBS_NODEFILE=/dev/null
words "a job without nodes" 2 "PBS_NODEFILE is '/dev/null', and lists no nodes"
for wrong in RANKS=0 RANKS_PER_NODE=two OMP_NUM_THREADS=1.5 WALLTIME=noon SIGNAL_LEAD=1m; do
  try env "$wrong" jobs/local.sh "$debug"
  words "$wrong" 2 "${wrong%=*} is '${wrong#*=}'"
done
try env -C "$work" bash "$root/jobs/generic.pbs" "$debug"
words "a job from another folder" 2 "submit this in the root of choir, not in $work"
try env CHOIR_GPU_ORDER="3 2 1 0" PALS_LOCAL_RANKID=1 jobs/lib/gpu_affinity.sh printenv CUDA_VISIBLE_DEVICES
words "a GPU for a program that does not choose" 0 "LOCAL_RANK= 1" "gpu= 2"

try env NERSC_HOST=perlmutter jobs/interactive.sh -N 2 -A m1234_g --dry-run
words "a node for debugging, Perlmutter" 0 "\$ salloc --nodes=2 --time=01:00:00 --constraint=gpu --qos=interactive --gpus-per-node=4 --account=m1234_g"
try jobs/interactive.sh -N
words "... a word that is missing" 2 "interactive.sh [-N NODES]"
if ! command -v salloc >/dev/null && ! command -v qsub >/dev/null; then
  try jobs/interactive.sh -A P --dry-run
  words "... where there is no batch system" 0 "on SLURM:  \$ salloc --nodes=1 --time=01:00:00 --account=P" \
    "on PBS:    \$ qsub -I -l select=1 -l walltime=01:00:00 -A P"
fi
# Dry runs: the deck is checked, the lines are printed, nothing is written.
try jobs/chain.sh -n 2 --dry-run -o --time=02:00:00 jobs/generic.slurm "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/rehearsed"
words "the dry run of a chain" 0 "\$ sbatch --parsable --export=ALL,CHOIR_CHAIN=$work/rehearsed/chains/NEW --time=02:00:00 jobs/generic.slurm" \
  "--dependency=afterany:ID_1" "bash jobs/generic.slurm --dry-run $debug 'data.train=[\"$work/text.txt\"]' 'run.dir=$work/rehearsed' prints"
look "... writes nothing" absent "$work/rehearsed/chains"
if command -v script >/dev/null; then
  echo "cd '$root' && jobs/chain.sh -n 2 --dry-run jobs/generic.slurm '$debug' 'data.train=[\"$work/text.txt\"]' run.dir='$work/rehearsed'" >"$work/chain_80.sh"
  script -qec "stty cols 80; bash '$work/chain_80.sh'" "$work/screen" >/dev/null </dev/null
  look "... fits a terminal" awk '/^Script / { next } { sub(/\r$/, ""); line = $0; sub(/^ */, ""); sub(/ \\$/, ""); ++n; if (length(line) > 80 && / /) { print line; bad = 1 } } END { exit bad || n < 4 }' screen
fi
try jobs/chain.sh -n 2 --dry-run jobs/generic.slurm "$debug" model.n_layers=3
words "... of a deck that is refused" 2 "is 'model.n_layer' here"
try env SITE=generic bash jobs/generic.slurm --dry-run "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/rehearsed"
words "the dry run of a job" 0 " $choir train $debug" "job: a dry run: the deck passed its check, and nothing was started"
words "... on the nodes that the job file requests" 0 "BATCH_SYSTEM= slurm NUM_OF_NODES= 1 TOTAL_NUM_RANKS= 2 RANKS_PER_NODE= 2" \
  "\$ srun -n 2 --ntasks-per-node 2 " "those that the header of jobs/generic.slurm requests"
look "... starts nothing" absent "$work/rehearsed/log.txt"
try env SITE=generic DECK="$debug" OVERRIDES="data.train=gone.txt" bash jobs/polaris.pbs --dry-run
words "... of data that are not there" 3 "gone.txt" "settings stand behind the deck: bash jobs/polaris.pbs --dry-run $debug KEY=VALUE"
try env SITE=generic RANKS=3 bash jobs/generic.slurm --dry-run "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/rehearsed" parallel.tensor=2
words "... of ranks that the deck does not divide" 2 "3 ranks cannot be divided by parallel.tensor 2" "nothing is started"
try env SITE=generic RANKS=16 RANKS_PER_NODE=4 bash jobs/generic.slurm --dry-run "$debug" "data.train=[\"$work/text.txt\"]" \
  run.dir="$work/rehearsed" model.n_layer=96 model.n_embd=12288 model.n_head=96 train.global_batch_size=32
words "... of a model that is too large for this machine" 0 "job: memory: " "on which these ranks do not run" "nothing was started"
try env SITE=generic RANKS=16 RANKS_PER_NODE=4 GPU_CARD=H100-80GB bash jobs/generic.slurm --dry-run "$debug" "data.train=[\"$work/text.txt\"]" \
  run.dir="$work/rehearsed" model.n_layer=96 model.n_embd=12288 model.n_head=96 train.global_batch_size=32
words "... and too large for the GPU of the job" 2 "out of memory: rank 0 of dp=16" "and one H100 80 GB has 76.8 GiB for it" "nothing is started"
planned=("$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/rehearsed" train.global_batch_size=64)
try env SITE=generic RANKS=32 GPU_CARD=A100-40GB bash jobs/generic.slurm --dry-run "${planned[@]}"
words "... on the usual nodes of a GPU" 0 "NUM_OF_NODES= 4 TOTAL_NUM_RANKS= 32 RANKS_PER_NODE= 8" "srun -n 32 --ntasks-per-node 8 " \
  "on 4 nodes of 8 (assumed)"
try env SITE=generic bash jobs/generic.slurm --dry-run --nodes=4 --ntasks-per-node 8 --gpus-per-node=8 "${planned[@]}"
words "... with the options of sbatch" 0 "NUM_OF_NODES= 4 TOTAL_NUM_RANKS= 32 RANKS_PER_NODE= 8" "--gpus-per-node=8 $choir train $debug"
try env SITE=generic bash jobs/generic.slurm --dry-run --partition=gpu "${planned[@]}"
words "... of which it knows four" 2 "takes -N, --nodes, --ntasks-per-node and --gpus-per-node"
try jobs/launch -n 2 -t 3 --dry-run "$choir" doctor
words "the line has the threads that were asked for" 0 "\$ OMP_NUM_THREADS=3 "
try bash jobs/perlmutter.slurm --dry-run "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/rehearsed"
words "... for the GPU of a site" 0 "job: memory: " "that one A100 40 GB has for it" "nothing was started"
if ! command -v module >/dev/null; then words "... whose modules are not on this machine" 0 "launch: this machine has no modules: 'module load PrgEnv-gnu "; fi
try env SITE=generic bash jobs/generic.pbs --dry-run "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/rehearsed"
words "... of PBS" 0 "BATCH_SYSTEM= pbs NUM_OF_NODES= 1 TOTAL_NUM_RANKS= 4" "mpiexec -n 4 "
try env SITE=generic bash jobs/scaling.slurm --dry-run --weak "$debug"
words "... of a sweep" 0 "NUM_OF_NODES= 2 TOTAL_NUM_RANKS= 4 RANKS_PER_NODE= 2" "the largest rows: \$ srun -n 4 " "nothing was started" \
  "  weak     dp                4            2             8"
if ! command -v salloc >/dev/null; then
  try jobs/interactive.sh -t 00:30:00 -q debug --dry-run
  words "... and PBS" 0 "\$ qsub -I -l select=1 -q debug -l walltime=00:30:00"
else skip "... and PBS" "salloc is on the PATH"; fi

# --- a sweep as a job -------------------------------------------------------------------------------------------------
try qsub -v SCALING_WORK="$work/sweeps",DECK="$debug",SWEEP="--strong --ranks 1 --global 4 --repeats 1 --seconds 0.1 --warmup 0 --no-plots --name job --results $work",OVERRIDES="data.train=[\"$work/text.txt\"]" jobs/scaling.pbs
cd "$work" && pbs_wait 50; code=$codes
cd "$root" || exit 1
words "jobs/scaling.pbs: a sweep in one allocation" 0 "NUM_OF_NODES= 1 TOTAL_NUM_RANKS= 2" "bench/scaling.sh --strong" "VALID: 1 of 1 rows"
look "... its rows name the job and the launcher's line" eval 'grep -q "stand-in.*--hostfile" "$work"/*-scaling-job.csv'

# --- chains ---------------------------------------------------------------------------------------------------------
deck=("$debug" "data.train=[\"$work/text.txt\"]" optimizer.decay_steps=20 log.interval=100
      eval.interval=0 checkpoint.interval=1000000)
endless=train.max_steps=2000000
chain() { try jobs/chain.sh "$@"; }
pbs() {  # pbs SECONDS: lets the jobs run; then out has their output
  cd "$work" || exit 1
  pbs_wait "$1"
  code=$codes
  cd "$root" || exit 1
}

# Both jobs end before the first checkpoint interval, the first by the program's clock, the second
# by the last call of the batch system. Together they leave the same bits as one long run.
SIGNAL_LEAD=0 chain -n 1 -o -l -o walltime=00:00:08 jobs/generic.pbs "${deck[@]}" $endless run.dir="$work/run"
words "a chain is submitted" 0 "chain: 1 jobs (1.stand-in) continue $work/run, from step 0"
pbs 20
words "the walltime: saved in time" 75 "NUM_OF_NODES= 1 TOTAL_NUM_RANKS= 2 RANKS_PER_NODE= 2" \
  "--hostfile" "stopping after step" "walltime of" "the next job goes on from there"
SIGNAL_AFTER=1 SIGNAL_LEAD=5 chain -n 1 -o -l -o walltime=00:00:08 jobs/generic.pbs "${deck[@]}" $endless run.dir="$work/run" run.walltime=8 \
  run.walltime_margin=1
pbs 20
words "the signal: saved in time" 75 "goes on at step" "SIGUSR1: the time is almost up" "resumed from" ": SIGUSR1" \
  "exit code 75"
step=$(readlink "$work/run/checkpoints/latest" | sed 's/^step_0*//')
common_losses() {  # at steps that both logged; there must be some
  join <(losses "$1" | sort) <(losses "$2" | sort) >common.txt
  [ "$(wc -l <common.txt)" -ge 2 ] && awk '$2 != $3 { bad = 1 } END { exit bad }' common.txt
}
cd "$work" || exit 1
run 2 train "${deck[@]}" run.dir=straight train.max_steps="${step:-1}"
check "... together the bits of one run of $step steps" same_tensors straight run
check "... and its losses" common_losses straight run
cd "$root" || exit 1

short=("$debug" "data.train=[\"$work/text.txt\"]" eval.interval=0)
chain -n 4 jobs/generic.pbs "${short[@]}" run.dir="$work/done" fault.enable=true fault.stop_step=7
pbs 20
words "after 75 the next goes on, after 0 the rest end at once" "75 0 0 0" "goes on at step 7" "the run is complete (step 20"
look "... without starting anything" test "$(grep -c 'NUM_OF_NODES' "$out")" = 2
printf '#!/bin/sh\nmpiexec "$@"\nexit 0\n' >"$work/forgets"
chmod +x "$work/forgets"
MPIEXEC=$work/forgets chain -n 2 jobs/generic.pbs "${short[@]}" run.dir="$work/forgotten" fault.enable=true fault.stop_step=7
pbs 20
words "... also where mpiexec forgets that ranks ended with 75" "75 0" "exit code 75: saved" "goes on at step 7"

chain -n 3 jobs/generic.pbs "${short[@]}" run.dir="$work/crash" checkpoint.interval=4 checkpoint.async=false fault.enable=true fault.kill_rank=1 fault.kill_step=10
pbs 20
words "killed at one step again and again: the second made no progress" "137 137 137" "goes on at step 8" \
  "left no checkpoint after step 8: it made no progress" "Job 3.stand-in does nothing"
look "... the third started nothing" test "$(grep -c 'NUM_OF_NODES' "$out")" = 2
chain -n 2 jobs/generic.pbs "$debug" run.dir="$work/no_data" data.train=nowhere.txt
words "data that are not there" 3 "nowhere.txt"
look "... nothing was submitted" absent "$work/no_data"
cp "$work/text.txt" "$work/gone.txt"
chain -n 2 jobs/generic.pbs "$debug" run.dir="$work/no_data" "data.train=[\"$work/gone.txt\"]"
rm "$work/gone.txt"
pbs 20
words "what another job would not help" "3 3" "gone.txt" "ended with exit code 3, which another job would not help"

verdict() {  # verdict NAME EXPECTED STEP_NOW LINE...
  local name=$1 wanted=$2 now=$3
  shift 3
  printf '%s\n' "$@" >"$work/record"
  look "chain: $name" matches <(. "$root/jobs/lib/chain.sh"; chain_verdict "$work/record" "$now") "$wanted"
}
verdict "the first" '^go$' 0 ""
verdict "a rank threw, after a save" '^go$' 20 "start 1 10 - t" "end 1 5 20 t"
verdict "a rank threw, before one" '^5 job 1 .* made no progress' 10 "start 1 10 - t" "end 1 5 10 t"
verdict "killed with its script, after a save" '^go$' 20 "start 1 10 - t"
verdict "killed with its script, before one" '^137 job 1 .* no checkpoint after step 10' 10 "start 1 10 - t"
verdict "numbers that are none" '^4 job 2 ended with exit code 4' 30 "start 1 10 - t" "end 1 75 20 t" "start 2 20 - t" "end 2 4 30 t"
verdict "stopped stays stopped" '^6 why$' 40 "start 1 10 - t" "end 1 6 20 t" "stop 6 why" "start 3 20 - t"

# Refused before any job is submitted.
chain -n 2 jobs/generic.pbs "$debug" train.max_step=5
words "a wrong deck" 2 "train.max_step" "train.max_steps"
chain -n many jobs/generic.pbs "$debug"
words "not a number of jobs" 2 "-n takes the number of jobs, 1 or more, not 'many'"
for option in -n -o --status --cancel; do
  chain "$option"
  words "$option alone" 2 "$option takes a word more"
done
CHOIR=inputs chain -n 2 jobs/generic.pbs "$debug"
words "not a program" 2 "inputs is no program"
chain -n 2 jobs/launch.sh "$debug"
words "not a job file" 2 "ends neither in .slurm nor in .pbs"
chain -n 2 --random-seed jobs/generic.pbs "$debug" run.seed=3
words "two seeds" 2 "--random-seed and run.seed=3: one of them"
for name in 'a,b' "a'b" 'a\b'; do
  chain -n 2 jobs/generic.pbs "${short[@]}" run.dir="$work/$name"
  words "a path that the batch system would read, $name" 2 "commas, blanks and quotes"
done
chain -n 2 jobs/generic.pbs "${short[@]}" run.dir="$work/two"$'\n'"run.dir=$work/lines"
words "a path of two lines" 2 "run.dir = " "has a line end or another control character"
look "... nothing was submitted" absent "$PBS_STAND_IN/queue"

# The batch system accepts two jobs and no more.
PBS_STAND_IN_LIMIT=2 chain -n 3 jobs/generic.pbs "${short[@]}" run.dir="$work/half"
words "a queue that is full" 1 "stand-in: the queue is full" "job 3 of 3 was refused" "the 2 before it are submitted and will run; chain.sh --cancel $work/half"
chain --cancel "$work/half"
words "... --cancel takes them back" 0
look "... both" test "$(paste -sd' ' "$PBS_STAND_IN/deleted")" = "1.stand-in 2.stand-in"
pbs 20
PBS_STAND_IN_LIMIT=0 chain -n 3 jobs/generic.pbs "${short[@]}" run.dir="$work/none"
words "... for the first, too" 1 "job 1 of 3 was refused"
look "... which leaves no chain" test -z "$(ls "$work/none/chains")"

# A fresh seed for each job. The second half runs again on one rank, and with the tensor divided: if
# data-parallel ranks drew the same numbers, or tensor-parallel ones did not, the losses would
# differ.
chain -n 2 --random-seed jobs/generic.pbs "${short[@]}" run.dir="$work/fresh" fault.enable=true fault.stop_step=7 checkpoint.keep=0
pbs 20
words "--random-seed" "75 0" "with run.seed="
seeds=$(sed -nE 's/^start [^ ]+ [0-9]+ ([0-9]+) .*/\1/p' "$work/fresh/chains/1/record" | paste -sd' ')
look "... two seeds are recorded ($seeds)" eval '[ -n "${seeds#* }" ] && [ "${seeds% *}" != "${seeds#* }" ]'
look "... the run names the second" matches "$work/fresh/deck.json" "\"seed\": ${seeds#* }\\b"
cd "$work" || exit 1
again=(checkpoint.resume=fresh/checkpoints/step_00000007 "run.seed=${seeds#* }" checkpoint.allow_changes=run.seed)
run 1 train "${short[@]}" "${again[@]}" run.dir=one
run 2 train "${short[@]}" "${again[@]}" run.dir=tensor parallel.tensor=2
run 2 train "${short[@]}" checkpoint.resume=fresh/checkpoints/step_00000007 "run.seed=${seeds% *}" run.dir=other
grep '^{"step":' fresh/metrics.jsonl | sed -n '8,$p' >second.jsonl && mkdir -p second && mv second.jsonl second/metrics.jsonl
check "... one rank draws what two drew" close_losses second one 1e-5
check "... and so do two that share the tensors" close_losses second tensor 1e-5
check "... another seed draws something else" eval '! close_losses second other 1e-3'
cd "$root" || exit 1

# Stripes are set before the first write, and data are copied to the disk of the node.
cat >"$work/bin/lfs" <<'END'
#!/usr/bin/env bash
[ "$1" = getstripe ] || echo "$* of $(ls -A "${!#}" | wc -l) files" >>"$PBS_STAND_IN/lfs"
END
chmod +x "$work/bin/lfs"
mkdir -p "$work/disk" "$work/held"
tac "$work/text.txt" >"$work/held/text.txt"
touch -d "2 days ago" "$work/held/text.txt"
staged=(train.max_steps=2 eval.interval=2 eval.batches=1)
LOCAL_SCRATCH=$work/disk STAGE="data.train=$work/text.txt data.val=$work/held/text.txt" USER=me \
  chain -n 1 jobs/generic.pbs "$debug" "${staged[@]}" run.dir="$work/striped"
pbs 20
copy_of() { echo "$work/disk/choir-me/job-1_stand_in/$(printf %s "$1" | sha256sum | cut -c1-16)-$(basename "$1")"; }
words "data are copied to the disk of the node" 0 "$work/text.txt to $(copy_of "$work/text.txt") on 1 node" \
  "data.train=[\"$(copy_of "$work/text.txt")\"]" "data.val=[\"$(copy_of "$work/held/text.txt")\"]" \
  "on 8 servers in parts of 16M"
look "stripes are set while there is no file" has "$PBS_STAND_IN/lfs" \
  "setstripe -c 8 -S 16M $work/striped/checkpoints of 0 files"
look "... and the copies are removed at the end of the job" test -z "$(ls "$work/disk/choir-me")"
cd "$work" || exit 1
train 2 unstaged 'data.val=["held/text.txt"]' "${staged[@]}"
all_losses() { grep -oE '"(val_)?loss":[^,}]*' "$1/metrics.jsonl"; }
check "two files of one name: the losses of the files themselves" eval 'all_losses striped | grep val_ && same "all_losses striped" "all_losses unstaged"'
cd "$root" || exit 1

# stage_as JOB STAGE: prints the overrides that the job gets.
stage_as() (
  export USER=me
  # shellcheck disable=SC2034  # the files below read these
  job_id=$1 STAGE=$2 site=generic nodes=1 jobs=$root/jobs overrides=()
  . "$jobs/lib/overrides.sh"
  . "$jobs/lib/storage.sh"
  site_scratch() { echo "$work/disk"; }
  # shellcheck disable=SC2034
  site_line() { line=(env); }
  storage_stage >&2 || exit
  printf '%s\n' "${overrides[@]}"
)
path_of() { sed -E 's/^[a-z.]+=\["(.*)"\]$/\1/' <<<"$1"; }  # path_of OVERRIDE
mkdir -p "$work/one/folder" "$work/two"
echo first >"$work/one/x" && echo other >"$work/two/x" && cp "$work/one/x" "$work/one/folder/"
of_a=$(path_of "$(stage_as a "data.train=$work/one/x")" 2>"$out")
echo newer >"$work/one/x"
of_b=$(path_of "$(stage_as b "data.train=$work/one/x")" 2>"$out")
look "two jobs on one node: each has its own copy" test "$(cat "$of_a" "$of_b" | paste -sd,)" = first,newer
echo older >"$work/one/x" && touch -d "2 days ago" "$work/one/x"
look "an older file of the same size replaces the copy" cmp "$(path_of "$(stage_as b "data.train=$work/one/x")")" "$work/one/x"
look "a folder" diff -r "$(path_of "$(stage_as b "data.train=$work/one/folder")")" "$work/one/folder"
echo twist >"$work/disk/choir-me/job-b/$(printf %s "$work/one/folder" | sha256sum | cut -c1-16)-folder/x"
look "... of which a file has changed" diff -r "$(path_of "$(stage_as b "data.train=$work/one/folder")")" "$work/one/folder"
look "two paths of one key are both in the list" matches <(stage_as b "data.train=$work/one/x data.train=$work/two/x") \
  '^data.train=\["[^"]*-x","[^"]*-x"\]$'
mkdir "$work/faulty"
cat >"$work/faulty/cp" <<'END'
#!/bin/sh
PATH=${PATH#*:} cp "$@" && for copy; do :; done && printf X | dd of="$copy" conv=notrunc status=none
END
chmod +x "$work/faulty/cp"
code=0
PATH=$work/faulty:$PATH stage_as c "data.train=$work/one/x" >"$out" 2>&1 || code=$?
words "a copy that differs from its source" 6 "differs from the source" "copying $work/one/x failed"
look "... is not left behind" test -z "$(ls "$work/disk/choir-me/job-c")"
LOCAL_SCRATCH=$work/disk STAGE="data.train=nowhere" chain -n 1 jobs/generic.pbs "${short[@]}" run.dir="$work/no_stage"
pbs 20
words "data to copy that are not there" 3 "STAGE: 'nowhere' does not exist"

# --- without a batch system ---------------------------------------------------------------------------------------
try env RANKS=1 WALLTIME=00:00:06 jobs/local.sh "${deck[@]}" $endless run.dir="$work/local"
words "jobs/local.sh stops in time" 75 "SITE= local BATCH_SYSTEM= none" "walltime of" "submit the same again"
seconds() { (batch=none; . "$root/jobs/lib/deadline.sh"; "$@"); }
look "times as batch systems write them" eval '[ "$(for t in 1-02:03:04 01:00:00 05:30 90 UNLIMITED; do
  seconds deadline_seconds $t; done | paste -sd,)" = 93784,3600,330,90 ]'
margins() {
  for given in "3600 - 60" "36000 - 60" "3600 100 60" "3600 10 60" "40 - 60" "3600 10 500"; do
    read -r left slowest asked <<<"$given"
    seconds deadline_margin "$left" "${slowest#-}" "$asked"
  done | paste -sd,
}
look "the margin: a tenth at first, two saves later, half of a short job, the deck's if that is more" \
  test "$(margins)" = 360,600,200,60,20,500
look "the slowest save that a log tells of" test "$(seconds deadline_slowest_save "$work/run")" -ge 1
