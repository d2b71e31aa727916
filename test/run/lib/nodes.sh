# shellcheck shell=bash
# Several hosts of one machine, for test/run/*.sh: network namespaces with host names of their own on one switch, TCP
# between them at a limited rate, shared memory inside. Sourced after common.sh.
#
#   nodes_possible                    0, or prints why not: it takes root, namespaces, ip and tc
#   nodes_up 3 1gbit                  node0 .. node2, each of which sends at most so fast
#   on_nodes 2 node0:2,node1:1 COMMAND...   as `run`: ranks on hosts, sets $code; out has what was said
#   sent node1                        bytes that it has sent so far
#   cut_link node1                    no messages get in or out any more;  kill_node node1: its processes die
#
# Namespaces have no names: a sleeping process holds each, and dies with this script however that ends.
declare -A node_holder=()

nodes_possible() {
  local tool
  [ "$(id -u)" = 0 ] || { echo "it takes root"; return 1; }
  for tool in ip tc nsenter unshare setpriv; do
    command -v "$tool" >/dev/null 2>&1 || { echo "there is no $tool (packages iproute2 and util-linux)"; return 1; }
  done
  unshare --net --uts --ipc true 2>/dev/null || { echo "namespaces may not be made here"; return 1; }
  unshare --net sh -c 'ip link add port0 type veth peer name port1 && ip link add bridge type bridge' 2>/dev/null ||
    { echo "the kernel has no veth or no bridge"; return 1; }
}

hold_node() {  # hold_node NAME: a namespace with this host name, kept by a process
  setpriv --pdeathsig KILL unshare --net --uts --ipc sleep infinity &
  node_holder[$1]=$!
  until [ "$(readlink "/proc/$!/ns/net" 2>/dev/null)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  nsenter -t $! --uts hostname "$1"
}
at_node() {  # at_node NAME COMMAND...: there
  local holder=${node_holder[$1]}
  shift
  nsenter -t "$holder" --net --uts --ipc "$@"
}

wire() {  # wire NODE INTERFACE ADDRESS: one end at the node, the other on the switch
  local port=$2.${1#node}
  at_node switch ip link add "$port" type veth peer name "$2" netns "${node_holder[$1]}" &&
    at_node switch ip link set "$port" master "$2" up &&
    at_node "$1" ip addr add "$3" dev "$2" &&
    at_node "$1" ip link set "$2" up
}
nodes_up() {  # nodes_up NODES [RATE]: of the network of MPI, net0; mpiexec and its daemons have one of their own, oob0
  local i name
  nodes_down
  hold_node switch
  for name in net0 oob0; do
    at_node switch ip link add "$name" type bridge && at_node switch ip link set "$name" up || return 1
  done
  cat >agent <<'EOF'
#!/usr/bin/env bash
# agent HOST COMMAND...: what ssh is to Open MPI
exec nsenter -t "$(cat "$(dirname "$0")/$1.holder")" --net --uts --ipc bash -c "exec $(shift; echo "$*")"
EOF
  chmod +x agent
  for ((i = 0; i < $1; i++)); do
    name=node$i
    hold_node "$name"
    echo "${node_holder[$name]}" >"$name.holder"
    at_node "$name" ip link set lo up && wire "$name" net0 "10.77.0.$((i + 1))/24" &&
      wire "$name" oob0 "10.78.0.$((i + 1))/24" || return 1
    [ -n "${2:-}" ] || continue
    at_node "$name" tc qdisc add dev net0 root tbf rate "$2" burst 256kb latency 50ms ||
      echo "# the kernel does not limit rates (tbf): the link of $name is as fast as memory"
  done
}
nodes_down() {
  local name
  for name in "${!node_holder[@]}"; do
    kill -9 "${node_holder[$name]}" 2>/dev/null
    wait "${node_holder[$name]}" 2>/dev/null
  done
  node_holder=()
}
sent() { at_node "$1" awk '/net0:/ { sub(/.*:/, ""); print $9 }' /proc/net/dev; }
cut_link() { at_node "$1" ip link set net0 down; }
kill_node() {  # its ranks and its daemon, not what holds it
  local space process
  space=$(readlink "/proc/${node_holder[$1]}/ns/net")
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$space" ] || continue
    process=${process#/proc/}
    [ "$process" = "${node_holder[$1]}" ] || kill -9 "$process"
  done
}

# The mpiexec of Open MPI on node0, which finds the others by the agent. Waits that spin would starve TCP of the core.
node_mpiexec() {  # node_mpiexec HOSTS COMMAND...
  local hosts=$1
  shift
  launch_environment 4
  at_node node0 env OMPI_MCA_odls_base_sigkill_timeout=0 OMPI_MCA_mpi_yield_when_idle=1 setpriv --pdeathsig TERM \
    timeout --kill-after=5 $((limit * patience)) mpiexec --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include oob0 \
    --mca btl_tcp_if_include net0 --mca btl self,vader,tcp --bind-to none --oversubscribe -x OMP_NUM_THREADS \
    -x OMPI_MCA_mpi_yield_when_idle --host "$hosts" "$@"
}
on_nodes() {  # on_nodes HOSTS ARGUMENT...: `choir ARGUMENT...`, a rank for each place of HOSTS
  local hosts=$1
  shift
  command="choir $* on $hosts"
  node_mpiexec "$hosts" "$choir" "$@" >out 2>&1 </dev/null
  code=$?
  code_of_launcher
}
