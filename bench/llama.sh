#!/usr/bin/env bash
# llama.sh [BUILD] RUN: choir and llama.cpp in turn on the weights of RUN (an imported model, as SmolLM2-135M), each as F32 and
# BF16, on all cores of one process: tokens a second of reading a prompt of PROMPT (512) ids, and of going on for TOKENS (128).
# Medians of ROUNDS (5) to bench/results/DATE-llama.md, with the bytes of weights that decoding reads a second, beside the
# rate of the memory: the floor of a token is bytes of the weights / that rate. PYTHON names an interpreter with xllamacpp.
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
build=build
[ $# -lt 2 ] || { build=$1; shift; }
model=$1 python=${PYTHON:-python3} rounds=${ROUNDS:-5} prompt=${PROMPT:-512} tokens=${TOKENS:-128} results=${RESULTS:-bench/results}
[ -x "$build/choir" ] || { echo "llama.sh: $build/choir is missing: run make" >&2; exit 1; }
"$python" -c 'import xllamacpp' 2>/dev/null || { echo "llama.sh: $python has no xllamacpp: name one that has, PYTHON=..." >&2; exit 1; }
# shellcheck source=../jobs/launch.sh
. jobs/launch.sh
threads=${OMP_NUM_THREADS:-$(launch_cores)}
export OMP_NUM_THREADS=$threads
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
median() { sort -g "$1" | awk '{v[NR] = $1} END {printf "%.1f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
ids() { awk -v n="$1" -v i="$2" 'BEGIN { for (k = 0; k < n; k++) printf "%s%d", k ? "," : "", (17 * k + i) % 1000 + 300 }'; }
# ours PRECISION ROUND: "PREFILL DECODE", as peer_llama.py prints; loading is in neither.
ours() {
  "$build/choir" generate "$model" --precision "$1" --device cpu --ids "$(ids "$prompt" "$2")" --tokens $((tokens + 1)) --temperature 0 \
    --timings 2>&1 >"$work/out" | awk '/^prompt:/ { gsub(",", ""); print $7, $(NF - 2) }'
}
for type in f32 bf16; do
  "$build/choir" export "$model" --format gguf --type $type --out "$work/$type.gguf" >"$work/export"
done
for round in $(seq "$rounds"); do
  for type in f32 bf16; do
    precision=fp32
    [ $type = f32 ] || precision=bf16-mixed
    ours $precision "$round" >"$work/ours"
    awk '{ print $1 }' "$work/ours" >>"$work/choir.$type.prefill"
    awk '{ print $2 }' "$work/ours" >>"$work/choir.$type.decode"
    "$python" bench/peer_llama.py "$work/$type.gguf" --threads "$threads" --prompt "$prompt" --tokens "$tokens" >"$work/peer" 2>"$work/log"
    awk '{ print $1 }' "$work/peer" >>"$work/llama.$type.prefill"
    awk '{ print $2 }' "$work/peer" >>"$work/llama.$type.decode"
  done
  echo "round $round of $rounds"
done
mkdir -p "$results"
file=$results/$(date +%F)-llama.md
{
  echo "# choir and llama.cpp on the CPU, $(date +%F)"
  echo
  echo "Tokens a second, medians of $rounds rounds in which both take turns (\`bench/llama.sh\`): a prompt of $prompt ids, and $tokens more."
  echo
  echo "- $("$build/choir" --version | head -n 1)"
  echo "- xllamacpp $("$python" -c 'from importlib.metadata import version; print(version("xllamacpp"))'), $threads threads"
  echo "- $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1); load at the end $(cut -d' ' -f1 /proc/loadavg)"
  echo
  echo "| weights | MB | | choir | llama.cpp | choir / llama.cpp | choir, GB/s of weights |"
  echo "|---|---|---|---|---|---|---|"
  for type in f32 bf16; do
    bytes=$(wc -c <"$work/$type.gguf")
    for what in prefill decode; do
      ours=$(median "$work/choir.$type.$what") theirs=$(median "$work/llama.$type.$what")
      awk -v t=$type -v w=$what -v b="$bytes" -v o="$ours" -v l="$theirs" \
        'BEGIN { printf "| %s | %.0f | %s | %s | %s | %.2f | %s |\n", t, b / 1e6, w, o, l, o / l, w == "decode" ? sprintf("%.1f", o * b / 1e9) : "" }'
    done
  done
} >"$file"
cat "$file"
