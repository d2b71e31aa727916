#!/usr/bin/env bash
# Adapters on a base in nf4 or int8 learn what adapters on the base as it is learn, within 2 % of the
# held-out loss, and each run takes the memory that `choir plan` predicts. The base is a small model of
# SmolLM2's architecture, trained on the sources of this program; the adapters are trained on two ranks
# on its documentation, with equal seeds. It takes about two minutes on two cores.
# QLORA_TABLE=FILE gets the numbers of this run as a table.
. "$(dirname "$0")/../lib/common.sh"
limit=1800
cd "$root" || exit 1
git ls-files -z 'src/*.cpp' 2>/dev/null | xargs -0 cat >"$work/sources.txt"
git ls-files -z '*.md' 2>/dev/null | xargs -0 cat >"$work/pages.txt"
cd "$work" || exit 1
if [ ! -s sources.txt ]; then skip "adapters on a quantised base" "the sources are not a git checkout"; exit; fi
cat >deck.json <<'D'
{
  "model": { "n_layer": 4, "n_head": 4, "n_kv_head": 2, "n_embd": 256, "ffn_width": 704, "block_size": 128, "norm": "rmsnorm",
    "activation": "swiglu", "position": "rope", "rope_theta": 100000, "bias": false, "tied": true },
  "train": { "precision": "fp32", "micro_batch_size": 8, "global_batch_size": 16 },
  "optimizer": { "learning_rate": 2e-3, "min_lr": 2e-4, "warmup_steps": 20 },
  "eval": { "sample_tokens": 0, "batches": 20 }, "log": { "interval": 20 }
}
D
run 0 prepare text sources.txt --out sources --tokenizer bpe --vocab-size 1024
expect "tokens of the sources" 0 "bpe"
run 0 prepare text pages.txt --out pages --tokenizer sources
expect "... and of the pages, with the same units" 0 "written to"
base_steps=${BASE_STEPS:-150} steps=${STEPS:-50}
run 2 train deck.json run.dir=base 'data.train=["sources"]' train.max_steps="$base_steps" \
  checkpoint.interval="$base_steps" eval.interval=0
expect "the base" 0 "base/checkpoints/step_"
held_out() { perl -ne 'print "$1\n" if /"val_loss":([0-9.e+-]+)/' "$1/metrics.jsonl" | tail -n 1; }
megabytes() { perl -ne "print \"\$1\n\" if /$1/" "$2" | tail -n 1; }
settings=(deck.json 'data.train=["pages"]' checkpoint.init_from=base model.lora.rank=8 model.lora.alpha=16
  train.max_steps="$steps" eval.interval="$steps" checkpoint.interval=0)
table="| base | held-out loss | parameters of the base | planned | allocated |\n|---|---|---|---|---|\n"
declare -A loss planned
for kind in master int8 nf4; do
  run 0 plan --all "${settings[@]}" train.frozen_precision=$kind --ranks 2
  expect "$kind: the plan" 0 "total per rank"
  planned[$kind]=$(megabytes 'total per rank +([0-9.]+) MiB' stdout)
  weights=$(perl -ne '$sum += $1 if /^  parameters, (?:packed|master) +([0-9.]+) MiB/; END { printf "%.1f", $sum }' stdout)
  run 2 train "${settings[@]}" run.dir=$kind train.frozen_precision=$kind
  expect "... and training" 0 "warm start from base"
  loss[$kind]=$(held_out $kind)
  allocated=$(perl -ne '$bytes = $1 if /"allocated":(\d+)/; END { printf "%.3f", $bytes / 1048576 }' $kind/metrics.jsonl)
  table+="| $kind | ${loss[$kind]} | $weights MiB | ${planned[$kind]} MiB | $allocated MiB |\n"
  check "... takes what was planned: ${planned[$kind]} MiB" test "$allocated" = "${planned[$kind]}"
done
run 2 train deck.json run.dir=before 'data.train=["pages"]' checkpoint.init_from=base train.max_steps=1 eval.interval=1 \
  optimizer.learning_rate=1e-9 optimizer.min_lr=1e-9 checkpoint.interval=0
before=$(held_out before)
table+="| without adapters | $before | | | |\n"
check "adapters learn: ${loss[master]}, before $before" awk -v a="${loss[master]}" -v b="$before" 'BEGIN { exit !(a > 0 && a < 0.95 * b) }'
for kind in int8 nf4; do
  check "... on $kind alike: ${loss[$kind]}" awk -v a="${loss[$kind]}" -v b="${loss[master]}" \
    'BEGIN { d = a / b - 1; exit !(d < 0.02 && d > -0.02) }'
  check "... in less memory" awk -v a="${planned[$kind]}" -v b="${planned[master]}" 'BEGIN { exit !(a < b) }'
done
# shellcheck disable=SC2059
[ -z "${QLORA_TABLE:-}" ] || printf "$table" >"$QLORA_TABLE"
