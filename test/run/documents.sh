#!/usr/bin/env bash
# data.documents = separate: a document of a text does not see its neighbours, in any layout; and what
# is counted. A document here is a line, whose newline is token 0 of the vocabulary of characters.
. "$(dirname "$0")/lib/common.sh"

cat >deck.json <<'D'
{ "model": {"n_layer": 4, "n_embd": 32, "n_head": 4, "block_size": 24, "dropout": 0.1,
            "attention_window": 5, "window_skip_interval": 2},
  "data": {"train": ["text.txt"], "documents": "separate", "document_end": 0},
  "train": {"precision": "fp64", "global_batch_size": 8, "micro_batch_size": 2, "max_steps": 8},
  "optimizer": {"learning_rate": 0.01, "warmup_steps": 2},
  "eval": {"interval": 4, "batches": 2, "sample_tokens": 4}, "checkpoint": {"interval": 4}, "log": {"interval": 1} }
D
losses() { sed -nE 's/^\{"step":([0-9]+),"(loss|val_loss)":([^,]*),.*/\1\2 \3/p' "$1/metrics.jsonl"; }
run 1 train deck.json run.dir=one
expect "training on separate documents" 0 "summary:"
started "... says what ends them" one "documents are separate; they end with token 0"
run 1 train deck.json run.dir=ignored data.documents=ignore data.document_end=-1
check "... which is another loss" eval '! close_losses one ignored 1e-3 >/dev/null'

layout() {  # layout RANKS NAME OVERRIDE...: the losses of one rank
  local ranks=$1 name=$2
  shift 2
  run "$ranks" train deck.json run.dir="$name" "$@"
  check "the same losses with $*" close_losses one "$name" 1e-12
}
layout 4 data_ranks parallel.zero=3 data.reader=scatter
layout 4 tensor parallel.tensor=2 parallel.sequence=true parallel.pipeline=2 data.prefetch=0
layout 4 ring parallel.context=4 parallel.context_mode=ring data.reader=node
layout 2 ulysses parallel.context=2 parallel.context_mode=ulysses
exhaustive && layout 4 stages parallel.pipeline=4 parallel.schedule=1f1b data.reader=collective

run 2 train deck.json run.dir=cut train.max_steps=4 optimizer.decay_steps=8
run 2 train deck.json run.dir=cut optimizer.decay_steps=8
run 2 train deck.json run.dir=whole
check "a run that goes on has the bits of one that did not stop" same_tensors whole cut
run 1 train deck.json run.dir=cut train.max_steps=12 data.documents=ignore data.document_end=-1
expect "... and refuses to see other documents" 2 "data.documents" "checkpoint.allow_changes"

# Documents of 8 tokens, two in each row of 16. The losses of two pairs add up in either combination,
# so none depends on its neighbour. Positions are learned.
a=abcdefg b=gfedcba c=aabbccd d=dgdgdga
printf '%s\n' $a $b $c $d $a $d $b $c >lines.txt
pairs=0
for pair in "$a $b" "$c $d" "$a $d" "$c $b" "$b $a"; do
  # shellcheck disable=SC2086
  printf '%s\n' $pair >"pair_$((pairs += 1)).txt"
done
sets='data.validation={"ab": "pair_1.txt", "cd": "pair_2.txt", "ad": "pair_3.txt", "cb": "pair_4.txt", "ba": "pair_5.txt"}'
value() { grep -o "\"val_loss/$2\":[^,}]*" "$1/metrics.jsonl" | tail -n 1 | cut -d: -f2; }
in_pairs=(train deck.json 'data.train=["lines.txt"]' model.block_size=16 "$sets" eval.batches=0 train.global_batch_size=2)
alone() {  # alone RUN: the losses of documents add up
  awk -v ab="$(value "$1" ab)" -v cd="$(value "$1" cd)" -v ad="$(value "$1" ad)" -v cb="$(value "$1" cb)" \
    'BEGIN { d = ab + cd - ad - cb; e = ab - ad; exit !(d * d < 1e-24 && e * e > 1e-6) }'
}
anywhere() { awk -v ab="$(value "$1" ab)" -v ba="$(value "$1" ba)" 'BEGIN { d = ab - ba; exit !(ab > 0 && d * d < 1e-24) }'; }
run 1 "${in_pairs[@]}" run.dir=pairs
expect "rows of two documents" 0 "val_loss/ab"
check "the loss of a document does not depend on its neighbour" alone pairs
check "... nor on its place in the row" anywhere pairs
run_broken positions-run-on 1 "${in_pairs[@]}" run.dir=run_on
expect "positions that run on behind a document" 0 "val_loss/ab"
check "... are noticed" eval '! anywhere run_on'
run_broken targets-across 1 "${in_pairs[@]}" run.dir=across
expect "targets across the end of a document" 0 "val_loss/ab"
check "... are noticed" eval '! alone across'
run 2 eval pairs
expect "eval counts the targets of documents" 0 "tokens=70"

run 1 train deck.json run.dir=x data.document_end=-1
expect "no end of a document is known" 3 "it is unknown where a document ends in" "data.document_end (GPT-2: 50256)"
run 1 train deck.json run.dir=x data.document_end=64 model.vocab_size=64
expect "an end outside the vocabulary" 2 "data.document_end = 64 is no token of model.vocab_size = 64"
run 1 train deck.json run.dir=x data.documents=ignore
expect "an end of documents that are not separate" 2 "data.document_end = 0 is for data.documents"
run 1 train deck.json run.dir=x data.pack=true
expect "documents and conversations" 2 "data.documents" "data.pack"
run 1 train deck.json run.dir=x model.attention=cudnn device=cuda
expect "an attention without documents" 2 "has no documents within a row"
echo '{"messages":[{"role":"user","content":"say"},{"role":"assistant","content":"<1>"}]}' >chat.jsonl
run 0 prepare chat chat.jsonl --out chat
run 1 train deck.json run.dir=x 'data.train=["chat"]'
expect "separate documents of conversations" 3 "these data are conversations" "data.pack = true"

run 0 plan deck.json model.vocab_size=64 --ranks 4
expect "plan" 0 "memory"
run 2 bench step deck.json --steps 2
expect "bench" 0 "TFLOP"
run 2 bench step deck.json --steps 2 --gradient-noise 2
expect "bench of the gradient noise" 0 "noise"
run 4 verify "$root/inputs/verify_gpt.json" data.documents=separate --layouts "dp=2 tp=2,pp=2 cp=2 context_mode=ring,dp=4 zero=3" --steps 2
expect "verify" 0 "VALID: 3 layouts"
