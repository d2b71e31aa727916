#!/usr/bin/env bash
# Impossible layouts are refused with the key, its value and the nearest possible one, before
# anything is started.
. "$(dirname "$0")/lib/common.sh"
refused() {  # refused NAME RANKS "OVERRIDE ..." WORDS...
  local name=$1 ranks=$2 overrides=$3
  shift 3
  # shellcheck disable=SC2086
  train "$ranks" no $overrides
  expect "$name" 2 "$@"
  check "$name: nothing was started" absent no
  check "$name: said once" test "$(grep -c '^choir: ' out)" = 1
}
refused "ranks that do not come out" 3 "parallel.pipeline=2" "3 ranks cannot be divided by parallel.tensor 1 x" \
  "legal on 3 ranks:" "parallel.tensor=1 parallel.context=1 parallel.pipeline=1 (parallel.data 3)"
refused "more ranks than there are" 2 "parallel.pipeline=2 parallel.tensor=2" "2 ranks cannot be divided" \
  "parallel.tensor=2 parallel.context=1 parallel.pipeline=1 (parallel.data 1)" \
  "parallel.tensor=1 parallel.context=1 parallel.pipeline=2 (parallel.data 1)"
refused "a data axis of another size" 4 "parallel.data=3 parallel.pipeline=2 model.n_layer=4" "parallel.data is 3, but 4 ranks leave 2" \
  "legal on 4 ranks (the nearest of 9):" "parallel.pipeline=2 (parallel.data 2)"
refused "heads that cannot be divided" 2 "parallel.tensor=2 model.n_head=3 model.n_embd=48" \
  "model.n_head = 3 cannot be divided among parallel.tensor = 2 ranks" "n_head = 2 or 4, or tensor = 1 or 3"
refused "a width that cannot be divided" 3 "parallel.tensor=3 model.n_head=3 model.n_embd=48 model.ffn_width=128" \
  "model.ffn_width = 128 cannot be divided among parallel.tensor = 3 ranks" "ffn_width = 126 or 129"
refused "more stages than layers" 4 "parallel.pipeline=4" "parallel.pipeline = 4 is more than model.n_layer = 2" "nearest legal: pipeline = 2"
refused "more pieces than layers" 2 "parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual_stages=2" \
  "model.n_layer = 2; nearest legal: virtual_stages = 1, or n_layer = 4"
refused "virtual stages of another schedule" 2 "parallel.pipeline=2 parallel.virtual_stages=2 model.n_layer=4" \
  "parallel.virtual_stages = 2 is for parallel.schedule = \"interleaved\"" "nearest legal: virtual_stages = 1"
refused "virtual stages of one stage" 2 "parallel.schedule=interleaved parallel.virtual_stages=2" "parallel.virtual_stages = 2 shares layers"
refused "an unknown schedule" 2 "parallel.pipeline=2 parallel.schedule=dualpipe" "parallel.schedule" "interleaved" "zb-h1"
refused "context ranks and heads" 2 "parallel.context=2 parallel.context_mode=ulysses model.n_head=1" \
  "parallel.context = 2 does not divide the 1 heads" "legal: context = 1, or context_mode = \"gather\""
refused "context ranks and tensor ranks" 4 "parallel.context=2 parallel.tensor=2 parallel.context_mode=ulysses" "parallel.context = 2 does not divide the 1 heads that each of parallel.tensor = 2 ranks has"
refused "groups that do not divide the ranks" 2 "parallel.zero=1 parallel.zero_group=3" "parallel.zero_group = 3 does not divide the 2 data-parallel ranks"
refused "sequence parallelism of one rank" 2 "parallel.sequence=true" "parallel.tensor = 1; nearest legal: sequence = false, or tensor = 2"
refused "reproducible mode and context ranks" 2 "train.reproducible=true train.global_batch_size=16 parallel.context=2" \
  "parallel.context = 2 divides; nearest legal: context = 1"
refused "reproducible mode and three ranks" 3 "train.reproducible=true" "needs powers of two, but the data-parallel size is 3" "2 or 4 ranks"
refused "reproducible mode and six micro-batches" 2 "train.reproducible=true parallel.pipeline=2" \
  "needs powers of two, but train.grad_accum is 12" "train.grad_accum = 8 or 16"

# A container has 64 MB of /dev/shm; here it has less, and the model is smaller, too.
cat >small_shm <<'END'
#!/bin/sh
exec unshare -m sh -c 'mount -t tmpfs -o size=24m tmpfs /dev/shm && exec mpiexec "$@"' sh "$@"
END
chmod +x small_shm
if unshare -m mount -t tmpfs -o size=24m tmpfs /dev/shm 2>/dev/null; then
  wide=(train.max_steps=2 optimizer.decay_steps=20 train.precision=fp64 model.n_embd=256 eval.interval=0 checkpoint.interval=0)
  train 2 roomy "${wide[@]}"
  expect "with all of /dev/shm" 0 "summary:"
  check "... nothing is told about it" lacks out "/dev/shm"
  MPIEXEC=$work/small_shm train 2 tight "${wide[@]}"
  expect "with little of it the ranks use MPI" 0 "/dev/shm of a node has" "5 times as long" "--shm-size" "summary:"
  check "... which is told once" test "$(grep -c "/dev/shm of a node" out)" = 1
  check "... and computes the same" close_losses roomy tight 1e-12
  MPIEXEC=$work/small_shm train 2 tight2 "${wide[@]}" parallel.transport=node
  expect "windows that are asked for are refused" 5 "does not fit into /dev/shm" "--shm-size"
else skip "a small /dev/shm" "it cannot be mounted here"; fi
