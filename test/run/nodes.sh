#!/usr/bin/env bash
# Ranks on two hosts, TCP between them and shared memory inside: every layout computes what one rank does, each host
# sends what it must and no more, and a link that is cut or a host that dies ends a run, by name, with an exit code.
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=test/run/lib/nodes.sh
. "$root/test/run/lib/nodes.sh"
if ! why=$(nodes_possible); then
  echo "# not run: several hosts on this machine: $why"
  pass "several hosts cannot be had here, which is said"
  exit
fi
trap 'nodes_down; finish' EXIT
check "two hosts with a network between them" nodes_up 2 1gbit
hosts=node0:2,node1:2

on_nodes "$hosts" verify "$root/inputs/verify_gpt.json" --layouts quick
expect "layouts across two hosts are what one rank computes" 0 "VALID: 32 layouts"

# An all-reduce of B bytes over two hosts takes B of each of them. Gradients are 4 bytes a parameter; what else the steps
# say to each other, and TCP's own, is less than a tenth of that.
wide=(model.n_embd=256 model.n_layer=4 model.n_head=4 eval.interval=0 checkpoint.interval=0)
steps() {  # steps NUMBER: bytes that node0 sent for so many
  local before
  before=$(sent node0)
  on_nodes "$hosts" train "$debug" "${small[@]}" run.dir="steps$1" "${wide[@]}" train.max_steps="$1"
  bytes=$(($(sent node0) - before))
}
steps 2
few=$bytes
steps 6
expect "training on two hosts" 0 "two-level" "step=6"
parameters=$(sed -nE 's/.*[^0-9,]([0-9,]+) parameters.*/\1/p' out | head -n 1 | tr -d ,)
check "each host sends the bytes of its gradients once a step" awk -v sent=$((bytes - few)) -v must=$((4 * 4 * ${parameters:-0})) \
  'BEGIN { print sent, "bytes for", must; exit !(must > 1e7 && sent >= must && sent < 1.1 * must) }'

# Faults. mpiexec has a network of its own, so that it learns what the ranks say when theirs is cut.
endless=(eval.interval=0 checkpoint.interval=0 train.max_steps=1000000 parallel.timeout=3 watch.start=30 watch.first_step=30)
limit=40
: >out
nodes_down
check "two hosts again" nodes_up 2
{ wait_for out "step=10 " && cut_link node1; } &
on_nodes "$hosts" train "$debug" "${small[@]}" run.dir=cut "${endless[@]}"
expect "a link is cut" 5 "made no progress for 3.0 s" "stopping all ranks with exit code 5"
nodes_down
check "two hosts once more" nodes_up 2
: >out
{ wait_for out "step=10 " && kill_node node1; } &
on_nodes "$hosts" train "$debug" "${small[@]}" run.dir=dead "${endless[@]}"
check "a host dies: the run ends with an error and does not hang" test "$code" -ne 0 -a "$code" -ne 124
check "... which is said" matches out "node1|daemon|made no progress|died"
