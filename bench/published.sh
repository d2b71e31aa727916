#!/usr/bin/env bash
# published.sh [BUILD]: compares published steps of GPU clusters with `choir plan --calibration
# assumed` for the same layouts. For the cards of a kind (torchtitan's H100 have 500 W and HBM2e)
# each row is predicted leave-one-out: the plan's time by one factor, the geometric mean of measured
# / planned of the other rows. Then two ratios that no factor changes. It takes three minutes.
#
# Unpublished settings are assumed: Narayanan's micro-batches have one sequence, and stages hold the
# fewest pieces above one that divide the layers; Llama 3 has four pieces a stage. Rows in float8
# are used in ratios only; Llama 3's of 131,072 tokens is left out, because its FLOPs differ by 40 %
# if all pairs are counted or only the visible ones.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
rows=$build/published.txt
: >"$rows"

# planned CARD[/KIND] GPUS MODEL KEY...: prints the seconds of a step.
planned() {
  local card=${1%%/*} gpus=$2 key replicas=$2
  shift 2
  for key; do case $key in parallel.tensor=* | parallel.pipeline=* | parallel.context=*) replicas=$((replicas / ${key#*=})) ;; esac; done
  "$build/choir" plan "$@" parallel.data="$replicas" --ranks "$gpus" --target "$card" --calibration assumed --memory 4000 --json - |
    sed -nE 's/.*"step_seconds": ?([0-9.e+-]+).*/\1/p' | head -n 1
}
row() {  # row NAME MEASURED CARD[/KIND] GPUS MODEL KEY...
  local name=$1 measured=$2 seconds
  shift 2
  seconds=$(planned "$@")
  [ -n "$seconds" ] || { echo "INVALID: no plan of $name" >&2; exit 1; }
  echo "$1;$2;$name;$measured;$seconds" | tee -a "$rows" >&2
}

# gpt LAYERS HEADS WIDTH: GPT-3's shapes as in both papers; heads of 160 are counted as more heads
# of 128, the widest that choir has on GPUs.
gpt() {
  keys=(gpt2 model.n_layer="$1" model.n_head="$2" model.n_kv_head="$2" model.n_embd="$3" model.ffn_width=$((4 * $3))
    model.block_size=2048 model.vocab_size=51200)
}
pieces() {  # pieces STAGES PIECES
  keys+=(parallel.pipeline="$1")
  [ "$2" -eq 1 ] || keys+=(parallel.schedule=interleaved parallel.virtual_stages="$2")
}
# Korthikanti et al. 2022, table 5: both columns.
korthikanti() {  # NAME GPUS BATCH MICRO_BATCH SECONDS_OF_FULL SECONDS
  local sizes=(parallel.tensor=8 train.global_batch_size="$3" train.micro_batch_size="$4")
  row "Korthikanti $1, full recompute" "$5" a100 "$2" "${keys[@]}" "${sizes[@]}" train.recompute=full
  row "Korthikanti $1" "$6" a100 "$2" "${keys[@]}" "${sizes[@]}" train.recompute=selective parallel.sequence=true
}
gpt 48 64 6144 && korthikanti 22B 8 4 4 1.42 1.10
gpt 96 96 12288 && pieces 8 3 && korthikanti 175B 64 64 1 18.13 13.75
gpt 105 160 20480 && pieces 35 3 && korthikanti 530B 280 280 1 49.05 37.83
gpt 128 200 25600 && pieces 64 1 && korthikanti 1T 512 512 1 94.42 71.49

# Narayanan et al. 2021, table 1: TFLOP/s per GPU, which include the recomputation (their equation
# 3).
narayanan() {  # NAME LAYERS HEADS WIDTH TENSOR STAGES PIECES GPUS BATCH TFLOPS
  local seconds
  seconds=$(awk -v l="$2" -v h="$4" -v g="$8" -v b="$9" -v rate="${10}" \
    'BEGIN {printf "%.2f", 96 * b * 2048 * l * h * h * (1 + 2048 / (6 * h) + 51200 / (16 * l * h)) / (g * rate * 1e12)}')
  gpt "$2" "$3" "$4"
  pieces "$6" "$7"
  row "Narayanan $1" "$seconds" a100 "$8" "${keys[@]}" parallel.tensor="$5" train.global_batch_size="$9" \
    train.micro_batch_size=1 train.recompute=full
}
narayanan 1.7B 24 24 2304 1 1 1 32 512 137
narayanan 3.6B 30 32 3072 2 1 1 64 512 138
narayanan 7.5B 36 32 4096 4 1 1 128 512 142
narayanan 18B 40 48 6144 8 1 1 256 1024 135
narayanan 39B 48 64 8192 8 2 2 512 1536 138
narayanan 76B 60 80 10240 8 4 3 1024 1792 140
narayanan 145B 80 96 12288 8 8 2 1536 2304 148
narayanan 310B 96 128 16384 8 16 2 1920 2160 155
narayanan 530B 105 160 20480 8 35 3 2520 2520 163
narayanan 1T 128 200 25600 8 64 2 3072 3072 163

# torchtitan, docs/performance.md (64 A100) and benchmarks/ of 2024-12 and 2025-06 (H100 of 500 W):
# tokens per second and GPU.
torchtitan() {  # NAME TOKENS CARD GPUS LENGTH BATCH_OF_A_REPLICA TENSOR MODEL KEY...
  local name=$1 rate=$2 card=$3 gpus=$4 length=$5 batch=$6 tensor=$7 seconds
  shift 7
  seconds=$(awk "BEGIN {printf \"%.3f\", $length * $batch / ($rate * $tensor)}")
  row "torchtitan $name" "$seconds" "$card" "$gpus" "$@" parallel.zero=3 parallel.tensor="$tensor" \
    train.micro_batch_size="$batch" train.global_batch_size=$((batch * gpus / tensor))
}
torchtitan "8B, 64" 2973 a100 64 8192 1 1 llama3-8b train.recompute=selective
torchtitan "70B, 64" 331 a100 64 8192 1 1 llama3-70b train.recompute=full
torchtitan "Llama 2 13B, 64" 2162 a100 64 4096 2 1 llama2-13b
torchtitan "Llama 2 70B, 64" 353 a100 64 4096 2 1 llama2-70b train.recompute=full
torchtitan "Llama 2 70B, 64, selective" 355 a100 64 4096 1 1 llama2-70b train.recompute=selective
torchtitan "8B, 8, compiled" 6667 "h100/500 W" 8 8192 2 1 llama3-8b train.recompute=selective
torchtitan "8B, 128, compiled" 6514 "h100/500 W" 128 8192 2 1 llama3-8b train.recompute=selective
torchtitan "70B, 256, compiled" 597.3 "h100/500 W" 256 8192 16 8 llama3-70b train.recompute=full parallel.sequence=true

# The Llama 3 Herd of Models, table 4: model TFLOP/s per GPU, with 6 N + 6 layers x width x length
# per token.
llama405=(llama3-70b model.n_layer=126 model.n_head=128 model.n_embd=16384 model.ffn_width=53248 parallel.tensor=8
  parallel.sequence=true)
llama3() {  # NAME GPUS LENGTH BATCH TFLOPS KEY...
  local name=$1 gpus=$2 length=$3 batch=$4 rate=$5 seconds
  shift 5
  seconds=$(awk "BEGIN {printf \"%.2f\", $length * $batch * (6 * 405e9 + 6 * 126 * 16384 * $length) / ($gpus * $rate * 1e12)}")
  row "Llama 3 405B, $name" "$seconds" "h100/700 W" "$gpus" "${llama405[@]}" parallel.pipeline=16 parallel.schedule=interleaved \
    parallel.virtual_stages=4 parallel.zero=1 model.block_size="$length" train.global_batch_size="$batch" \
    train.micro_batch_size=1 "$@"
}
llama3 8192 8192 8192 2048 430
llama3 16384 16384 8192 2048 400

echo "| configuration | GPUs | measured s | planned s | ratio | leave-one-out s | error % |"
echo "|---|---|---|---|---|---|---|"
awk -F";" '
  {card[NR] = $1; gpus[NR] = $2; name[NR] = $3; measured[NR] = $4; planned[NR] = $5; log_ratio[NR] = log($4 / $5)
   sum[$1] += log_ratio[NR]; rows[$1]++}
  END {
    for (i = 1; i <= NR; ++i) {
      c = card[i]
      guess = planned[i] * exp((sum[c] - log_ratio[i]) / (rows[c] - 1))
      error = 100 * (guess / measured[i] - 1); size = error < 0 ? -error : error
      total[c] += size; if (size > worst[c]) worst[c] = size
      printf "| %s | %d %s | %.2f | %.2f | %.2f | %.2f | %+.1f |\n", name[i], gpus[i], toupper(c), measured[i], planned[i],
        measured[i] / planned[i], guess, error
    }
    for (c in rows)
      printf "\n%s: %d rows, mean error %.1f %%, worst %.1f %%; factor of all %.2f\n", toupper(c), rows[c], total[c] / rows[c],
        worst[c], exp(sum[c] / rows[c])
  }' "$rows"

# Share of the rate per GPU that is kept from 8,192 to 16,384 cards, and the gain of several pieces
# per stage over one.
time_of() { awk -F";" -v name="$1" '$3 == name {print $5}' "$rows"; }
awk "BEGIN {printf \"\nLlama 3, 8,192 to 16,384 cards: keeps %.3f of the rate a GPU; published 0.930\n\",
  $(time_of "Llama 3 405B, 8192") / 2 / $(time_of "Llama 3 405B, 16384")}"
# torchtitan's schedules have as many micro-batches as stages by default: 8 of 4 sequences.
schedule=("${llama405[@]}" parallel.pipeline=8 parallel.zero=1 train.recompute=full train.micro_batch_size=4
  train.global_batch_size=256)
awk "BEGIN {printf \"torchtitan 405B, 1F1B to 2 pieces a stage: %.2f x; published 1.28\n\", $(planned h100 512 "${schedule[@]}") / \
  $(planned h100 512 "${schedule[@]}" parallel.schedule=interleaved parallel.virtual_stages=2)}"
