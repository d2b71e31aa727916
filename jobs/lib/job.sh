# shellcheck shell=bash disable=SC2034,SC2154,SC2153  # nodes, ranks, line ... are of the files sourced here
# Functions of all job files, which themselves only contain the requests to the batch system. Source
# this file in the root of choir:
#   job [DECK [key=value...]]       $DECK and $OVERRIDES (words) where the batch system passes no arguments
#   CHOIR     the program, build/choir       RANKS_PER_NODE, OMP_NUM_THREADS      instead of what the site says
#   STAGE     see lib/storage.sh             PROFILER    words put before the program, as "nsys profile -o x"
#             nsys profile --capture-range=cudaProfilerApi sees the steps of train.profile=k:l, and no others
#   --dry-run as first word, or DRY_RUN set: checks the deck for the ranks of the job, prints the line, and starts
#             nothing. Outside a job, nodes and ranks are those that the job file requests (#SBATCH, #PBS), or the
#             words behind it: -N or --nodes, --ntasks-per-node, --gpus-per-node, as in the line of sbatch
#   WALLTIME  of the job, where the batch system does not say    SIGNAL_LEAD, SIGNAL_AFTER    see below
jobs=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for file in launch.sh lib/place.sh lib/overrides.sh lib/chain.sh lib/deadline.sh lib/storage.sh; do
  # shellcheck source=/dev/null
  . "$jobs/$file"
done
# shellcheck source=/dev/null
. "$jobs/sites/$site.sh"

# The trap is set as early as possible, because an untrapped SIGUSR1 ends this script.
signalled=""
trap 'signalled=yes' USR1

job_fail() { echo "job: $2" >&2; job_exit "$1"; }
job_exit() {  # job_exit CODE
  storage_unstage
  [ -z "${CHOIR_CHAIN:-}" ] || chain_end "$job_id" "$1"
  exit "$1"
}

# A setting with a wrong value must not pass for one that is not set.
job_settings() {
  local name
  [ -z "${WALLTIME:-}" ] || [ -n "$(deadline_seconds "$WALLTIME")" ] || {
    echo "job: WALLTIME is '$WALLTIME', not HH:MM:SS" >&2
    exit 2
  }
  for name in SIGNAL_LEAD SIGNAL_AFTER; do
    [[ ${!name:-0} =~ ^[0-9]+$ ]] || { echo "job: $name is '${!name}', not a number of seconds" >&2; exit 2; }
  done
}

# The value of a key, from the output of `choir train --check`.
job_says() { sed -nE "s/^$1=//p" <<<"$checked"; }

# Prints the deck and its errors, in one process, before all the nodes are started.
job_read_deck() {
  if [ -n "${CHOIR_CHAIN:-}" ]; then
    # shellcheck source=/dev/null
    . "$CHOIR_CHAIN/arguments" || { echo "job: $CHOIR_CHAIN is no chain" >&2; exit 2; }
    chain_begin "$job_id"
  fi
  if [ ! -f "$CHOIR" ] || [ ! -x "$CHOIR" ]; then
    job_fail 2 "$CHOIR is no program. Submit from the root of choir, after make; or set CHOIR"
  fi
  local code=0 where=() each=(--ranks-per-node "$per_node") card=${GPU_CARD-${site_card:-}}
  # Outside a job this machine is not a node of it, and its memory is not that of the ranks; that of a card is known.
  if [ -n "${place_header:-}" ]; then
    where=(--elsewhere)
    [ -z "$card" ] || where=(--gpus "$card")
    # Ranks alone do not say how many a node has: choir knows what is usual for the card.
    if [ -n "$card" ] && [ -n "${RANKS:-}" ] && [ -z "${RANKS_PER_NODE:-}" ] && [ "$(place_gpus)" -eq 0 ]; then each=(); fi
  fi
  checked=$(check_deck "$CHOIR" --ranks "$ranks" ${each[@]+"${each[@]}"} ${where[@]+"${where[@]}"}) || code=$?
  if [ "$code" -ne 0 ]; then
    local how=""
    [ -z "${dry:-}" ] || how="; settings stand behind the deck: bash $0 --dry-run $deck KEY=VALUE"
    job_fail "$code" "the deck or what it names is refused: nothing is started$how"
  fi
  if [ -n "$(job_says ranks_per_node)" ]; then
    RANKS_PER_NODE=$(job_says ranks_per_node)
    place_geometry
  fi
  run_dir=$(job_says run.dir)
}

# The program's own clock (run.walltime) knows the time of a step, an evaluation and a save, and has
# precedence if they are slow. It begins when the ranks have started; the signal is the last call in
# the time of the job. SLURM sends it by itself (#SBATCH --signal=B:USR1@SECONDS), also if the time
# of the job was changed; PBS cannot, so a timer here does.
job_deadline() {
  local left margin asked
  left=$(deadline_left)
  [ -n "$left" ] || { echo "job: no end in sight: the batch system names no time"; return 0; }
  margin=$(deadline_margin "$left" "$(deadline_slowest_save "$run_dir")" "$(job_says run.walltime_margin)")
  asked=$(job_says run.walltime)
  if [ "$asked" -gt 0 ] && [ "$asked" -le "$left" ]; then :
  elif [ "$left" -gt 1 ] && [ "$margin" -gt 0 ]; then
    override "run.walltime=$left"
    override "run.walltime_margin=$margin"
  fi
  echo "job: $left s left; the last save begins $margin s before the end, or earlier if saves are slow"
  [ "$batch" != slurm ] || return 0
  local lead=${SIGNAL_LEAD:-$margin}
  { sleep $((left > lead ? left - lead : 0)) && kill -USR1 $$; } >/dev/null 2>&1 &
  timer=$!
}

# Waits until the launcher ends, through all signals; its exit code is the job's. A last call is
# forwarded to the launcher when the ranks had SIGNAL_AFTER seconds to start: programs die of
# SIGUSR1 until they handle it. When the batch system ends the job it sends SIGTERM, to this script or
# to all of its processes, and kills some seconds later: once the steps have begun, the ranks are
# asked to save within this time, as by jobs/launch. A run that did not save counts as killed.
job_run() {
  local code again forwarded="" asked="" ended="" began=$SECONDS after=${SIGNAL_AFTER:-10}
  trap 'launchers_asked TERM; ended=yes' TERM
  trap 'launchers_asked INT; ended=${ended:-no}' INT
  launchers_marks
  launchers_apart
  launchers_start "$@" </dev/null
  while :; do
    if [ -n "$signalled" ] && [ -z "$forwarded" ]; then
      while [ $((SECONDS - began)) -lt "$after" ] && kill -0 "$launcher" 2>/dev/null; do sleep 0.2; done
      kill -USR1 "$launcher" 2>/dev/null && echo "job: SIGUSR1: the time is almost up, asking the run to save"
      forwarded=yes
    fi
    code=0
    wait "$launcher" || code=$?
    kill -0 "$launcher" 2>/dev/null || break
  done
  if [ -n "$signalled$ended" ]; then  # it may have interrupted the wait that would have reported it
    again=0
    wait "$launcher" 2>/dev/null || again=$?
    [ "$again" = 127 ] || code=$again
  fi
  launchers_told
  [ ! -e "$CHOIR_SAVED_FILE" ] || code=75
  trap - USR1 TERM INT
  [ -z "${timer:-}" ] || { pkill -P "$timer"; kill "$timer"; } 2>/dev/null
  [ "$ended" != yes ] || [ "$code" = 75 ] || code=137  # MPICH's mpiexec then reports 0, too
  return "$code"
}

# The options of the sbatch line that a dry run understands behind --dry-run: sets option_nodes, option_tasks,
# option_gpus, and $options, the number of their words.
job_options() {  # job_options WORD...
  local name value dry_takes="takes -N, --nodes, --ntasks-per-node and --gpus-per-node, with numbers of 1 or more, and then the deck"
  options=0 option_nodes="" option_tasks="" option_gpus=""
  while [[ ${1:-} = -* ]]; do
    name=${1%%=*} value=${1#*=}
    if [ -z "$dry" ]; then job_fail 2 "$1: options of sbatch or qsub stand before the job file"; fi
    if [ "$name" = "$1" ]; then value=${2:-}; options=$((options + 1)); shift; fi
    options=$((options + 1))
    case $name:$value in
      *:*[!0-9]* | *: | *:0*) job_fail 2 "$name '$value': a dry run $dry_takes" ;;
      -N:* | --nodes:*) option_nodes=$value ;;
      --ntasks-per-node:*) option_tasks=$value ;;
      --gpus-per-node:*) option_gpus=$value ;;
      *) job_fail 2 "$name: a dry run $dry_takes" ;;
    esac
    shift
  done
}

job() {
  CHOIR=${CHOIR:-build/choir}
  job_id=${SLURM_JOB_ID:-${PBS_JOBID:-$$}}
  local dry=${DRY_RUN:-}
  if [ "${1:-}" = --dry-run ]; then dry=yes; shift; fi
  [ -z "$dry" ] || unset CHOIR_CHAIN
  job_options "$@"
  shift "$options"
  deck=${1:-${DECK:-inputs/gpt_quickstart.json}}
  [ $# -eq 0 ] || shift
  overrides=("$@")
  # shellcheck disable=SC2206  # words
  [ $# -gt 0 ] || overrides=(${OVERRIDES:-})
  job_settings
  if [ -n "$dry" ]; then
    place_read_header "$0"
    header_nodes=${option_nodes:-${header_nodes:-}} header_tasks=${option_tasks:-${header_tasks:-}}
    header_gpus=${option_gpus:-${header_gpus:-}} SLURM_GPUS_PER_NODE=${option_gpus:-${SLURM_GPUS_PER_NODE:-}}
  fi
  place_geometry
  site_environment
  place_geometry
  job_read_deck
  export OMP_NUM_THREADS=$threads
  place_say
  [ -z "${place_header:-}" ] || echo "job: not in a job: nodes and ranks are those that the header of $place_header requests; RANKS and RANKS_PER_NODE change them, as do --nodes, --ntasks-per-node and --gpus-per-node behind --dry-run"
  if [ -n "$dry" ]; then
    site_line "$ranks" "$per_node" "$threads" || exit
    # shellcheck disable=SC2206
    line+=(${PROFILER:-} "$CHOIR" train "$deck" ${overrides[@]+"${overrides[@]}"})
    launch_show "${line[@]}"
    sed -n 's/^memory: /job: memory: /p' <<<"$checked"
    echo "job: a dry run: the deck passed its check, and nothing was started"
    exit 0
  fi
  storage_stripe "$run_dir" || job_fail 6 "$run_dir cannot be written"
  storage_stage || job_exit $?
  job_deadline
  { site_line "$ranks" "$per_node" "$threads" && launchers_have; } || job_exit $?
  # shellcheck disable=SC2206
  local command=("${line[@]}" ${PROFILER:-} "$CHOIR" train "$deck" ${overrides[@]+"${overrides[@]}"})
  launch_show "${command[@]}"
  local code=0
  job_run "${command[@]}" || code=$?
  # mpiexec of Open MPI ends with 205 when a node is gone, together with all processes that were
  # killed there.
  [ "$code" != 205 ] || { echo "job: mpiexec lost a node and ended with exit code 205"; code=137; }
  # That of MPICH before 4.1 forgets how ranks ended if it forwarded a signal to them.
  if [ "$code" = 0 ] && tail -n 1 "$run_dir/log.txt" 2>/dev/null | grep -q '^run the same command again'; then code=75; fi
  echo "job: exit code $code$(job_meaning "$code")"
  job_exit "$code"
}

job_meaning() {
  local again="; submit the same again to continue from the last checkpoint"
  [ -z "${CHOIR_CHAIN:-}" ] || again=""
  case $1 in
    0) echo ": done" ;;
    75) echo ": saved$again" ;;
    2) echo ": the deck" ;;
    3) echo ": the data" ;;
    4) echo ": a number that is none" ;;
    5) echo ": communication$again" ;;
    6) echo ": storage" ;;
    137) echo ": killed (by the batch system, or for want of memory)$again" ;;
  esac
}
