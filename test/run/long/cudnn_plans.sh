#!/usr/bin/env bash
# The whole grid of attention plans: head widths, lengths, groups, types, masks, both forms of backward, three cards.
. "$(dirname "$0")/../lib/common.sh"
. "$root/test/run/lib/cudnn_plans.sh"

for width in 32 64 128; do
  for tokens in 64 100 256 1024 2048 4096 8192; do
    for groups in 16 4; do
      for causal in 0 1; do
        for f16 in 0 1; do
          for pass in forward backward fast; do
            echo "B=2 H=16 K=$groups D=$width T=$tokens causal=$causal f16=$f16 pass=$pass"
          done
        done
      done
      echo "B=2 H=16 K=$groups D=$width T=$tokens bias=1 row=$((tokens / 8 * 8 + 8)) causal=0 pass=forward"
      echo "B=2 H=16 K=$groups D=$width T=$tokens bias=1 row=$((tokens / 8 * 8 + 8)) causal=0 gradient=1 per_sample=0 pass=backward"
      echo "B=2 H=16 K=$groups D=$width T=$tokens S=$((2 * tokens)) pass=forward"
    done
  done
done >cases
plans h200 <cases
plans a100 <cases
sed -n '/D=128 /p' cases >some
plans h100 <some
