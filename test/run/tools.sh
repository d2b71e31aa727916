#!/usr/bin/env bash
# Commands that use a checkpoint: generate and eval.
. "$(dirname "$0")/lib/common.sh"

train 2 run
expect "a run" 0 "summary:"
text_of() { run "$1" generate run --prompt "the king" --tokens 40 "${@:3}"; cp stdout "$2"; }

text_of 1 greedy1 --temperature 0
expect "generate" 0 "the king"
check "... prompt, 40 tokens and an end of line" test "$(file_bytes greedy1)" = 49
text_of 2 greedy2 --temperature 0
expect "generate on 2 ranks" 0
check "... writes the same, once" cmp greedy1 greedy2
text_of 1 greedy3 --temperature 0 --seed 7
check "temperature 0 has no chance in it" cmp greedy1 greedy3
text_of 1 top1 --temperature 2 --top-k 1
check "top-k 1 is temperature 0" cmp greedy1 top1
text_of 1 topp --temperature 1 --top-p 0.000001
check "a tiny top-p is temperature 0" cmp greedy1 topp
text_of 1 seed1 --seed 1
text_of 1 seed1b --seed 1
text_of 1 seed2 --seed 2
check "the same seed, the same text" cmp seed1 seed1b
check "another seed, another text" eval '! cmp seed1 seed2'
run 0 generate run/checkpoints/step_00000010 --tokens 100 --prompt "over a hill; "
expect "generate from a checkpoint, longer than the context" 0 "over a hill; "
# A run that continues removes checkpoints while they are listed: a name without a target stands for
# that instant.
ln -s nowhere run/checkpoints/step_00000099
for ranks in 0 2; do
  run $ranks inspect run
  expect "inspect on $ranks: what is gone meanwhile is no damage" 0 "valid (latest)"
done
rm run/checkpoints/step_00000099
cp -r run/checkpoints/step_00000010 run/checkpoints/step_00000098
truncate -s -1 run/checkpoints/step_00000098/state.h5
run 0 inspect run
expect "... and what is cut is" 6 "98 "
rm -r run/checkpoints/step_00000098
# A single command starts no daemon of the launcher (half a second), so it needs no path to one.
PATH=/nonexistent "$choir" inspect run >out 2>&1 </dev/null
check "one process needs no launcher" has out "valid (latest)"
run 0 generate run --tokens 0
expect "no tokens" 2 "--tokens"
run 0 generate run --top-p 2
expect "top-p of 2" 2 "--top-p"
run 0 generate
expect "generate without a checkpoint" 2 "checkpoint"
run 0 generate run/deck.json
expect "... of a file" 6 "'run/deck.json' is a file"
run 0 generate run --ids ""
expect "... of no ids" 2 "--ids" "at least one"

logged=$(sed -nE 's/.*"step":20,.*"val_loss":([^,}]*).*/\1/p' run/metrics.jsonl)
run 1 eval run
expect "eval" 0 "step=20" "val_loss=" "perplexity="
value=$(sed -nE 's/.*val_loss=([0-9.]+) .*/\1/p' stdout)
run 3 eval run
expect "eval on 3 ranks" 0 "val_loss=$value"
check "eval gives the val_loss of the log ($logged, $value)" \
  awk -v a="$logged" -v b="$value" 'BEGIN { d = a - b; exit !(a > 0 && d < 2e-6 && d > -2e-6) }'
run 2 eval run/checkpoints/step_00000010 --precision bf16-mixed
expect "eval of a checkpoint in bf16" 0 "step=10" "val_loss="
