#!/usr/bin/env bash
# The energy of runs and benches: from NVML (a stand-in) on emulated cards, each of which uses 100 W;
# and what is said and not written where there is no counter.
. "$(dirname "$0")/lib/common.sh"
choir=$build/choir_host_cuda
[ -x "$choir" ] || { fail "the program on an emulated GPU" "$choir is missing"; exit; }
limit=120
mkdir nvml
"${CC:-cc}" -O1 -shared -fPIC -o nvml/libnvidia-ml.so.1 "$root/test/run/lib/nvml_stand_in.c"
usual=${LD_LIBRARY_PATH:-}
with_nvml() { export LD_LIBRARY_PATH=$work/nvml${usual:+:$usual}; }
tiny=(device=cuda train.precision=bf16-mixed model.n_layer=1 model.n_embd=16 model.n_head=2 model.block_size=8 train.micro_batch_size=1 train.global_batch_size=2)
gpu() { train "$1" "$2" "${tiny[@]}" log.interval=1 eval.interval=8 eval.batches=1 eval.sample_tokens=2 train.max_steps=16 "${@:3}"; }
field() { sed -nE "s/^\{\"step\":.*\"$2\":([0-9.e+-]+)[,}].*/\1/p" "$1/metrics.jsonl"; }
# power RUN LEAST MOST: the median over the steps of their power in W. Their energy also contains the
# moments between two steps, in which they are counted and logged, and on a busy machine a few of
# those are long.
power() {
  paste -d' ' <(field "$1" energy_j) <(field "$1" dt) | awk '{ print $1 / $2 }' | sort -g | awk -v least="$2" -v most="$3" '
    { watts[NR] = $1 }
    END { median = watts[int((NR + 1) / 2)]; print median " W"; exit !(NR == 16 && median >= least && median <= most) }'
}
# A token costs the energy of a step divided by its targets, except for rounding.
tokens_cost() {
  paste -d' ' <(field "$1" energy_j) <(field "$1" j_per_token) <(field "$1" tps) <(field "$1" dt) | awk '
    { tokens = $3 * $4; off = $1 / tokens - $2; if (off < 0) off = -off; if (off > 1e-9 * $2) bad = 1 }
    END { exit bad || NR != 16 }'
}
rises() { awk 'NR > 1 && $1 <= last { bad = 1 } { last = $1 } END { exit bad || NR != 16 }' <(field "$1" energy_total_j); }

with_nvml
gpu 1 one
expect "a card" 0 "energy is measured: 1 card (NVML)" " energy_j=" " j_per_token=" "  energy           " "J of 1 card (NVML): "
check "... of 100 W" power one 90 150
check "... for each token" tokens_cost one
check "... and for the whole run" rises one
run 0 report one --out one.html
check "... on the page" has one.html "joules per token, all devices"
gpu 2 two_ranks parallel.share_device=true
expect "two ranks of a card" 0 "energy is measured: 1 card (NVML)"
check "... which is counted once" power two_ranks 90 150
HOST_CUDA_CARDS=2 gpu 2 two_cards parallel.transport=staged
expect "two cards" 0 "energy is measured: 2 cards (NVML)"
check "... are counted both" power two_cards 180 300
run 1 bench step "$debug" "${small[@]}" "${tiny[@]}" --no-ceilings --warmup 0 --steps 3 --json bench.json
expect "a bench" 0 "energy of 1 card (NVML): "
check "... whose row has it" matches bench.json '"energy_j": ?[0-9.]+,"j_per_token": ?[0-9.]+'

NVML_STATUS=3 gpu 1 refused
expect "a card that does not count" 0 "energy is not readable here: NVML: nvmlDeviceGetTotalEnergyConsumption of GPU-" \
  ": Not Supported (host "
check "... is said once" test "$(grep -c 'energy' out)" = 1
check "... and not logged" lacks refused/metrics.jsonl "energy"
NVML_STATUS=3 run 1 bench step "$debug" "${small[@]}" "${tiny[@]}" --no-ceilings --warmup 0 --steps 3 --json refused.json
expect "... nor benched" 0 "energy is not readable here: NVML: "
check "... as a number" lacks refused.json "energy_j"
export LD_LIBRARY_PATH=$usual
gpu 1 none
expect "no library" 0 "energy is not readable here: NVML cannot be loaded: libnvidia-ml.so.1"
