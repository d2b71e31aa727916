# shellcheck shell=bash disable=SC2154  # nodes, ranks ... are of lib/place.sh
# Functions of the job files of a sweep. Source this file in the root of choir:
#   sweep_job [--dry-run] [OPTION ... DECK [key=value...]]     the words of bench/scaling.sh; without any: $SWEEP (options), $DECK and
#                                                  $OVERRIDES, where the batch system passes no arguments
# CHOIR, RANKS_PER_NODE, OMP_NUM_THREADS as in lib/job.sh. The number of threads is always that with
# all ranks, because rows of fewer ranks would otherwise have more cores each. If the batch system
# ends the job, the sweep keeps its runs; the same job continues there.
jobs=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for file in launch.sh lib/place.sh; do
  # shellcheck source=/dev/null
  . "$jobs/$file"
done
# shellcheck source=/dev/null
. "$jobs/sites/$site.sh"

sweep_job() {
  local dry=${DRY_RUN:-}
  if [ "${1:-}" = --dry-run ]; then dry=yes; shift; fi
  export CHOIR=${CHOIR:-build/choir}
  [ -x "$CHOIR" ] || { echo "job: $CHOIR is no program. Submit from the root of choir, after make; or set CHOIR" >&2; exit 1; }
  [ -z "$dry" ] || place_read_header "$0"
  place_geometry
  site_environment
  place_geometry
  export SITE=$site CHOIR_SITE_READY=$site OMP_NUM_THREADS=$threads SWEEP_RANKS=$ranks SWEEP_PER_NODE=$per_node
  # Each run has its own settings.
  unset RANKS RANKS_PER_NODE
  place_say
  local options=()
  eval "options=(${SWEEP:-})"  # as on a command line: --layouts 'dp tp2'
  # shellcheck disable=SC2086  # words
  [ $# -gt 0 ] || set -- ${options[@]+"${options[@]}"} "$DECK" ${OVERRIDES:-}
  [ -z "${place_header:-}" ] || echo "job: not in a job: nodes and ranks are those that the header of $place_header requests; RANKS and RANKS_PER_NODE change them"
  launch_show bench/scaling.sh "$@"
  if [ -n "$dry" ]; then
    site_line "$ranks" "$per_node" "$threads" || exit
    launch_show "${line[@]}" "$CHOIR" bench step | sed 's/^/the largest rows: /; s/$/ .../'
    # The header's placeholders are not places of a job: the sweep only lists its rows.
    unset PBS_NODEFILE
    exec bench/scaling.sh --dry-run "$@"
  fi
  exec bench/scaling.sh "$@"
}
