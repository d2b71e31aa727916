#!/usr/bin/env bash
# cuDNN accepts our attention graphs: plans for the shapes of every deck and for all other shapes
# that the kernels promise are built for cards that this machine lacks (see test/cudnn_plans). cuDNN
# refuses here what it would refuse on the card, with the same message.
. "$(dirname "$0")/lib/common.sh"
. "$root/test/run/lib/cudnn_plans.sh"

# "H=.. D=.. T=.." of every deck that may run on a GPU (fp64 stays on the CPU), each shape once. A
# codec has no attention; speech has no such shape, because utterances have any length. The bias of
# relative positions is among the shapes below.
decks() {
  local deck heads width tokens groups
  for deck in "$root"/inputs/*.json; do
    ! grep -qE '"precision": "fp64"|"type": "(fastconformer|codec)"' "$deck" || continue
    # For a model of two towers the shape of the second one.
    value() { { sed -n '/"lm": /,$p' "$deck"; cat "$deck"; } | sed -nE "s/.*\"$1\": *([0-9]+).*/\1/p" | head -n 1; }
    heads=$(value n_head) width=$(value n_embd) tokens=$(value block_size) groups=$(value n_kv_head)
    [ -n "$heads" ] && [ -n "$width" ] && [ -n "$tokens" ] || { echo "refused=a_deck_without_shape $deck=0"; continue; }
    echo "B=4 H=$heads K=${groups:-$heads} D=$((width / heads)) T=$tokens"
  done | sort -u
}
both() { sed 's/$/ pass=forward/;p;s/forward$/backward/'; }

decks | both >cases
check "the decks have shapes" test "$(wc -l <cases)" -ge 10
plans h200 <cases
sed -n '/D=64 /p' cases >some
plans a100 <some
plans h100 <<'END'
B=2 H=32 K=8 D=128 T=4096 pass=forward
END

# Long sequences, groups, the other type, a cache, no mask; dQ summed with atomics.
cat >more <<'END'
B=2 H=32 K=8 D=128 T=4096 pass=backward
B=2 H=32 K=8 D=128 T=4096 pass=fast
B=1 H=16 D=128 T=8192 pass=fast
B=2 H=4 D=64 T=256 S=1024 pass=forward
B=2 H=4 D=64 T=100 S=333 pass=backward
B=3 H=8 D=64 T=375 causal=0 f16=1 pass=backward
B=4 H=8 D=64 T=376 causal=0 bias=1 row=752 per_sample=0 pass=forward
B=4 H=8 D=64 T=376 causal=0 bias=1 row=752 pass=fast
B=4 H=8 D=64 T=376 causal=0 bias=1 row=752 per_sample=0 gradient=1 pass=backward
B=2 H=2 D=20 T=64 pass=forward refused=multiples
B=2 H=2 D=64 T=376 causal=0 bias=1 row=751 pass=forward refused=bias
B=2 H=2 D=64 T=1 S=64 pass=forward refused=query
B=2 H=3 K=2 D=64 T=64 pass=forward refused=cuDNN
END
plans h200 <more
sed -n '/D=128 T=4096/p;/bias=1/p' more >some
plans a100 <some
# The request reaches cuDNN: a card with too little shared memory is refused.
sed 's/"maxSharedMemoryPerBlockOptin": [0-9]*/"maxSharedMemoryPerBlockOptin": 1024/' \
  "$root/test/cudnn_plans/h200.json" >small.json
plans small.json <<'END'
B=2 H=4 D=64 T=256 pass=backward refused=SHARED_MEMORY_INSUFFICIENT
END
