#!/usr/bin/env bash
# interactive.sh [-N NODES] [-t HH:MM:SS] [-A PROJECT] [-q QUEUE] [-o OPTION]... [--dry-run]: a shell on a node, for
# debugging, of whichever batch system there is. In it: jobs/launch build/choir ... Prints the line, and becomes it.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
nodes=1 time=01:00:00 project="" queue="" dry="" more=()
usage() { sed -n '2,3s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit "$1"; }
while [ $# -gt 0 ]; do
  case $1 in -N | -t | -A | -q | -o) [ $# -ge 2 ] || usage 2 >&2 ;; esac
  case $1 in
    -N) nodes=$2; shift 2 ;;
    -t) time=$2; shift 2 ;;
    -A) project=$2; shift 2 ;;
    -q) queue=$2; shift 2 ;;
    -o) more+=("$2"); shift 2 ;;
    --dry-run) dry=yes; shift ;;
    -h | --help) usage 0 ;;
    -p | --partition) echo "interactive.sh: $1 is -q here, for a partition of SLURM as for a queue of PBS: -q ${2:-NAME}" >&2; exit 2 ;;
    -n | -r) echo "interactive.sh: $1 is an option of jobs/launch; here -N is the number of nodes" >&2; exit 2 ;;
    *) echo "interactive.sh: unknown option $1" >&2; usage 2 >&2 ;;
  esac
done
cd "$here/.." || exit 1
slurm=(salloc --nodes="$nodes" --time="$time" ${project:+--account="$project"} ${queue:+--partition="$queue"})
pbs=(qsub -I -l "select=$nodes" ${queue:+-q "$queue"})
if [ "${NERSC_HOST:-}" = perlmutter ]; then
  line=(salloc --nodes="$nodes" --time="$time" --constraint=gpu --qos="${queue:-interactive}" --gpus-per-node=4
        ${project:+--account="$project"})
elif command -v salloc >/dev/null 2>&1; then
  line=("${slurm[@]}")
elif command -v qsub >/dev/null 2>&1; then
  case $(hostname -f 2>/dev/null || hostname) in
    *polaris*)
      line=(qsub -I -l "select=$nodes:system=polaris" -l filesystems=home:eagle -l place=scatter -q "${queue:-debug}") ;;
    *) line=("${pbs[@]}") ;;
  esac
  line+=(-l "walltime=$time" ${project:+-A "$project"})
elif [ -n "$dry" ]; then
  echo "neither salloc nor qsub is on the PATH of this machine; the line would be"
  echo "on SLURM:  \$ ${slurm[*]}${more[*]+ ${more[*]}}"
  echo "on PBS:    \$ ${pbs[*]} -l walltime=$time${project:+ -A $project}${more[*]+ ${more[*]}}"
  exit 0
else
  echo "interactive.sh: neither salloc nor qsub is on the PATH: this machine is interactive already (jobs/launch)" >&2
  exit 2
fi
line+=(${more[@]+"${more[@]}"})
echo "\$ ${line[*]}"
[ -n "$dry" ] || exec "${line[@]}"
