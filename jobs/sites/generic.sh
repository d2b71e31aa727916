# shellcheck shell=bash disable=SC2034,SC2154  # SRUN_MPI, BIND are for the launchers; batch is of lib/place.sh
# A cluster without a file of its own here. LAUNCHER=srun|openmpi|pals|hydra overrides the automatic
# choice.
site_environment() {
  # NCCL finds InfiniBand by itself. If start-up hangs or bandwidth is that of Ethernet, name the
  # network here (`ip addr`, NCCL_DEBUG=INFO): without it NCCL may pick a management interface that
  # reaches no other node.
  #   export NCCL_SOCKET_IFNAME=ib0
  # Locks fail on some NFS and Lustre mounts, and nothing here writes one file from two runs.
  export HDF5_USE_FILE_LOCKING=FALSE
  # Long paths of a job's own TMPDIR may exceed the 107 characters of a Unix socket of MPI.
  [ "${#TMPDIR}" -le 60 ] || export TMPDIR=/tmp
}

site_line() {
  local kind=${LAUNCHER:-}
  if [ -z "$kind" ] && [ "$batch" = slurm ]; then
    SRUN_MPI=${SRUN_MPI:-$(launchers_srun_mpi "${CHOIR:-choir}")}
    if ! command -v srun >/dev/null 2>&1; then
      kind=$(launchers_mpiexec)
      echo "SLURM_JOB_ID is set, but srun is not on the PATH: taking mpiexec ($kind)" >&2
    elif [ -z "$SRUN_MPI" ] || launchers_srun_has "$SRUN_MPI"; then kind=srun
    else
      kind=$(launchers_mpiexec)
      echo "srun --mpi=list has no $SRUN_MPI, which this MPI needs: taking mpiexec ($kind)" >&2
    fi
  fi
  [ -n "$kind" ] || kind=$(launchers_mpiexec)
  case $kind in
    srun | openmpi | pals | hydra) ;;
    *) echo "LAUNCHER is '$kind': srun, openmpi, pals or hydra" >&2; return 2 ;;
  esac
  if [ "$kind" = srun ] && [ -z "${SRUN_MPI:-}" ]; then SRUN_MPI=$(launchers_srun_mpi "${CHOIR:-choir}"); fi
  # More ranks than cores: there is nothing to bind to.
  if [ "$kind" = srun ] && [ $(($2 * $3)) -gt "$(place_cores)" ]; then BIND=${BIND:-none}; fi
  "${kind}_line" "$@"
  # SLURM passes it on by itself, but the printed line must be complete.
  [ "$kind" != srun ] || [ -z "${SLURM_GPUS_PER_NODE:-}" ] || line+=("--gpus-per-node=$SLURM_GPUS_PER_NODE")
}

# Local disk of a node; data are copied there when the job file sets STAGE.
site_scratch() { echo "${LOCAL_SCRATCH:-${SLURM_TMPDIR:-}}"; }
