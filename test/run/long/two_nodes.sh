#!/usr/bin/env bash
# A hang on several nodes: the rank that is behind is named across nodes, once for all. The nodes
# are rehearsed on this machine: a daemon of Open MPI for each, reached by a stand-in for ssh, so
# that ranks share memory only with those of their own node.
. "$(dirname "$0")/../lib/common.sh"
limit=120  # ranks of two nodes communicate by TCP, and do not yield the core while they wait
cat >ssh <<'END'
#!/usr/bin/env bash
# ssh [OPTION]... HOST COMMAND...: runs the command here, under that host's name if it may be
# changed.
while [[ $1 = -* ]]; do shift; done
host=$1
shift
if unshare -u true 2>/dev/null; then exec unshare -u sh -c "hostname $host; $*"; fi
exec sh -c "$*"
END
chmod +x ssh
named() { if unshare -u true 2>/dev/null; then echo "$1"; else hostname; fi; }
a=$(named nodea) b=$(named nodeb)
launch_environment 4
nodes() {  # nodes HOSTS NAME OVERRIDE...: one rank per slot of HOSTS; the rest as for train
  local hosts=$1 name=$2 line=(mpiexec)
  shift 2
  command="choir train on $hosts: $*" code=0
  if unshare -u true 2>/dev/null; then line=(unshare -u sh -c 'hostname nodea && exec "$@"' sh mpiexec); fi
  timeout --kill-after=5 "$limit" "${line[@]}" --mca plm_rsh_agent "$work/ssh" --mca oob_tcp_if_include lo \
    --mca btl_tcp_if_include lo --host "$hosts" -x OMP_NUM_THREADS "$choir" train "$debug" "${small[@]}" run.dir="$name" \
    eval.interval=0 checkpoint.interval=0 parallel.timeout=2 watch.start=30 watch.first_step=30 fault.enable=true "$@" \
    >out 2>&1 </dev/null || code=$?
}
said() { sed -n 's/.*choir: watchdog: all nodes together: //p' out; }

nodes nodea:2,nodeb:2 hang fault.hang_rank=3 fault.hang_step=4 fault.phase=forward
expect "two nodes of two ranks: one hangs" 5 "4 ranks, 2 nodes of 2" "rank 3 on $b is behind, in phase \"step 4: forward\"" \
  "the last calls of each rank are in hang/flight" "stopping all ranks with exit code 5"
check "... is named once for all nodes" test "$(said | wc -l)" = 1
check "... with the call that it has not entered" matches <(said) "rank 3 on $b \(process [0-9]+\) has not entered [a-z_]+ #[0-9]+ of .*, where rank 0 on $a has waited for"
check "... nobody is missing" lacks <(said) "nothing came"
check "... one rank of each node says what it knows" test "$(grep -c "made no progress" out)" = 2
check "... and it is kept" has hang/flight/report.txt "rank 3 on $b is behind"

nodes nodea:2,nodeb:1 stopped fault.pause_rank=2 fault.pause_step=4 fault.phase=forward
expect "the only rank of a node is stopped, and its watchdog with it" 5 "all nodes together: nothing came from rank 2 on $b: stopped, dead" \
  "stopping all ranks with exit code 5"

nodes nodea:1,nodeb:1 stage parallel.pipeline=2 fault.hang_rank=1 fault.hang_step=4 fault.phase=backward
expect "a stage on a node of its own hangs" 5 "rank 1 on $b (process" "is the other end of exchange #" \
  "in phase \"step 4: stage 1 of 2, backward of micro-batch"
