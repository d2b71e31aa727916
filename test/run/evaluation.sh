#!/usr/bin/env bash
# choir eval and the evaluations of training: how much of the validation data they read, what they
# open for it, and how their results are kept.
. "$(dirname "$0")/lib/common.sh"

val_loss() { sed -nE 's/.*"val_loss":([0-9.]+).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }
loss_of_eval() { sed -nE 's/.* val_loss=([0-9.]+).*/\1/p' out | tail -n 1; }
agrees() { awk -v a="$(val_loss "$1")" -v b="$(loss_of_eval)" 'BEGIN { d = a - b; exit !(a > 0 && d * d < 1e-10) }'; }

# The global batch is derived from the ranks: 2 x 4 sequences of 32. Two batches are 512 tokens.
cat >derived.json <<END
{ "model": { "n_layer": 1, "n_head": 1, "n_embd": 16, "block_size": 32 }, "data": { "train": ["text.txt"] },
  "train": { "micro_batch_size": 4, "max_steps": 2 }, "eval": { "interval": 2, "batches": 2, "sample_tokens": 0 } }
END
run 2 train derived.json run.dir=derived
expect "a part of the validation data" 0 "val_loss="
started "... the log says which" derived "an evaluation reads the first 16 of"
run 1 eval derived
expect "eval reads the same part, and counts what it reads" 0 "tokens=512" "data: an evaluation reads the first 16 of"
check "... with the same loss" agrees derived
run 1 eval derived eval.batches=all
expect "eval.batches=all reads everything" 0 "perplexity="
check "... which is more" eval '[ "$(sed -nE "s/.* tokens=([0-9]+).*/\1/p" out)" -gt 5000 ] && lacks out "reads the first"'
run 1 eval derived eval.batches=0
check "... and so does 0" eval '[ "$(sed -nE "s/.* tokens=([0-9]+).*/\1/p" out)" -gt 5000 ]'

# The default is 200 global batches: of 4 sequences, a text of 60 kB has fewer, of 1 it has more.
run 1 train derived.json run.dir=default eval.batches=200 train.micro_batch_size=1 train.max_steps=1 data.val_fraction=0.5
started "200 batches are fewer than half of the text" default "an evaluation reads the first 200 of"
sed 's/"batches": 2, //' derived.json >plain.json
run 1 train plain.json run.dir=plain train.micro_batch_size=1 train.max_steps=1 data.val_fraction=0.5
started "... and they are the default" plain "an evaluation reads the first 200 of"

# Validation sets that are named need nothing of the training data.
mkdir other && head -n 20 text.txt >other/held.txt
rm -rf data/.prepared
run 1 eval derived 'data.val=["other/held.txt"]'
expect "eval of another text" 0 "preparing text 'other/held.txt'" "tokens="
check "... does not look at the training text" lacks out "'text.txt'"
mv text.txt away.txt
run 1 eval derived 'data.val=["other/held.txt"]'
expect "... nor needs it" 0 "text 'other/held.txt' is already prepared"
run 1 eval derived 'data.validation={"a": {"folder": "other/held.txt", "batches": 1}, "b": "other/held.txt limit=100"}'
expect "sets as objects and as words" 0 "val_loss/a=" "val_loss/b="
check "... with a limit of their own" has out "tokens=355"
run 1 eval derived
expect "the part of the training text needs it" 3 "text.txt"
mv away.txt text.txt
printf 'Z' >other/odd.txt
run 1 eval derived 'data.val=["other/odd.txt"]'
expect "a character that the model does not know" 3 "other/odd.txt"
run 0 prepare text text.txt --out other/tokens --tokenizer byte
run 1 eval derived 'data.val=["other/tokens"]'
expect "tokens of another vocabulary" 3 "is not that of the checkpoint"

# The shipped decks name a text that is not in a clone; the program takes no other in its place.
run 1 train "$debug" run.dir=shipped
expect "the text of the shipped decks is missing" 3 "'data/quickstart/input.txt' is missing" "name a text of your own"
mkdir -p data/kjv && cp text.txt data/kjv/input.txt
run 1 train "$debug" run.dir=shipped
expect "... the hint names the one that make quickstart took" 3 "'data.train=[\"data/kjv/input.txt\"]'"
run 1 train "$debug" 'data.train=["data/kjv/input.txt"]' run.dir=kjv train.max_steps=1
expect "... which trains" 0 "summary:"
check "... and the run names what it read" has kjv/deck.json data/kjv/input.txt

# Results of the same evaluation are one row of the report, with the time of the last.
rm -f derived/evaluations.jsonl
for data in "" "" 'data.val=["other/held.txt"]'; do run 1 eval derived ${data:+"$data"} --json; done
run 0 report derived
expect "a report of three evaluations" 0 "derived/report.html"
check "... two were the same" has derived/report.html "and 1 earlier time with the same result"
check "... and one was of other data" has derived/report.html 'data.val=[&quot;other/held.txt&quot;]'
