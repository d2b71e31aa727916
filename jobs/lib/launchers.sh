# shellcheck shell=bash disable=SC2034  # the lines are for those who source this
# The launchers, each in one function: NAME_line RANKS PER_NODE THREADS sets the array `line`, to which the program and
# its arguments are added. A site (jobs/sites) selects one, and adds the binding of its nodes.

# Environment variables that must be given to ranks on other nodes if a launcher passes on none by
# itself.
launchers_exported() {
  compgen -e | grep -E '^(PATH|LD_LIBRARY_PATH|TMPDIR|(OMP|NCCL|FI|CUDA|CUBLAS|HDF5|MPICH|CHOIR)_.*)$'
}

# On this machine alone, with any mpiexec; jobs/launch.sh has the environment for it.
here_line() { line=("${MPIEXEC:-mpiexec}" -n "$1"); }

# Cray PALS (mpiexec on Polaris and other HPE machines).
pals_line() { line=(mpiexec -n "$1" --ppn "$2" --depth "$3" --cpu-bind "${BIND:-depth}" --envall --line-buffer); }

# MPICH and Intel MPI.
hydra_line() { line=("${MPIEXEC:-mpiexec}" -n "$1" -ppn "$2" -bind-to "${BIND:-none}" -envall); }

# Open MPI 4 and 5. A rank gets as many cores as it has threads; if there are fewer, no rank is
# bound, and ranks that wait for each other yield the core.
openmpi_line() {
  local name cores
  line=("${MPIEXEC:-mpiexec}" -n "$1")
  [ -z "${PBS_NODEFILE:-}" ] || line+=(--hostfile "$PBS_NODEFILE")
  cores=$(place_cores)
  if [ $(($2 * $3)) -le "$cores" ]; then line+=(--map-by "ppr:$2:node:PE=$3" --bind-to "${BIND:-core}")
  else
    line+=(--map-by "ppr:$2:node" --bind-to none --oversubscribe)
    export OMPI_MCA_mpi_yield_when_idle=1
  fi
  # In containers every user is root, which Open MPI refuses unless told twice.
  [ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  for name in $(launchers_exported); do line+=(-x "$name"); done
}

# SLURM. --cpus-per-task is not inherited from sbatch since SLURM 22.05. A rank that fails ends the
# others: with --kill-on-bad-exit srun sends SIGTERM, and SIGKILL only after KillWait, mostly 30 s,
# during which ranks still wait for the dead one. PMIx notices the death itself and kills at once,
# unless srun was asked to; a rank that dies before PMIx knows it (a program that does not start)
# ends the others after --wait.
srun_line() {
  local ends=(--kill-on-bad-exit=1)
  case ${SRUN_MPI:-} in pmix*) ends=(--kill-on-bad-exit=0 --wait=60) ;; esac
  line=(srun -n "$1" --ntasks-per-node "$2" --cpus-per-task "$3" --cpu-bind "${BIND:-cores}" "${ends[@]}")
  # Fewer nodes than those of the job: without this, srun spreads the ranks over all of them.
  [ "${nodes:-1}" -le $((($1 + $2 - 1) / $2)) ] || line+=(--nodes $((($1 + $2 - 1) / $2)))
  [ -z "${SRUN_MPI:-}" ] || line+=(--mpi="$SRUN_MPI")
}

launchers_have() {  # in the array `line`
  command -v "${line[0]}" >/dev/null && return
  echo "${line[0]} is not on the PATH: load the module of the MPI that choir was built with, or name it: MPIEXEC=DIR/mpiexec" >&2
  return 2
}

# openmpi | pals | hydra: the kind of the mpiexec on the PATH.
launchers_mpiexec() {
  case $("${MPIEXEC:-mpiexec}" --version 2>&1) in
    *OpenRTE* | *"Open MPI"* | *PRRTE* | *prterun*) echo openmpi ;;
    *HYDRA* | *"Intel(R) MPI"*) echo hydra ;;
    *PALS* | *pals*) echo pals ;;
    *) case $(command -v mpiexec) in */pals/*) echo pals ;; *) echo hydra ;; esac ;;
  esac
}

# Name by which srun must start a program with this MPI (--mpi=NAME); empty for the default of
# SLURM. Open MPI of Debian and of most other distributions supports PMIx only: under srun
# --mpi=pmi2 each of its ranks would be a world of its own, or die in MPI_Init.
launchers_srun_mpi() {  # launchers_srun_mpi PROGRAM
  case $(ldd "$(command -v "$1")" 2>/dev/null) in
    *libmpi.so.40* | *libmpi.so.30*) echo pmix ;;
    *libmpi.so.12* | *libmpich.so*) echo pmi2 ;;
  esac
}
launchers_srun_has() { srun --mpi=list 2>&1 | tr -s ',[:space:]' '\n' | grep -qx "$1"; }

# Starts a launcher in the background, without Open MPI's notices about exit codes of choir, which are
# twelve lines below each message of choir itself. Sets $launcher, which receives signals and has the exit
# code, and $notices, for launchers_told. (mpiexec --quiet would also hide why it could not start.) The words of the
# array `apart` come before the launcher's.
apart=()
launchers_start() {
  local stderr
  notices=""
  if [ "$1" = "${MPIEXEC:-mpiexec}" ] && [ "$(launchers_mpiexec)" = openmpi ]; then
    unset CHOIR_STDERR_COLUMNS  # the width of the terminal, for the ranks, whose standard error is a pipe
    if [ -t 2 ] && CHOIR_STDERR_COLUMNS=$(stty size <&2 2>/dev/null); then
      export CHOIR_STDERR_COLUMNS=${CHOIR_STDERR_COLUMNS#* }
    fi
    exec {stderr}> >(exec "$(dirname "${BASH_SOURCE[0]}")/own_exit_codes.sh" >&2)
    notices=$!
    ${apart[@]+"${apart[@]}"} "$@" <&0 2>&"$stderr" {stderr}>&- &
    launcher=$!
    exec {stderr}>&-
  else
    "$@" <&0 &
    launcher=$!
  fi
}

# Waits until everything that the launcher wrote has been passed on: two seconds at most, because a process
# that outlives the launcher may keep its standard error open.
launchers_told() {
  local tries=40
  while [ -n "$notices" ] && [ $((tries--)) -gt 0 ] && kill -0 "$notices" 2>/dev/null; do sleep 0.05; done
}

# Open MPI's mpiexec drops output that it cannot write, and says nothing. Where standard output is a file (or a device
# that is no terminal) and the output is the result of the command, not the log of a training, a copier writes it in
# place of mpiexec, and launchers_copied returns 6 if it could not.
copier=""
launchers_copy() {  # launchers_copy PROGRAM ARGUMENT...
  case " $* " in *" --describe "* | *" --schema "* | *" --check "*) ;; *" train "*) return ;; esac
  if [ -t 1 ] || [ -p /dev/stdout ]; then return; fi
  exec > >(trap '' INT TERM HUP; cat 2>/dev/null || { cat >/dev/null; exit 6; })
  copier=$!
}
launchers_copied() {
  local tries=40 code=0
  [ -n "$copier" ] || return 0
  exec >/dev/null  # the copier then sees the end, unless a process outlives the launcher
  while [ $((tries--)) -gt 0 ] && kill -0 "$copier" 2>/dev/null; do sleep 0.05; done
  kill -0 "$copier" 2>/dev/null || wait "$copier" || code=$?
  [ "$code" != 6 ] || printf '%s\n' "launch: standard output could not be written" \
    "  -> is its disk full, or over a limit? the output is not complete: send it elsewhere" >&2
  return "$code"
}

# Runs Open MPI's mpiexec to its end, and returns its exit code, or 75 if a training was saved before its last step.
# mpiexec answers SIGINT and SIGTERM by killing all ranks after a second, and at once if a second signal comes; Ctrl-C
# would reach it beside the signal that this script passes on, and `timeout` sends two. A training therefore makes a mark
# when its steps begin. From then on the first request to stop is SIGUSR1 to the ranks, which save however long it takes,
# and the next one ends them. A second signal within a second counts as the first. A session of its own keeps the keys of
# a terminal from mpiexec, unless the program may read that terminal.
launchers_run() {  # launchers_run MPIEXEC ARGUMENT...
  local code=0 again=0 asked="" signal
  launchers_marks
  for signal in INT TERM HUP; do
    # shellcheck disable=SC2064  # the name of this signal
    trap "launchers_asked $signal" "$signal"
  done
  for signal in USR1 USR2; do
    # shellcheck disable=SC2064
    trap "kill -$signal \"\$launcher\" 2>/dev/null" "$signal"
  done
  apart=()
  case " $* " in *" train "*) exec </dev/null ;; esac
  [ -t 0 ] || launchers_apart
  launchers_copy "$@"
  launchers_start "$@"
  while :; do
    code=0
    wait "$launcher" || code=$?
    kill -0 "$launcher" 2>/dev/null || break
  done
  wait "$launcher" 2>/dev/null || again=$?  # a signal may have interrupted the wait that would have reported it
  [ "$again" = 127 ] || code=$again
  launchers_told
  launchers_copied || [ "$code" != 0 ] || code=6
  [ "$code" = 0 ] || [ ! -e "$CHOIR_SAVED_FILE" ] || code=75
  return "$code"
}
# Names the files in which a training marks that its steps have begun (NAME.steps) and that it was saved (NAME).
launchers_marks() {
  CHOIR_SAVED_FILE=$(mktemp -u "${TMPDIR:-/tmp}/choir-saved.XXXXXX")
  export CHOIR_SAVED_FILE
  trap 'rm -f "$CHOIR_SAVED_FILE" "$CHOIR_SAVED_FILE".steps' EXIT
}
# Gives mpiexec a session of its own, which no signal to the group of this script reaches. If this script is killed,
# mpiexec is asked to stop.
launchers_apart() {
  command -v setsid >/dev/null || return 0
  apart=(setsid)
  ! setpriv --pdeathsig TERM true 2>/dev/null || apart=(setpriv --pdeathsig TERM setsid)
}
launchers_asked() {  # launchers_asked SIGNAL
  local now=${EPOCHREALTIME:-$(date +%s).000000}
  now=${now/[.,]/}
  if [ -n "$asked" ] && [ $((now - asked)) -lt 1000000 ]; then return; fi
  if [ -z "$asked" ] && [ -e "$CHOIR_SAVED_FILE.steps" ]; then
    echo "launch: asked to stop: the run saves after this step; a second Ctrl-C or SIGTERM ends it at once" >&2
    kill -USR1 "$launcher" 2>/dev/null
  elif [ ${#apart[@]} -gt 0 ] || [ "$1" != INT ]; then kill -"$1" "$launcher" 2>/dev/null
  fi  # the key of a terminal has reached the launcher by itself
  asked=$now
}
