#!/usr/bin/env bash
# Long tests of layouts on two and three hosts: other families, more ranks than cores, hosts with
# unequal numbers of ranks.
# shellcheck source=test/run/lib/nodes.sh
. "$(dirname "$0")/../lib/nodes.sh"
nodes_enclose "$0" "$@"
. "$(dirname "$0")/../lib/common.sh"
if [ -n "$nodes_why" ]; then
  skip "several hosts on this machine" "$nodes_why"
  exit
fi
trap 'nodes_down; finish' EXIT
limit=1800
for hosts in node0:2,node1:2 node0:4,node1:4 node0:2,node1:1,node2:1; do
  check "hosts for $hosts" nodes_up "$(tr , '\n' <<<"$hosts" | wc -l)" 1gbit
  for family in gpt asr; do
    on_nodes "$hosts" verify "$root/inputs/verify_$family.json" --layouts quick
    expect "$family on $hosts" 0 "VALID:"
    tail -n 1 out
  done
done
