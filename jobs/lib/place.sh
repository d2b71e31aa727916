# shellcheck shell=bash
# Finds the batch system, the site, the nodes and their cores. Source this file; it sets
#   batch     slurm | pbs | none: the batch system of this job
#   site      a file of jobs/sites: $SITE if it is set, else by the signs below, which `choir doctor` uses, too
# and place_geometry sets, from the resources of the job:
#   nodes     number of nodes
#   per_node  ranks on each: $RANKS_PER_NODE, else one a GPU, else what the batch system was asked for
#   ranks     on all
#   threads   of each rank: $OMP_NUM_THREADS, else an equal share of the cores
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Sites load modules. A dry run may be on a machine without them.
command -v module >/dev/null 2>&1 || module() { echo "launch: this machine has no modules: 'module $*' is left out" >&2; }

place_batch() {
  if [ -n "${SLURM_JOB_ID:-}" ]; then echo slurm
  elif [ -n "${PBS_NODEFILE:-}" ]; then echo pbs
  else echo none
  fi
}

place_site() {  # place_site BATCH
  if [ -n "${SITE:-}" ]; then echo "$SITE"; return; fi
  if [ "$1" = none ]; then echo local; return; fi
  [ "${NERSC_HOST:-}" != perlmutter ] || { echo perlmutter; return; }
  case $1:${PBS_O_HOST:-}:$(hostname) in
    pbs:*polaris*) echo polaris ;;
    pbs:*aurora*) echo aurora ;;
    *) echo generic ;;
  esac
}

# Parts of a job, written by SLURM as 4(x2),3: returns the largest.
place_most() { tr ',' '\n' <<<"$1" | sed 's/(.*//' | sort -n | tail -n 1; }

# The number of a resource per node: the site defines it, or this node is inspected.
place_gpus() {
  if [ -n "${site_gpus:-}" ]; then echo "$site_gpus"
  elif [ -n "${place_header:-}" ]; then echo "$header_gpus"
  elif [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
  elif command -v nvidia-smi >/dev/null 2>&1; then nvidia-smi -L 2>/dev/null | grep -c '^GPU'
  else echo 0
  fi
}
place_cores() {
  local cores=${site_cores:-}
  [ -n "$cores" ] || cores=${header_cores:-$(place_most "${SLURM_JOB_CPUS_PER_NODE:-}")}
  echo "${cores:-$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 1)}"
}

# For a dry run outside a job: takes nodes, tasks, cores and GPUs from the header of a job file, and sets $place_header
# to its name, so that the geometry is that of the job. Options of the sbatch or qsub line are not known here. Without
# a header nothing changes. Called after the file of the site was sourced.
place_read_header() {  # place_read_header JOB_FILE
  local value
  header_of() { sed -nE "s/^#(SBATCH|PBS) (.*[ :])?($1)[= ]?([^ :]*:)?([0-9]+)([ :].*)?$/\\5/p" "$2" 2>/dev/null | tail -n 1; }
  [ "$batch" = none ] || return 0
  if grep -q '^#SBATCH' "$1" 2>/dev/null; then
    batch=slurm
    header_nodes=$(header_of '--nodes|-N' "$1") header_tasks=$(header_of '--ntasks-per-node' "$1")
    header_gpus=$(header_of '--gpus-per-node|--gres' "$1") value=$(header_of '--cpus-per-task|-c' "$1")
    [ -z "$value" ] || header_cores=$((value * ${header_tasks:-1}))
    # The job will have srun, whether or not this machine has it.
    command -v srun >/dev/null 2>&1 || LAUNCHER=${LAUNCHER:-srun}
  elif grep -q '^#PBS' "$1" 2>/dev/null; then
    batch=pbs
    header_nodes=$(header_of select "$1") header_tasks=$(header_of mpiprocs "$1")
    header_gpus=$(header_of ngpus "$1") header_cores=$(header_of ncpus "$1")
    # shellcheck disable=SC2016  # the line shows the name: the file exists in the job only
    PBS_NODEFILE=${PBS_NODEFILE:-'$PBS_NODEFILE'}
  else return 0
  fi
  place_header=$1
  if [ "$site" = local ] && [ -z "${SITE:-}" ]; then
    site=generic
    # shellcheck source=/dev/null
    . "$here/sites/$site.sh"
  fi
  : "${header_nodes:=1}" "${header_tasks:=}" "${header_gpus:=0}" "${header_cores:=}"
}

place_geometry() {
  local asked="" gpus cores name
  for name in RANKS RANKS_PER_NODE OMP_NUM_THREADS; do
    [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] || { echo "$name is '${!name}': a number of 1 or more" >&2; exit 2; }
  done
  nodes=1
  case ${place_header:+header}$batch in
    header*) nodes=$header_nodes asked=$header_tasks ;;
    slurm)
      nodes=${SLURM_JOB_NUM_NODES:-1}
      asked=$(place_most "${SLURM_NTASKS_PER_NODE:-${SLURM_TASKS_PER_NODE:-}}")
      [ -n "$asked" ] || [ -z "${SLURM_NTASKS:-}" ] || asked=$(((SLURM_NTASKS + nodes - 1) / nodes)) ;;
    pbs)
      [ -s "$PBS_NODEFILE" ] || { echo "PBS_NODEFILE is '$PBS_NODEFILE', and lists no nodes: is this a job of PBS?" >&2; exit 2; }
      nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
      asked=$(($(wc -l <"$PBS_NODEFILE") / nodes)) ;;
  esac
  gpus=$(place_gpus)
  cores=$(place_cores)
  per_node=${RANKS_PER_NODE:-$gpus}
  [ "$per_node" -gt 0 ] || per_node=${asked:-$((cores < 2 ? 1 : 2))}
  if [ "$batch" = slurm ] && [ -z "${place_header:-}" ] && [ -z "$asked${RANKS:-}${RANKS_PER_NODE:-}${place_told:-}" ] && [ "$gpus" -eq 0 ]; then
    place_told=yes
    echo "this job names no number of tasks (SLURM_NTASKS): taking $per_node ranks a node;" \
      "jobs/launch -n N, or RANKS=N, sets it" >&2
  fi
  if [ -n "${RANKS:-}" ]; then
    if [ -n "${place_header:-}" ] && [ "$gpus" -gt 0 ]; then per_node=${RANKS_PER_NODE:-$((RANKS < gpus ? RANKS : gpus))}
    else per_node=${RANKS_PER_NODE:-$(((RANKS + nodes - 1) / nodes))}
    fi
    # A job that exists has its nodes; one that is planned requests as many as its ranks need.
    [ -z "${place_header:-}" ] || nodes=$(((RANKS + per_node - 1) / per_node))
  fi
  ranks=${RANKS:-$((nodes * per_node))}
  threads=${OMP_NUM_THREADS:-$((cores / per_node > 1 ? cores / per_node : 1))}
}

# The words for which an attendee of a tutorial looks.
place_say() {
  echo "SITE= $site BATCH_SYSTEM= $batch NUM_OF_NODES= $nodes TOTAL_NUM_RANKS= $ranks" \
    "RANKS_PER_NODE= $per_node THREADS_PER_RANK= $threads"
}

batch=$(place_batch)
site=$(place_site "$batch")
[ -f "$here/sites/$site.sh" ] || {
  echo "SITE is '$site': there is no $here/sites/$site.sh. Legal: $(cd "$here/sites" && echo *.sh | sed 's/\.sh//g; s/ /, /g')" >&2
  exit 2
}
