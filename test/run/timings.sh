#!/usr/bin/env bash
# Limits on times that a user waits. run_all.sh runs this script alone.
. "$(dirname "$0")/lib/common.sh"

# The plan of a large model on many cards.
large=("$root/inputs/bench_d.json" model.n_layer=48 model.n_embd=6144 model.n_head=48 model.block_size=2048
  model.vocab_size=51200 train.precision=bf16-mixed train.micro_batch_size=1 train.global_batch_size=1024)
began=$(now_ms)
run 0 plan "${large[@]}" --ranks 1024 --target h200
took=$(($(now_ms) - began))
expect "a plan for 1,024 cards" 0 "layouts of 1,024 ranks"
in_time "a plan for 1,024 cards: within 10 s" "$took" 10000

# The report of 100,000 steps: seconds and bytes.
mkdir long
awk 'BEGIN { for (i = 1; i <= 100000; i++) { x = 3 + 7 / i + (i * 7919 % 1000) / 1e4
 printf "{\"step\":%d,\"loss\":%.17g,\"lr\":%.17g,\"grad_norm\":%.17g,\"dt\":0.25%d,\"dtf\":0.1,\"dtb\":0.125,\"data\":0.001,\"comm\":0.015,\"optimizer\":0.0092,\"other\":3.2901879749260842e-05,\"sps\":%.17g,\"sps_per_gpu\":%.17g,\"tps\":%.17g,\"tps_per_gpu\":%.17g,\"mfu\":40.100667554463193,\"mem\":302653440,\"skipped\":false}\n", i, x, x / 1e4, x / 3, i % 1000, x, x, x * 1e3, x * 1e3 } }' >long/metrics.jsonl
began=$(now_ms)
run 0 report long
took=$(($(now_ms) - began))
expect "the report of 100,000 steps" 0 "long/report.html"
in_time "the report of 100,000 steps: within 2 s" "$took" 2000
check "... less than 2 MB ($(file_bytes long/report.html) bytes)" test "$(file_bytes long/report.html)" -lt 2000000

# SIGTERM while a run starts: no code polls for it yet.
for ranks in 0 2; do
  start $ranks train "$debug" "${small[@]}" run.dir="slow_start_$ranks" model.n_layer=1500 model.n_embd=2 model.n_head=1
  until [ -e "slow_start_$ranks/log.txt" ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
  began=$(now_ms)
  kill -TERM "$pid"
  end 10
  took=$(($(now_ms) - began))
  check "SIGTERM while starting, $ranks ranks (exit code $code)" \
    eval "[ $code != 0 ] && [ $code != 124 ] && lacks out 'step=1 '"
  in_time "SIGTERM while starting: the end of $ranks ranks within 3.5 s" "$took" 3500
  [ "$ranks" != 0 ] || check "... is said" has out "stopped while starting"
done
