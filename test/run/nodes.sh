#!/usr/bin/env bash
# Ranks on two and three hosts, TCP between them and shared memory inside: layouts give the results
# of one rank, and each host sends no more than it must. A link that is cut and a host that dies end
# a run with a message and an exit code; a slow host is named; different clocks of hosts change
# nothing.
# shellcheck source=test/run/lib/nodes.sh
. "$(dirname "$0")/lib/nodes.sh"
nodes_enclose "$0" "$@"
# shellcheck source=test/run/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
if [ -n "$nodes_why" ]; then
  skip "several hosts on this machine" "$nodes_why"
  exit
fi
trap 'nodes_down; finish' EXIT
alone=(eval.interval=0 checkpoint.interval=0)
spread() {  # spread HOSTS NAME OVERRIDE...: a training
  local at=$1 name=$2
  shift 2
  on_nodes "$at" train "$debug" "${small[@]}" run.dir="$name" "$@"
}

check "two hosts with a network between them" nodes_up 2 1gbit
hosts=node0:2,node1:2
on_nodes "$hosts" verify "$root/inputs/verify_gpt.json" --layouts quick
expect "layouts across two hosts are what one rank computes" 0 "VALID: 32 layouts"

# An all-reduce of B bytes over two hosts sends B bytes from each of them. Gradients have 4 bytes
# per parameter; the other messages of the steps, and TCP's own, are less than a tenth of that.
steps() {  # steps NUMBER: bytes that node0 sent in this many steps
  local before
  before=$(sent node0)
  spread "$hosts" "steps$1" "${alone[@]}" model.n_embd=256 model.n_head=4 train.max_steps="$1"
  bytes=$(($(sent node0) - before))
}
steps 2
few=$bytes
steps 6
expect "training on two hosts" 0 "ranks 4 on 2 nodes (node0, node1)" "dp by two-level" "step=6"
parameters=$(sed -nE 's/.*[^0-9,]([0-9,]+) parameters.*/\1/p' out | head -n 1 | tr -d ,)
check "each host sends the bytes of its gradients once a step" awk -v sent=$((bytes - few)) -v must=$((4 * 4 * ${parameters:-0})) \
  'BEGIN { print sent, "bytes for", must; exit !(must > 1e7 && sent >= must && sent < 1.1 * must) }'

# Over a link so slow that nothing else counts, large messages of MPI are sent in both directions at
# once: Open MPI must be told to send them without a handshake, and not to reduce along a tree. One
# after the other they take twice as long, and longer.
nodes_up 2 200mbit 25kb
for way in "4194304" "262144 --as-engine"; do  # including data in one piece
  bytes=${way% *}
  # shellcheck disable=SC2086  # words
  on_nodes node0:1,node1:1 bench collectives --repeats 3 --csv rows.csv --min-bytes "$bytes" --max-bytes $way
  expect "collectives over a slow link: $way" 0
  check "... of MPI use it in both directions" awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    $at["transport"] == "mpi" && $at["name"] ~ /^(all_reduce|reduce_scatter|all_gather|all_to_all|sendrecv)$/ {
      half = $at["bytes"] / 2 * 8 / 200e6
      ratio = $at["us"] / 1e6 / ($at["name"] ~ /^(all_reduce|sendrecv)$/ ? 2 * half : half)
      print $at["name"], ratio, "x the link"
      rows++
      if (ratio > 1.5) slow = 1
    } END { exit slow || rows != 5 }' rows.csv
done
nodes_up 2 1gbit

# A slow host delays the others, and is named; it changes no bit.
spread "$hosts" plain "${alone[@]}" train.max_steps=60
expect "sixty steps" 0 "step=60"
: >out
{ wait_for out "step=1 " && slow_node node1; } &
spread "$hosts" slow "${alone[@]}" train.max_steps=60 watch.ranks=20
wait
expect "one host is slow" 0 "step=60"
check "... which is named" test "$(grep -cE '"slowest_rank":[23],"slowest_host":"node1"' slow/metrics.jsonl)" -ge 2 -a \
  "$(grep -c '"slowest_rank":' slow/metrics.jsonl)" = 3
check "... with the same losses" same_losses plain slow

# The clocks since start differ by a day in all of these tests; now the wall clock does, too.
if check "a host whose wall clock is more than an hour ahead" wrong_clock node1 5000; then
  check "... it is" test $(($(LD_PRELOAD=./node1.so date +%s) - $(date +%s))) -ge 4999
  spread "$hosts" clock checkpoint.interval=30 train.max_steps=60 parallel.timeout=30 fault.enable=true fault.stop_step=30
  expect "... a run stops, saved" 75
  spread "$hosts" clock checkpoint.interval=30 train.max_steps=60 parallel.timeout=30
  expect "... and continues" 0 "step=60"
  check "... with the same losses" same_losses plain clock
  spread "$hosts" hang "${alone[@]}" parallel.timeout=2 fault.enable=true fault.hang_rank=3 fault.hang_step=4
  expect "... a rank that hangs there is named" 5 "all nodes together: rank 3 on node1 is behind"
  check "... and for how long: seconds" matches <(sed -n 's/.*all nodes together: //p' out) "rank [012] on node[01] has waited for [0-9]\.[0-9] s"
fi

# Faults. mpiexec has a network of its own, so that it receives the output of the ranks when their
# network is cut.
limit=60
fault() {  # fault NAME WHAT: the fault happens to node1 in step 10 of a run
  nodes_down
  nodes_up 2 || fail "$1" "no hosts"
  : >out
  { wait_for out "step=10 " && "$2" node1; } &
  spread "$hosts" "$1" "${alone[@]}" parallel.timeout=3 watch.start=30 watch.first_step=30 \
    train.max_steps=1000000
  wait
}
wait_until_gone() {  # wait_until_gone NODE: none of its ranks remains
  local until=$((SECONDS + 10 * patience))
  while [ -n "$(ranks_of "$1")" ]; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.05
  done
}
one_of() { case " $2 " in *" $1 "*) ;; *) echo "exit code $1, not of $2" && tail -n 25 out && return 1 ;; esac; }
fault cut cut_link
expect "a link is cut" 5 "made no progress for 3." "all nodes together: " "stopping all ranks with exit code 5"
# Open MPI's launcher ends with 205 if it sees a daemon end before it is told of its ranks.
fault dead kill_node
check "all of a host is killed" one_of "$code" "205 137 5"
check "... which is said" matches out "on node node1|signal 9|has died|made no progress"
# A host without power sends nothing any more, also not to mpiexec, which waits for that host's
# daemon forever. That is no fault of ours. The ranks must have reported what they see, and ended.
no_power() {
  power_off node1
  wait_for out "exit code 5" && wait_until_gone node0
  echo "ranks of node0 are gone: $?" >gone
  kill_node node0
}
fault off no_power
check "a host is without power: the others say so" matches out "watchdog: .* nothing came from ranks 2-3 on node1.*stopping all ranks with exit code 5"
check "... and end" has gone "are gone: 0"

# Three hosts with different numbers of ranks; pairs inside one host and across hosts.
spread_64() { spread "$1" "$2" "${alone[@]}" train.precision=fp64 train.max_steps=5 "${@:3}"; }
nodes_down
check "three hosts with a network between them" nodes_up 3 1gbit
train 1 one "${alone[@]}" train.precision=fp64 train.max_steps=5
spread_64 node0:2,node1:1,node2:1 data
expect "data over 2 + 1 + 1 ranks" 0 "on 3 nodes" "dp by two-level"
check "... is what one rank computes" close_losses one data 1e-12
spread_64 node0:2,node1:1,node2:1 tensor parallel.tensor=2 parallel.zero=3
expect "tensor pairs, one of them across hosts" 0 "tp by "
check "... is what one rank computes" close_losses one tensor 1e-12
