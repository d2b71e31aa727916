# shellcheck shell=bash disable=SC2034
# Aurora (ALCF): nodes of two Xeon Max (52 cores each), PBS, Aurora MPICH under PALS. Its GPUs are Intel's, for which choir has
# no kernels: it computes on the processors there (device = "cpu"), which is also what device = "auto" finds.
site_gpus=0
site_cores=102  # cores 0 and 52 are reserved for the system
RANKS_PER_NODE=${RANKS_PER_NODE:-2}  # one socket each

site_environment() {
  module load hdf5
  export HDF5_USE_FILE_LOCKING=FALSE  # Lustre here is mounted without locks
  export TMPDIR=/tmp                  # PBS's own is too long a path for a Unix socket
}

# Ranks do not use the cores of the system.
site_line() {
  [ "$2" != 2 ] || BIND=${BIND:-list:1-51:53-103}
  pals_line "$@"
}

site_scratch() { echo /tmp; }
