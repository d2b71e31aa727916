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
  elif [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
  elif command -v nvidia-smi >/dev/null 2>&1; then nvidia-smi -L 2>/dev/null | grep -c '^GPU'
  else echo 0
  fi
}
place_cores() {
  local cores=${site_cores:-}
  [ -n "$cores" ] || cores=$(place_most "${SLURM_JOB_CPUS_PER_NODE:-}")
  echo "${cores:-$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 1)}"
}

place_geometry() {
  local asked="" gpus cores name
  for name in RANKS RANKS_PER_NODE OMP_NUM_THREADS; do
    [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] || { echo "$name is '${!name}': a number of 1 or more" >&2; exit 2; }
  done
  nodes=1
  case $batch in
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
  if [ "$batch" = slurm ] && [ -z "$asked${RANKS:-}${RANKS_PER_NODE:-}${place_told:-}" ] && [ "$gpus" -eq 0 ]; then
    place_told=yes
    echo "this job names no number of tasks (SLURM_NTASKS): taking $per_node ranks a node;" \
      "jobs/launch -n N, or RANKS=N, sets it" >&2
  fi
  [ -z "${RANKS:-}" ] || per_node=${RANKS_PER_NODE:-$(((RANKS + nodes - 1) / nodes))}
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
