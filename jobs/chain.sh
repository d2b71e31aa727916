#!/usr/bin/env bash
# chain.sh -n JOBS [OPTION]... JOB DECK [key=value...]
# submits JOBS jobs that continue one run, each after the one before, whatever
# became of it (PBS and SLURM: afterany).
#   JOB            a job file, as jobs/generic.slurm or jobs/polaris.pbs
#   -o OPTION      handed to sbatch or qsub, as often as needed:
#                  -o --time=02:00:00, -o -A -o PROJECT
#   --dry-run      checks the deck, prints the lines that would be submitted, and
#                  submits nothing
#   --random-seed  every job draws a seed of its own, so data come in a new order
#                  each time; the record keeps it. Without this option, the run is
#                  bit by bit that of one long job.
# chain.sh --cancel RUN_DIR   cancels the remaining jobs of a run's newest chain
# chain.sh --status RUN_DIR   its record
# A job continues when the one before ended with 75 (saved), 5 (communication) or
# 137 (killed) and left a new checkpoint. After 0 the run is complete, and the
# remaining jobs end at once. After anything else, or no progress, they end at
# once with that exit code and say why.
jobs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { echo "chain: $*" >&2; exit 2; }
usage() { sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit "$1"; }
# shellcheck source=lib/chain.sh
. "$jobs/lib/chain.sh"
# shellcheck source=lib/overrides.sh
. "$jobs/lib/overrides.sh"

newest() {  # newest RUN_DIR: prints the folder of its newest chain
  local found
  found=$(find "${1:?}/chains" -mindepth 1 -maxdepth 1 -type d 2>/dev/null | sort -V | tail -n 1)
  [ -n "$found" ] || say "'$1' has no chain"
  echo "$found"
}
remove() { case $1 in *.slurm) scancel "$2" ;; *) qdel "$2" ;; esac; }
cancel() {  # cancel CHAIN: jobs that have ended no longer exist, which qdel and scancel report
  local id file
  while read -r id file; do remove "$file" "$id" || echo "chain: job $id: see above" >&2; done <"$1/jobs"
}

count="" random_seed=no dry="" options=()
while [ $# -gt 0 ]; do
  case $1 in
    -n | -o | --status | --cancel) [ $# -ge 2 ] || say "$1 takes a word more: see chain.sh --help" ;;
  esac
  case $1 in
    -n) count=$2; shift 2 ;;
    -o) options+=("$2"); shift 2 ;;
    --random-seed) random_seed=yes; shift ;;
    --dry-run) dry=yes; shift ;;
    --status) chain=$(newest "$2") || exit; cat "$chain/record"; exit ;;
    --cancel)
      chain=$(newest "$2") || exit
      echo "stop 1 cancelled by chain.sh --cancel" >>"$chain/record"
      cancel "$chain"
      exit 0 ;;
    -h | --help) usage 0 ;;
    -*) say "unknown option $1" ;;
    *) break ;;
  esac
done
[ $# -ge 2 ] || usage 2 >&2
[[ $count =~ ^[1-9][0-9]*$ ]] || say "-n takes the number of jobs, 1 or more, not '$count'"
[ "$count" -le 100 ] || say "-n $count: at most 100 jobs; continue with another chain"
job=$1 deck=$2
shift 2
overrides=("$@")
[ -f "$job" ] || say "'$job' is no job file; there are: $(cd "$jobs" && echo *.pbs *.slurm)"
case $job in
  *.slurm) submit="sbatch" ;;
  *.pbs) submit="qsub" ;;
  *) say "'$job' ends neither in .slurm nor in .pbs" ;;
esac
[ -n "$dry" ] || command -v "$submit" >/dev/null 2>&1 || say "$submit is not on the PATH: '$job' is for another batch system (choir doctor)"
if [ "$random_seed" = yes ]; then
  for word in ${overrides[@]+"${overrides[@]}"}; do
    case $word in run.seed=*) say "--random-seed and $word: one of them" ;; esac
  done
fi

# Errors of the deck are reported now, not when the first job has waited for a day.
choir=${CHOIR:-build/choir}
if [ ! -f "$choir" ] || [ ! -x "$choir" ]; then say "$choir is no program: make, and submit from the root of choir; or set CHOIR"; fi
checked=$(check_deck "$choir") || exit
run_dir=$(sed -n 's/^run\.dir=//p' <<<"$checked")
# A deck in another folder would be another run.
case $run_dir in /*) ;; *) run_dir=$PWD/$run_dir ;; esac
special="[,\"'\\\\[:space:]]"  # characters that qsub and sbatch interpret in the values of variables
# shellcheck disable=SC2254  # a pattern
case $run_dir in *$special*) say "run.dir is '$run_dir': qsub and sbatch would read its commas, blanks and quotes" ;; esac
# shellcheck disable=SC2254
case $submit:$choir in qsub:*$special*) say "CHOIR is '$choir': qsub would read its commas, blanks and quotes" ;; esac
override "run.dir=$run_dir"
number=1
# The line that submits a job after the one whose id is given; sets the array `line`.
submission() {  # submission CHAIN PREVIOUS
  if [ "$submit" = sbatch ]; then
    line=(sbatch --parsable --export="ALL,CHOIR_CHAIN=$1" ${2:+--dependency=afterany:"$2"})
  else
    line=(qsub -v "CHOIR_CHAIN=$1,CHOIR=$choir" ${2:+-W depend=afterany:"$2"})
  fi
  line+=(${options[@]+"${options[@]}"} "$job")
}
# tell TEXT [END]: prints a line, on a terminal in pieces of its width, each but the last with END.
tell() {
  local size=""
  [ -t 1 ] && { size=$(stty size <&3 2>/dev/null); } 3<&1
  if [ "${size#* }" -gt 0 ] 2>/dev/null; then
    awk -v most="${size#* }" -v end="${2:-}" '{
      line = $1
      for (i = 2; i <= NF; ++i)
        if (length(line " " $i end) > most) { print line end; line = "    " $i }
        else line = line " " $i
      print line }' <<<"$1"
  else
    echo "$1"
  fi
}
if [ -n "$dry" ]; then
  tell "chain: a dry run: these $count jobs would continue $run_dir, each submitted with the id of the one before"
  for ((index = 1; index <= count; ++index)); do
    submission "$run_dir/chains/NEW" "$([ "$index" = 1 ] || echo "ID_$((index - 1))")"
    tell "\$ ${line[*]}" " \\\\"
  done
  words="$deck${overrides[*]+ ${overrides[*]@Q}}"
  tell "chain: each runs $job with $words"
  tell "chain: bash $job --dry-run $words prints the line of its launcher"
  exit 0
fi
mkdir -p "$run_dir/chains" || exit 6
until mkdir "$run_dir/chains/$number" 2>/dev/null; do
  number=$((number + 1))
  [ "$number" -lt 10000 ] || { echo "chain: cannot make $run_dir/chains/$number" >&2; exit 6; }
done
chain=$run_dir/chains/$number
{
  declare -p deck run_dir random_seed overrides
} | sed 's/^declare -- /declare -g /; s/^declare -a /declare -ga /' >"$chain/arguments"
: >"$chain/record"
: >"$chain/jobs"

previous=""
for ((index = 1; index <= count; ++index)); do
  submission "$chain" "$previous"
  code=0
  id=$("${line[@]}") || code=$?
  id=$(tail -n 1 <<<"$id")  # a site may print more
  id=${id%%;*}
  if [ "$code" -ne 0 ] || [[ ! $id =~ ^[[:alnum:]][^[:space:]]*$ ]]; then
    echo "chain: job $index of $count was refused: ${line[*]@Q}" >&2
    if [ -z "$previous" ]; then rm -r "$chain"
    else echo "chain: the $((index - 1)) before it are submitted and will run; chain.sh --cancel $run_dir takes them back" >&2
    fi
    exit 1
  fi
  previous=$id
  echo "$previous $job" >>"$chain/jobs"
done
tell "chain: $count jobs ($(cut -d' ' -f1 "$chain/jobs" | paste -sd' ')) continue $run_dir, from step $(chain_step "$run_dir")"
tell "chain: $jobs/chain.sh --status $run_dir says how they went; --cancel takes them back"
