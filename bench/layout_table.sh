#!/usr/bin/env bash
# layout_table.sh PRECISION [BUILD]: shape d on two ranks of one thread, the same 8 sequences per
# step, in all layouts. The variants take turns, ROUNDS (3) times with SECONDS_EACH (4) of timed
# steps each, so that other load on the machine affects all of them alike; the table shows the round
# of median tokens/s of each variant. VARIANTS="dp2 zero1 ..." selects some; the others are compared
# with the first. KEEP=1 adds to the rounds of a call before. Rows are written to
# bench/results/DATE-layouts-PRECISION.csv, with a column `variant` in front.
set -eu
cd "$(dirname "$0")/.."
precision=${1:?usage: layout_table.sh PRECISION [BUILD]} build=${2:-build}
# shellcheck source=../jobs/launch.sh
. jobs/launch.sh
export OMP_NUM_THREADS=1
declare -A layout=(
  [dp2]="train.micro_batch_size=4"
  [dp2-b1]="train.micro_batch_size=1"
  [dp2-b2]="train.micro_batch_size=2"
  [zero1]="train.micro_batch_size=4 parallel.zero=1"
  [zero2]="train.micro_batch_size=4 parallel.zero=2"
  [zero3]="train.micro_batch_size=4 parallel.zero=3"
  [tp2]="train.micro_batch_size=8 parallel.tensor=2"
  [tp2-sp]="train.micro_batch_size=8 parallel.tensor=2 parallel.sequence=true"
  [pp2-b1]="train.micro_batch_size=1 parallel.pipeline=2"
  [pp2-b2]="train.micro_batch_size=2 parallel.pipeline=2"
  [pp2-zb-b1]="train.micro_batch_size=1 parallel.pipeline=2 parallel.schedule=zb-h1"
  [pp2-v2-b1]="train.micro_batch_size=1 parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual_stages=2"
  [cp2]="train.micro_batch_size=8 parallel.context=2"
  [dp2-selective]="train.micro_batch_size=4 train.recompute=selective"
  [dp2-full]="train.micro_batch_size=4 train.recompute=full"
)
read -ra variants <<<"${VARIANTS:-dp2 zero1 zero2 zero3 tp2 tp2-sp pp2-b1 pp2-b2 cp2 dp2-selective dp2-full}"
work=$build/layout_table/$precision
[ -n "${KEEP:-}" ] || rm -rf "$work"
mkdir -p bench/results "$work"
column() { awk -F, -v name="$1" 'NR==1 {for (i = 1; i <= NF; ++i) if ($i == name) c = i} END {print $c}' "$2"; }

for _ in $(seq "${ROUNDS:-3}"); do
  for variant in "${variants[@]}"; do
    read -ra keys <<<"${layout[$variant]}"
    number=1
    while [ -e "$work/$variant.$number.csv" ]; do number=$((number + 1)); done
    out=$work/$variant.$number
    launch 2 "$build/choir" bench step inputs/bench_d.json train.precision="$precision" train.global_batch_size=8 \
      "${keys[@]}" --seconds "${SECONDS_EACH:-4}" --csv "$out.csv" --json "$out.json" >"$out.txt"
  done
done

csv=bench/results/$(date +%F)-layouts-$precision.csv
printf 'variant,%s\n' "$(head -n 1 "$work/${variants[0]}.1.csv")" >"$csv"
printf '%-14s %10s %7s %9s %9s %9s %9s %8s\n' variant "tokens/s" ratio "tp ms" "cp ms" "dp ms" "pp ms" verdict
rounds_of() { for row in "$work/$1".*.csv; do echo "$(column tok_s "$row") $row"; done | sort -g; }
reference=
for variant in "${variants[@]}"; do
  median=$(rounds_of "$variant" | awk '{line[NR] = $2} END {print line[int((NR + 1) / 2)]}')
  rate=$(column tok_s "$median")
  : "${reference:=$rate}"
  printf '%s,%s\n' "$variant" "$(tail -n 1 "$median")" >>"$csv"
  printf '%-14s %10.0f %7.3f %9.1f %9.1f %9.1f %9.1f %8s\n' "$variant" "$rate" \
    "$(awk "BEGIN {print $rate / $reference}")" "$(column tp_ms "$median")" "$(column cp_ms "$median")" \
    "$(column dp_ms "$median")" "$(column pp_ms "$median")" "$(column valid "$median")"
done
echo "rows in $csv"
