#!/usr/bin/env bash
# The choice of a device, and the messages when a requested device does not exist. GPUs are hidden
# here (lib/common.sh); the emulated one of choir_host_cuda exists all the same, and is the same for
# every rank.
. "$(dirname "$0")/lib/common.sh"

once() { [ "$(grep -c "$1" out)" = 1 ]; }
train 2 refused device=cuda
expect "device=cuda without a GPU" 2 "device 'cuda':" "device=cpu"
check "... is said once" once "device 'cuda':"
check "... and nothing was started" test ! -e refused
train 2 auto train.max_steps=1 eval.interval=0 checkpoint.interval=0
expect "device=auto without a GPU" 0 "  transport  dp by node, "
started "... and why" auto "DEVICE=" "(auto: rank 0: " "  dp: 2 ranks, transport node, all-reduce of" "GB/s bus bandwidth"
train 1 cpu device=cpu train.max_steps=1 eval.interval=0 checkpoint.interval=0
expect "device=cpu" 0 "single rank, no communication"
check "... needs no reason" lacks cpu/start.txt "(auto:"
train 2 fp64 device=cuda train.precision=fp64
expect "fp64 on a GPU" 2 "fp64" "stays on the CPU"
train 2 staged parallel.transport=staged
expect "staged collectives of host memory" 2 "parallel.transport is \"staged\"" "the device is the CPU"
train 2 nccl device=cpu parallel.transport=nccl
expect "NCCL on the CPU" 2 "parallel.transport" "auto, mpi, node"
run 2 bench collectives device=cuda
expect "bench collectives on a GPU that is not there" 2 "device 'cuda':"
run 2 bench collectives devices=cuda
expect "bench collectives with an unknown word" 2 "devices=cuda"
run 1 doctor --folder .
expect "doctor" 0 "GPUs" "doctor: measuring speed of 1 rank: matrix products"
# OpenMP has bound the first thread when the program restarts itself.
if [ "$(env -u OMP_NUM_THREADS nproc)" -ge 2 ]; then
  export OMP_PROC_BIND=close OMP_PLACES=threads
  OMP_NUM_THREADS=2 run 1 doctor --folder .
  expect "threads that OpenMP binds have a core each" 0 "2 threads on 2 cores"
  OMP_NUM_THREADS=1 run 2 doctor --folder .
  expect "... and ranks that it binds to one core are told of" 0 "2 threads on 1 core" "bind each to its own"
  unset OMP_PROC_BIND OMP_PLACES
else skip "threads that OpenMP binds have a core each" "there is one core"; fi

choir=$build/choir_host_cuda
[ -x "$choir" ] || { fail "the program on an emulated GPU" "$choir is missing"; exit; }
run 2 bench collectives device=cuda
expect "two ranks on one GPU" 2 "2 ranks for 1 GPU(s): ranks 0, 1 on GPU-00000000-0000-0000-0000-000000000001" \
  "parallel.share_device=true"
run 2 bench collectives device=cuda parallel.share_device=true --max-bytes 16384 --repeats 2
expect "... who may share it" 0 "host execution" "transfers are staged: ranks share a GPU" "all_reduce along dp (2 ranks) by staged" "VALID"
run 2 bench collectives device=cuda parallel.share_device=true parallel.transport=nccl
expect "... but not with NCCL" 2 "ranks share a GPU"
run 1 doctor --folder .
expect "doctor lists the card" 0 "host execution, sm_90" "GPU-00000000-0000-0000-0000-000000000001" "NCCL"
