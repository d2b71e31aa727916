#!/usr/bin/env bash
# peers.sh [BUILD]: choir and PyTorch in turn on the shapes a to d, fp32 and bf16, one process with all cores, the same
# batch: whole training steps. Medians of ROUNDS (3) rounds of SECONDS_EACH (3) to bench/results/DATE-peers.md, with
# versions. PYTHON names an interpreter with PyTorch 2.4 or newer; SHAPES="a b" picks some; ATTENTION="sdpa plain" are
# the forms of attention of PyTorch that are tried; the faster one counts. It takes six minutes on
# two quiet cores.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build} python=${PYTHON:-python3} rounds=${ROUNDS:-3} seconds=${SECONDS_EACH:-3} results=${RESULTS:-bench/results}
[ -x "$build/choir" ] || { echo "peers.sh: $build/choir is missing: run make" >&2; exit 1; }
"$python" -c 'import torch' 2>/dev/null || { echo "peers.sh: $python has no PyTorch: name one that has, PYTHON=..." >&2; exit 1; }
# shellcheck source=../jobs/launch.sh
. jobs/launch.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
number() { grep -a -o "\"$1\": *[0-9.e+]*" "$2" | head -n 1 | sed 's/.*: *//'; }  # number KEY FILE
median() { sort -g "$@" | awk '{v[NR] = $1} END {printf "%.0f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
threads=${OMP_NUM_THREADS:-$(launch_cores)}
forms() { if [ "$1" = fp32 ]; then echo "${ATTENTION:-sdpa}"; else echo "${ATTENTION:-sdpa plain}"; fi; }
for round in $(seq "$rounds"); do
  for shape in ${SHAPES:-a b c d}; do
    # A step of c or d takes more than a second.
    case $shape in [cd]) [ "$round" -le 2 ] || continue ;; esac
    for precision in fp32 bf16-mixed; do
      out=$work/$shape.$precision
      launch 1 "$build/choir" bench step "inputs/bench_$shape.json" train.precision=$precision device=cpu --warmup 1 \
        --seconds "$seconds" --no-ceilings --json "$work/choir.json" >"$work/choir.txt"
      number tokens_per_second "$work/choir.json" >>"$out.choir"
      for form in $(forms $precision); do
        "$python" bench/peer_torch.py --deck "inputs/bench_$shape.json" --device cpu --no-compile --precision $precision \
          --attention "$form" --threads "$threads" --warmup 2 --steps 3 --seconds "$seconds" >"$work/torch.json"
        number tokens_per_second "$work/torch.json" >>"$out.$form"
      done
    done
    echo "round $round: $shape"
  done
done
mkdir -p "$results"
file=$results/$(date +%F)-peers.md
{
  echo "# choir and PyTorch on the CPU, $(date +%F)"
  echo
  echo "Tokens a second of whole training steps, medians of $rounds rounds (c, d: at most 2) of $seconds s in which both take turns"
  echo "(\`bench/peers.sh\`); one process of $threads threads, the batch of the deck; random tokens for PyTorch, eager mode, the faster of"
  echo "its own and scaled-dot-product attention in bf16 (autocast)."
  echo
  echo "- $("$build/choir" --version | head -n 1)"
  echo "- PyTorch $("$python" -c 'import torch; print(torch.__version__)'), $("$python" --version)"
  echo "- $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(launch_cores) processors; load at the end $(cut -d' ' -f1 /proc/loadavg)"
  echo
  echo "| shape | precision | choir | PyTorch | attention | choir / PyTorch |"
  echo "|---|---|---|---|---|---|"
  for shape in ${SHAPES:-a b c d}; do
    for precision in fp32 bf16-mixed; do
      best=0 which=""
      for form in $(forms $precision); do
        rate=$(median "$work/$shape.$precision.$form")
        [ "$rate" -le "$best" ] || { best=$rate; which=$form; }
      done
      ours=$(median "$work/$shape.$precision.choir")
      echo "| $shape | $precision | $ours | $best | $which | $(awk "BEGIN {printf \"%.2f\", $ours / $best}") |"
    done
  done
} >"$file"
cat "$file"
echo "left in $file"
