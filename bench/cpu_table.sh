#!/usr/bin/env bash
# cpu_table.sh [BUILD]: the shapes a to d in both precisions, as one process with all cores and as two ranks that share
# them, same global batch. Prints one line for each, and writes CSV rows to
# bench/results/DATE-HOST.csv. It takes about three minutes.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
# shellcheck source=../jobs/launch.sh
. jobs/launch.sh
mkdir -p bench/results
csv=bench/results/$(date +%F)-$(hostname -s).csv
rm -f "$csv"
printf '%-6s %-11s %14s %14s %8s\n' shape precision "1 rank tok/s" "2 ranks tok/s" ratio
rate() { awk -F, 'NR==1 {for (i = 1; i <= NF; ++i) if ($i == "tok_s") c = i} END {print $c}' "$1"; }
for shape in a b c d; do
  half=$(sed -nE 's/.*"micro_batch_size": ([0-9]+).*/\1/p' "inputs/bench_$shape.json")
  half=$((half / 2))
  for precision in fp32 bf16-mixed; do
    for ranks in 1 2; do
      overrides=(train.precision=$precision)
      [ $ranks = 1 ] || overrides+=(train.micro_batch_size=$half)
      launch $ranks "$build/choir" bench step "inputs/bench_$shape.json" "${overrides[@]}" \
        --seconds 8 --csv "$build/row.csv" >"$build/row.txt"
      eval "rate$ranks=$(rate "$build/row.csv")"
      if [ -e "$csv" ]; then tail -n 1 "$build/row.csv" >>"$csv"; else cp "$build/row.csv" "$csv"; fi
    done
    printf '%-6s %-11s %14.0f %14.0f %8.2f\n' $shape $precision "$rate1" "$rate2" \
      "$(awk "BEGIN {print $rate2 / $rate1}")"
  done
done
echo "rows in $csv"
