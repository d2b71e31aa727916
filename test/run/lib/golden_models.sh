# shellcheck shell=bash
# Sourced after common.sh: one step of the six golden models (tiny_models.pl) on ten ids. An fp64
# program that shares nothing with this one computed the loss and the norm of the gradient.
prompt=3,17,5,0,23,11,8,8,2,19
declare -A golden=([gpt2]="4.5248906183 23.6503855389" [llama]="3.7155969112 1.8927797885" [mistral]="3.0776131188 1.3222709945"
  [qwen2]="3.3587764923 2.2920214440" [qwen3]="3.2629652430 1.5489648527" [smollm3]="3.7309165338 1.7546691443")
# shellcheck disable=SC2086
perl -e 'print pack "v*", @ARGV' ${prompt//,/ } 7 >golden.bin

tiny() { perl "$root/test/run/lib/tiny_models.pl" "$@"; }
# tiny_model NAME: writes the golden model; the sheet has separate numbers for llama, whose angles
# are scaled as in Llama 3.1. The table of GPT-2's positions is as long as the blocks of
# golden_step(), or training would start from another one.
tiny_model() {
  local positions=32
  [ "$1" != gpt2 ] || positions=10
  POSITIONS=$positions tiny make "$1" "$1"
  [ "$1" != llama ] || sed -i 's/"rope_scaling": null/"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}/' llama/config.json
}
golden_step() {  # golden_step RANKS RUN FROM MICRO_BATCHES [ARGUMENT...]
  local ranks=$1 name=$2 from=$3 batch=$4
  shift 4
  run "$ranks" train "$from/deck.json" run.dir="$name" checkpoint.init_from="$from" 'data.train=["golden.bin"]' \
    model.block_size=10 train.grad_accum=0 train.global_batch_size="$batch" train.max_steps=1 log.interval=1 device=cpu "$@"
}
# golden_near RUN TOLERANCE LOSS NORM: compares those of the first step. The sheet has ten decimals.
golden_near() {
  awk -F'[:,]' -v most="$2" -v loss="$3" -v norm="$4" '
    function off(v, w) { d = v - w; if (d < 0) d = -d; return d > most * (w > 1 ? w : 1) + 5e-11 }
    /"grad_norm"/ { for (i = 1; i < NF; i++) { if ($i == "\"loss\"") l = $(i + 1); if ($i == "\"grad_norm\"") g = $(i + 1) } }
    END { if (l == "" || off(l, loss) || off(g, norm)) { print l, g; exit 1 } }' "$1/metrics.jsonl"
}
# golden_layout MODEL FROM TOLERANCE RANKS [ARGUMENT...]: runs that step in a layout.
golden_layout() {
  local model=$1 from=$2 most=$3 ranks=$4 batch=1
  shift 4
  [[ "$*" != *zero* ]] || batch=2
  golden_step "$ranks" "$from.on" "$from" $batch "$@"
  # shellcheck disable=SC2086
  check "$from: loss and norm of the gradient to $most on $ranks $*" golden_near "$from.on" "$most" ${golden[$model]}
  rm -rf "$from.on"
}
