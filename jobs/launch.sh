#!/usr/bin/env bash
# launch N PROGRAM ARGUMENT...: N ranks of a program on this machine, whatever batch system it is part of. Source this
# file; it sets the options that mpiexec needs on a laptop, in a container and as root. jobs/launch
# is for all machines.
#   MPIEXEC          the launcher, default mpiexec
#   OMP_NUM_THREADS  threads of each rank, default cores / N (at least 1)
#   LAUNCH_LIMIT     seconds after which everything is killed (exit code 124), default none
# launch_exec is the same in place of the shell that calls it: after `launch_exec 2 ... &`, $! is the launcher,
# and signals reach it.

# shellcheck source=lib/launchers.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/launchers.sh"
launch_cores() { env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 1; }

# Read by Open MPI 4 (OMPI_*) and 5 (PRTE_*) only: root is allowed in a container, more ranks than
# cores are allowed in a test, and ranks are not bound to one core each, because two threads would
# share it.
launch_environment() {  # launch_environment N
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
  local cores
  cores=$(launch_cores)
  # Ranks that wait for each other must yield the core if there are too few.
  if [ "$1" -gt "$cores" ]; then export OMPI_MCA_mpi_yield_when_idle=1; fi
  if [ -z "${OMP_NUM_THREADS:-}" ]; then
    OMP_NUM_THREADS=$((cores / $1 > 1 ? cores / $1 : 1))
    export OMP_NUM_THREADS
  fi
}

launch_exec() {
  local ranks=$1 prefix=() line=()
  shift
  launch_environment "$ranks"
  if [ -n "${LAUNCH_LIMIT:-}" ]; then prefix=(timeout --kill-after=5 "$LAUNCH_LIMIT"); fi
  here_line "$ranks"
  launchers_have || exit
  exec ${prefix[@]+"${prefix[@]}"} "${line[@]}" "$@"
}
# The settings of launch_environment without which Open MPI would refuse the typed line, as NAME=VALUE.
launch_typed() {  # launch_typed N
  local typed=() physical version
  [ "${site:-local}" = local ] || return 0
  version=$("${MPIEXEC:-mpiexec}" --version 2>&1)
  case $version in *OpenRTE* | *"Open MPI"* | *PRRTE* | *prterun*) ;; *) return 0 ;; esac
  [ "$(id -u)" -ne 0 ] || typed=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
  physical=$(lscpu -p=core 2>/dev/null | grep -v '^#' | sort -u | wc -l)
  if [ "$1" -gt "${physical:-0}" ]; then
    case $version in
      *OpenRTE* | *"MPI) 4"*) typed+=(OMPI_MCA_rmaps_base_oversubscribe=1) ;;
      *) typed+=(PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe) ;;
    esac
  fi
  echo "${typed[*]-}"
}
# The words of a command, as one would type them.
launch_show() { echo "\$ ${*@Q}" | sed -E "s/'([-A-Za-z0-9_.,:=\/+%@]+)'/\1/g"; }
launch() { (launch_exec "$@"); }
# launch_run RUN N PROGRAM ...: launch for a run in the folder RUN. Ctrl-C saves it (launchers_run). If a mpiexec ends
# with 1 although the ranks saved and ended with 75, the log of the run is asked.
launch_run() {
  local run=$1 code=0
  shift
  trap : INT  # the ranks are asked to stop; this shell waits for them
  if [ "$(launchers_mpiexec)" = openmpi ]; then (launch_saves "$@") || code=$?
  else launch "$@" || code=$?; fi
  trap - INT
  if [ "$code" -eq 1 ] || [ "$code" -eq 130 ]; then
    [[ $(tail -n 1 "$run/log.txt" 2>/dev/null) != *"run the same command again to continue" ]] || code=75
  fi
  return "$code"
}
launch_saves() {
  local ranks=$1 line=()
  shift
  launch_environment "$ranks"
  here_line "$ranks"
  launchers_have || exit
  launchers_run "${line[@]}" "$@"
}

# launch_stops RUN: how often a run was asked to stop, by its log. One more than before, without a save, is
# no failure: the same command continues from the last checkpoint.
launch_stops() { grep -c "stopping after step" "$1/log.txt" 2>/dev/null || [ -e "$1/log.txt" ] || echo 0; }

# Use as a program: launch.sh N PROGRAM ARGUMENT...
if [ "${BASH_SOURCE[0]}" = "$0" ]; then launch_exec "$@"; fi
