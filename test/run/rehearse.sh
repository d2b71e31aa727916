#!/usr/bin/env bash
# choir rehearse: the cost of a job of a thousand ranks for each of them, found by playing a few
# ranks in one process.
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=test/run/lib/rehearse.sh
. "$root/test/run/lib/rehearse.sh"
export TMPDIR=$work/temporary  # others may use this machine, too
mkdir "$TMPDIR"

# Negative control: the rehearsal for four ranks is compared with four real ranks.
rehearse four 4 parallel.tensor=2 train.global_batch_size=24
expect "four ranks" 0 "REHEARSED: dp=2 tp=2 pp=1 cp=1 on 4 ranks" "rank 0" "rank 3" "  step" "  save" "  report"
train 4 real parallel.tensor=2 train.global_batch_size=24 train.micro_batch_size=1 eval.interval=0 train.max_steps=1 log.verbose=true
expect "... the same, really" 0 "summary:"
for axis in tp dp; do
  told=$(sed -nE "s/^ +$axis +2  .* ([0-9,]+) x, .*/\1/p" out | head -n 1)
  check "... as many calls of $axis in a step as are planned" test "$(in_step four.json 0 "$axis" calls)" = "${told:-none}"
done

# A thousand ranks with each axis: every bar is a ratio, because times and bytes depend on this
# machine and deck.
rehearse hundred 100 train.global_batch_size=0 train.grad_accum=1
expect "100 ranks" 0 "on 100 ranks"
rehearse thousand 1000 train.global_batch_size=0 train.grad_accum=1
expect "1,000 ranks" 0 "on 1,000 ranks, 8 a node, 125 nodes"
flat thousand.json hundred.json
rehearse axes 1024 parallel.tensor=2 parallel.pipeline=2 parallel.context=2 parallel.zero=1 train.global_batch_size=0 train.grad_accum=1
expect "all axes" 0 "dp=128 tp=2 pp=2 cp=2" "rank 0" "rank 1023"

rehearse none 0
expect "no ranks" 2 "--ranks"
rehearse odd 1000 train.global_batch_size=24
expect "a batch that the ranks do not divide" 2 "nearest legal"
check "... told once for all ranks, without an abort" lacks stderr MPI_ABORT
rehearse gpu 8 device=cuda
expect "a GPU" 2 "leave device out"
run 2 rehearse "$debug" "${small[@]}" --ranks 8
expect "several processes" 2 "runs on a single process"
check "nothing stays" eval '! ls -d "$TMPDIR"/choir_rehearsal_* 2>/dev/null'
