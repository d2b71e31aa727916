#!/usr/bin/env bash
# gpu_affinity.sh PROGRAM ARGUMENT...: used between a launcher and a program that takes the first
# visible GPU (nccl-tests, a script): shows each rank of a node its own GPU, in the order of the
# site (CHOIR_GPU_ORDER, as "3 2 1 0"). choir does not need it: it asks every rank for its cores,
# and gives it the nearest GPU, with all of them visible to NCCL.
set -u
local_rank=""
for name in OMPI_COMM_WORLD_LOCAL_RANK PMIX_LOCAL_RANK PALS_LOCAL_RANKID PMI_LOCAL_RANK MPI_LOCALRANKID \
  MPICH_LOCALRANKID SLURM_LOCALID; do
  [ -n "$local_rank" ] || local_rank=${!name:-}
done
[ -n "$local_rank" ] || { echo "gpu_affinity.sh: no launcher says which rank of its node this is" >&2; exit 5; }
read -r -a order <<<"${CHOIR_GPU_ORDER:-}"
if [ "${#order[@]}" -eq 0 ]; then
  count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
  for ((gpu = 0; gpu < count; ++gpu)); do order+=("$gpu"); done
fi
[ "${#order[@]}" -gt 0 ] || { echo "gpu_affinity.sh: nvidia-smi finds no GPU on $(hostname)" >&2; exit 5; }
export CUDA_VISIBLE_DEVICES=${order[$((local_rank % ${#order[@]}))]}
echo "LOCAL_RANK= $local_rank HOST= $(hostname) gpu= $CUDA_VISIBLE_DEVICES"
exec "$@"
