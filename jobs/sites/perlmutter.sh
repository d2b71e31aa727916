# shellcheck shell=bash disable=SC2034
# Perlmutter (NERSC), GPU nodes: one EPYC (64 cores, 128 threads), 4 A100, 4 Slingshot cards; SLURM, Cray MPICH.
site_gpus=4
site_card=A100-40GB  # of most nodes; those of --constraint=gpu&hbm80g have A100-80GB
site_cores=64
site_gpu_order="3 2 1 0"  # as on Polaris: GPU 0 is at the last NUMA node

site_environment() {
  # The nccl module brings the libfabric plugin and its settings; without it NCCL takes TCP.
  module load PrgEnv-gnu cudatoolkit cray-hdf5-parallel nccl
  # MPI carries host memory only (NCCL has the GPUs').
  export MPICH_GPU_SUPPORT_ENABLED=0
  # The default, memhooks, misses freed GPU memory, and hangs.
  export FI_MR_CACHE_MONITOR=userfaultfd
  export HDF5_USE_FILE_LOCKING=FALSE  # Lustre here is mounted without locks
}

# All GPUs of the node are visible to each of its ranks: one that sees only its own cannot map its neighbours' memory,
# and NCCL falls back to copies through the host. choir takes the GPU that is nearest to the cores
# to which it is bound. SLURM counts hardware threads here, two per core.
site_line() {
  SRUN_MPI=${SRUN_MPI:-cray_shasta}
  srun_line "$1" "$2" "$((2 * $3))"
  line+=(--gpus-per-node=4 --gpu-bind=none)
}

site_scratch() { :; }  # the nodes have no disk
