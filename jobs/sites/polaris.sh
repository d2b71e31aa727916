# shellcheck shell=bash disable=SC2034
# Polaris (ALCF): nodes of one EPYC (32 cores, 4 NUMA nodes), 4 A100, 2 Slingshot cards; PBS, Cray MPICH under PALS.
site_gpus=4
site_card=A100-40GB
site_cores=32
# GPU 0 is at NUMA node 3 (cores 24-31), GPU 3 at node 0.
site_gpu_order="3 2 1 0"

site_environment() {
  module use /soft/modulefiles
  module load PrgEnv-gnu cudatoolkit-standalone cray-hdf5-parallel
  # MPI carries host memory only (NCCL has the GPUs'), so its GPU support would only cost start-up and memory.
  export MPICH_GPU_SUPPORT_ENABLED=0
  # NCCL on Slingshot, as ALCF tuned it. Without the libfabric plugin NCCL silently takes TCP: 2 to 10 times slower.
  # If a run hangs in its first collective, unset the four NCCL_ lines, as ALCF advises.
  export NCCL_NET="AWS Libfabric"
  export NCCL_NET_GDR_LEVEL=PHB    # network cards read GPU memory when both are below one host bridge
  export NCCL_CROSS_NIC=1          # rings may leave by one card and arrive at the other
  export NCCL_COLLNET_ENABLE=1     # let the network plugin offer its own collectives
  export FI_CXI_DISABLE_HOST_REGISTER=1    # registering host memory with CUDA can deadlock with NCCL's own
  export FI_MR_CACHE_MONITOR=userfaultfd   # the default, memhooks, misses freed GPU memory, and hangs
  export FI_CXI_DEFAULT_CQ_SIZE=131072     # completions of many ranks overflow the default queue
  export FI_CXI_DEFAULT_TX_SIZE=131072     # ... and so do sends
  export FI_CXI_RDZV_PROTO=alt_read        # rendezvous without a hardware message that can be lost under load
  export FI_CXI_RX_MATCH_MODE=software     # hardware matching runs out of entries and stops
  export FI_CXI_REQ_BUF_SIZE=16MB          # room for messages that arrive before their receive is posted
  export FI_CXI_RDZV_GET_MIN=0             # every rendezvous by get, which alt_read expects
  export HDF5_USE_FILE_LOCKING=FALSE       # Lustre here is mounted without locks
  export TMPDIR=/tmp                       # PBS's own is too long a path for a Unix socket
}

# Rank i of a node is beside GPU i: NUMA nodes from the last to the first. Each rank has a NUMA
# node, not a core, because NCCL's threads need cores too.
site_line() {
  case $2 in
    4) BIND=${BIND:-list:24-31:16-23:8-15:0-7} ;;
    2) BIND=${BIND:-list:16-31:0-15} ;;
  esac
  pals_line "$@"
}

site_scratch() { echo /local/scratch; }
