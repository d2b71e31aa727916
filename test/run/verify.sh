#!/usr/bin/env bash
# choir verify: every layout trains like one rank, and no unknown option runs. broken_rules.sh shows
# that it would detect errors. test/run/long/verify.sh runs `--layouts all` and every legal layout,
# more steps and the other precisions.
. "$(dirname "$0")/lib/common.sh"
deck=$root/inputs/verify_gpt.json
limit=170
last() { tail -n 1 stdout; }

run 8 verify "$deck" --layouts quick --json rows.jsonl
expect "at least 30 layouts, every value, on 8 ranks" 0 "precision  fp64" "with every value of every axis"
check "... the last line says so" eval 'last | grep -qE "^VALID: [0-9]+ layouts train as one rank does"'
check "... there are 30 rows" eval '[ "$(grep -c "^dp=.* ok$" stdout)" -ge 30 ]'
check "... as many in the JSON lines" eval '[ "$(grep -c "^dp=" stdout)" = "$(grep -c "^{\"layout\":\"dp=.*\"ok\":true}$" rows.jsonl)" ]'
check "... options of memory among them" eval 'for word in offload_gradients=true head_chunk=5 attention_chunk=5 preload=device; do
  grep -q "^dp=.*$word" stdout || exit 1; done'
check "... all within 1e-12" eval '! grep -oE "\"tolerance\":[^,]*" rows.jsonl | grep -v "\"tolerance\":1e-12"'

run 4 verify "$deck" --layouts "dp=2 tp=2 sequence=true,tp=4,dp=4 zero=1,dp=4 zero=2 zero_group=2,dp=2 cp=2 zero=3 zero_group=1,pp=2,cp=4,dp=1" --steps 20
expect "after 20 steps too" 0 "VALID: 8 layouts"
run 4 verify "$root/inputs/verify_modern.json" --layouts "dp=2 tp=2 sequence=true zero=3,tp=4 recompute=full,pp=4,cp=4,cp=2 tp=2 recompute=selective,cp=3,cp=2 tp=2 context_mode=gather sequence=true"
expect "what models of today add" 0 "VALID: 7 layouts"
# Four tensor ranks share two heads of keys, and the norm of their whole width.
run 4 verify "$root/inputs/verify_modern.json" model.qk_norm_span=width model.norm_place=post model.qkv_bias=no optimizer.epsilon=1e-4 \
  --layouts "tp=4,dp=2 tp=2 sequence=true zero=3,cp=2 tp=2 recompute=full,pp=2 tp=2"
expect "what OLMo 2 adds" 0 "VALID: 4 layouts"
run 4 verify "$deck" model.position=rope model.rope_width=2 model.parallel_branches=true model.tied=false \
  --layouts "tp=4,dp=2 tp=2 sequence=true zero=3,cp=2 tp=2 recompute=selective,pp=2 dp=2 recompute=full,cp=4 context_mode=ring"
expect "what GPT-NeoX adds" 0 "VALID: 5 layouts"
run 4 verify "$root/inputs/verify_gemma.json" --layouts "dp=2 tp=2 sequence=true zero=3,tp=4 recompute=full,pp=4,cp=4,cp=2 tp=2 recompute=selective,cp=3,cp=2 tp=2 context_mode=gather sequence=true,tp=2 zero=3 tile=4 dp=2"
expect "what Gemma adds" 0 "VALID: 8 layouts"
# Gradients near zero would make AdamW multiply roundings by the ratio of learning rate and epsilon.
run 4 verify "$root/inputs/verify_gemma.json" model.attention_window=0 model.window_skip_interval=0 model.rope_local_theta=0 \
  model.rope_scaling_layers=all optimizer.epsilon=1e-4 model.norm_place=post --layouts "cp=4 context_mode=ring,cp=4 context_mode=ring-ulysses,tp=2 pp=2,dp=2 cp=2 recompute=full"
expect "soft caps in a ring, and norms behind the branches alone" 0 "VALID: 4 layouts"
run 4 verify "$deck" model.n_head=2 --layouts "cp=4,cp=3,cp=2 pp=2 context_mode=gather recompute=full,dp=2 cp=2 context_mode=ring zero=3,cp=3 context_mode=ring,cp=4 context_mode=ring-ulysses"
expect "more context ranks than heads" 0 "VALID: 6 layouts" \
  "idle       rank 3 has nothing to do in dp=1 tp=1 pp=1 cp=3" "the smallest of 2 layouts with fewer ranks than the 4 that were started"
run 0 verify "$deck" --layouts dp=1 --steps 1
expect "one rank is no test of layouts" 0 "no layout on several ranks was tested: jobs/launch -n 4 $choir verify $deck"
run 0 verify --help
expect "help" 0 "--layouts" "--precision" "exhaustive"

few="dp=2 zero=3,tp=2 sequence=true,pp=2 recompute=full,cp=2 dp=2,cp=3,cp=2 context_mode=ring,dp=2 tp=2 zero=1,tp=2 pp=2 schedule=zb-h1"
run 4 verify "$deck" --layouts "$few" --precision fp32
expect "fp32, by the rounding of one rank" 0 "4 x the distance of one rank in fp32" "VALID: 8 layouts"
run 4 verify "$deck" --layouts "$few" --precision bf16-mixed
expect "bf16" 0 "VALID: 8 layouts"

# The ratios of LARS are those of whole tensors, even if ranks have parts of them; a trust
# coefficient that moves weights.
lars=(optimizer.name=lars optimizer.learning_rate=1 optimizer.trust_coefficient=0.02 optimizer.weight_decay=0.01)
run 4 verify "$deck" "${lars[@]}" --layouts "dp=2 tp=2 sequence=true,dp=4 zero=1,dp=4 zero=2 zero_group=2,dp=2 zero=3 offload=file,dp=2 tp=2 zero=3 tile=4,pp=2 tp=2,cp=2 dp=2,tp=4"
expect "LARS" 0 "VALID: 8 layouts"

# A query that sees only one position has no gradient, nor has its key: only rounding errors d of
# about 1e-18 remain. An adapter B, which begins at zero, becomes d, and the gradient of its A about
# d^2 = 1e-36. The ratio of A makes a step of rate x coefficient x |A| x 1e-36 / epsilon of that,
# 1e-29, but a full one without epsilon: moments differed by 1.8 then.
run 4 verify "$deck" model.lora.rank=3 model.attention_window=1 "${lars[@]:0:3}" optimizer.weight_decay=0 \
  --layouts "dp=2 tp=2 sequence=true,dp=4 zero=1,dp=2 zero=3,pp=2 tp=2,cp=2 dp=2,tp=4"
expect "LARS on gradients that consist of rounding errors" 0 "VALID: 6 layouts"

# Muon orthogonalises whole matrices: heads of keys and values that are copied over tensor ranks, slices, tiles, stages, and
# parts outside of the device.
muon=(optimizer.name=muon optimizer.learning_rate=0.01 optimizer.muon.adamw_learning_rate=3e-3)
run 4 verify "$deck" "${muon[@]}" --layouts "dp=2 tp=2 sequence=true,dp=4 zero=1,dp=4 zero=2 zero_group=2,dp=2 zero=3 offload=file,dp=2 tp=2 zero=3 tile=4,pp=2 tp=2 zero=1,cp=2 dp=2,tp=4,dp=3 zero=1"
expect "Muon" 0 "VALID: 9 layouts"
run 4 verify "$root/inputs/verify_modern.json" "${muon[@]}" optimizer.muon.scale=match_rms_adamw optimizer.muon.coefficients=quintic \
  --layouts "dp=2 tp=2 zero=3,pp=4,cp=2 tp=2 sequence=true,dp=4 zero=2 zero_group=2 offload=file"
expect "Muon, what models of today add" 0 "VALID: 4 layouts"
run 4 verify "$root/inputs/verify_lora.json" "${muon[@]}" optimizer.muon.adapters=true --layouts "dp=2 tp=2 zero=1,tp=4,pp=2 dp=2"
expect "Muon on adapters" 0 "VALID: 3 layouts"

# A key of another precision is ignored, and does not prevent a deck from being verified.
run 2 verify "$deck" train.precision=bf16-mixed train.freeze='["*.0.*"]' train.frozen_precision=bf16 --layouts "dp=2,tp=2"
expect "a deck of another precision" 0 "train.frozen_precision is ignored: the runs are in fp64" "VALID: 2 layouts"
run 2 verify "$deck" train.precision=bf16-mixed train.freeze='["*.0.*"]' train.frozen_precision=bf16 --layouts "dp=2,tp=2" \
  --precision bf16-mixed
expect "... in its own" 0 "VALID: 2 layouts"
run 2 verify "$deck" device=cuda train.precision=fp16-mixed train.loss_scale=128 parallel.transport=nccl --layouts dp=2
expect "a deck of another device" 0 "parallel.transport is ignored: the runs are in fp64 on the CPU" "VALID: 1 layout"

run 2 verify "$debug" model.n_layer=1 parallel.tensor=2 --layouts quick --steps 1
expect "any deck, its own layout set aside, its data not read" 0 "97 is used" "VALID:"
run 0 verify "$deck" --layouts quick --steps 1
expect "without a launcher" 0 "on up to 1 rank" "VALID: 32 layouts"
run 0 verify "$deck" --layouts exhaustive:5 --steps 1
expect "some of all" 0 "5 of 57 legal ones, spread evenly" "VALID: 5 layouts"

run 2 verify "$deck" --layouts "dp=2 speed=2"
expect "an unknown word" 2 "unknown word 'speed'" "legal words: dp=, tp="
run 2 verify "$deck" --layouts "dp=2 grad_clip=2"
expect "... which is a key of decks" 2 "unknown word 'grad_clip'" "add optimizer.grad_clip=VALUE after the layouts"
run 0 verify --help
expect "the words of layouts" 0 "attention_chunk" "preload"
run 2 verify "$deck" --layouts "tp=3"
expect "a layout that is not legal" 2 "model.n_head = 8 cannot be divided among parallel.tensor = 3 ranks"
run 2 verify "$deck" --layouts "cp=2 attention_chunk=5"
expect "tiles of sequences that ranks divide" 2 "train.attention_chunk = 5" "parallel.context"
run 2 verify "$root/inputs/verify_asr.json" --layouts "head_chunk=5"
expect "chunks of a head that is none" 2 "train.head_chunk is for model.type"
run 2 verify "$deck" --layouts "dp=4"
expect "more ranks than there are" 2 "jobs/launch -n 4 build/choir verify"
run 2 verify "$deck" --steps 1 --layouts "tp2,tensor=2,parallel.data=2 zero1"
expect "layouts as a deck and as scaling.sh write them" 0 "dp=1 tp=2" "zero=1" "VALID: "
run 2 verify "$deck" --precision fp16
expect "another precision" 2 "--precision" "not one of fp64, fp32, bf16-mixed"
run 0 verify "$deck" --precision bf16-true
expect "one whose rounding would hide what is wrong" 2 "--precision" "differs so much from fp64" "bf16-mixed"
run 0 verify "$deck" --precision fp16-mixed
expect "one without a tolerance" 2 "--precision" "no tolerance is known" "bf16-mixed"
run 2 verify "$deck" model.n_headz=2
expect "a misspelt override" 2 "model.n_head"
run 2 verify missing.json
expect "no deck" 2 "cannot read the deck 'missing.json'"
run 2 verify "$deck" --layouts dp=2 --json no/such/folder.json
expect "a file that cannot be written" 6 "cannot write 'no/such/folder.json'"
