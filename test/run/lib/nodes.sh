# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables of the scripts and of common.sh
# Several hosts of one machine, for test/run/*.sh: namespaces with a network address, a host name and a clock of their
# own on a switch, TCP between them at a limited rate, shared memory inside. Sourced before common.sh:
#
#   nodes_enclose "$0" "$@"           the script starts again where nothing outlives it; sets $nodes_why if that is impossible
#   nodes_up 3 1gbit                  node0 .. node2, each of which sends at most at this rate; node I was started I days earlier.
#   nodes_up 3 125mbit 16kb           ... after a pause 16 KB at once (256kb, or 1 Gbit/s would not be reached both ways at once
#                                     on two cores: 0.72 with 64kb). A smaller message that comes alone is free
#   on_nodes node0:2,node1:1 ARGUMENT...   like `run`: one rank per slot, sets $code; out has the output
#   sent node1                        bytes that it has sent so far
#   cut_link node1                    no messages of ranks are received or sent any more; mpiexec still reaches its daemons
#   kill_node node1                   its processes die;  power_off node1: no message is received or sent, then they die
#   slow_node node1                   its ranks run a tenth of the time;  wrong_clock node1 3600: its wall clock is ahead
#
# The processes are in a PID namespace: the kernel kills all of them with the script, however that ends. The network
# and /dev/shm, which also has the files of the test, disappear with the last of them.
nodes_private=(--net --uts --ipc --mount --pid --fork --kill-child=KILL --mount-proc)
nodes_why=""
declare -A node_holder=()

nodes_possible() {
  local tool
  [ "$(id -u)" = 0 ] || { echo "it takes root"; return 1; }
  for tool in ip tc nsenter unshare setpriv; do
    command -v "$tool" >/dev/null 2>&1 || { echo "there is no $tool (packages iproute2 and util-linux)"; return 1; }
  done
  case "$(mpiexec --version 2>/dev/null)" in *"(OpenRTE) 4"* | *"(Open MPI) 4"*) ;; *) echo "mpiexec is not that of Open MPI 4"; return 1 ;; esac
  unshare "${nodes_private[@]}" mount -t tmpfs tmpfs /dev/shm 2>/dev/null || { echo "namespaces may not be made here"; return 1; }
  unshare --net sh -c 'ip link add port0 type veth peer name port1 && ip link add switch0 type bridge &&
    ip link set port0 up && tc qdisc add dev port0 root tbf rate 1gbit burst 256kb latency 50ms' 2>/dev/null ||
    { echo "the kernel lacks veth, bridge or tbf"; return 1; }
}

nodes_enclose() {  # nodes_enclose SCRIPT ARGUMENT...
  if [ -n "${CHOIR_TEST_NODES:-}" ]; then
    mount -t tmpfs tmpfs /dev/shm && ip link set lo up && export TMPDIR=/dev/shm
    return
  fi
  nodes_why=$(nodes_possible) && nodes_why="" || return 0
  CHOIR_TEST_NODES=1 setpriv --pdeathsig KILL unshare "${nodes_private[@]}" bash "$@" &
  trap 'kill -9 %1; exit 130' INT TERM HUP
  wait %1
  exit
}

hold_node() {  # hold_node NAME SECONDS: a namespace with this host name and so old a clock, kept by a process
  local clock=()
  if unshare --time true 2>/dev/null; then clock=(--time --monotonic "$2" --boottime "$2"); fi
  rm -f "$1.holder"
  # shellcheck disable=SC2016  # they are the inner shell's
  unshare --net --uts --ipc "${clock[@]}" --fork --kill-child=KILL \
    sh -c 'hostname "$1" && echo $$ >"$1.new" && mv "$1.new" "$1.holder" && exec sleep infinity' sh "$1" &
  disown
  wait_for "$1.holder" "" && node_holder[$1]=$(cat "$1.holder")
}
at_node() {  # at_node NAME COMMAND...: there
  local holder=${node_holder[$1]} clock=()
  shift
  [ ! -e "/proc/$holder/ns/time" ] || clock=(--time)
  nsenter -t "$holder" --net --uts --ipc "${clock[@]}" "$@"
}

wire() {  # wire NODE INTERFACE ADDRESS: one end at the node, the other on the switch
  local port=$2.${1#node}
  at_node switch ip link add "$port" type veth peer name "$2" netns "${node_holder[$1]}" &&
    at_node switch ip link set "$port" master "$2" up &&
    at_node "$1" ip addr add "$3" dev "$2" &&
    at_node "$1" ip link set "$2" up
}
nodes_up() {  # nodes_up NODES [RATE [BURST]]: of the network of MPI, net0; mpiexec and its daemons have one of their own, oob0
  local i name
  nodes_down
  hold_node switch 0
  for name in net0 oob0; do
    at_node switch ip link add "$name" type bridge && at_node switch ip link set "$name" up || return 1
  done
  cat >agent <<'EOF'
#!/usr/bin/env bash
# agent HOST COMMAND...: a replacement of ssh for Open MPI.
cd "$(dirname "$0")" && host=$1 clock="" preload=""
shift
[ ! -e "/proc/$(cat "$host.holder")/ns/time" ] || clock=--time
[ ! -e "$host.so" ] || preload="LD_PRELOAD=$PWD/$host.so"
nsenter -t "$(cat "$host.holder")" --net --uts --ipc $clock bash -c "exec env $preload $*"
code=$?
[ ! -e "$host.off" ] || exec sleep infinity  # nobody informs the remaining end
exit "$code"
EOF
  chmod +x agent
  for ((i = 0; i < $1; i++)); do
    name=node$i
    hold_node "$name" $((i * 86400)) && at_node "$name" ip link set lo up &&
      wire "$name" net0 "10.77.0.$((i + 1))/24" && wire "$name" oob0 "10.78.0.$((i + 1))/24" || return 1
    [ -z "${2:-}" ] || at_node "$name" tc qdisc add dev net0 root tbf rate "$2" burst "${3:-256kb}" latency 50ms || return 1
  done
}
nodes_down() {
  local name
  for name in "${!node_holder[@]}"; do
    kill_node "$name"
    kill -9 "${node_holder[$name]}"
    rm -f "$name.so" "$name.off"
  done 2>/dev/null
  node_holder=()
}
sent() { at_node "$1" awk '/net0:/ { sub(/.*:/, ""); print $9 }' /proc/net/dev; }
cut_link() { at_node "$1" ip link set net0 down; }
processes_of() {  # its ranks and its daemon, not the process that keeps it
  local space process
  space=$(readlink "/proc/${node_holder[$1]}/ns/net")
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$space" ] || continue
    process=${process#/proc/}
    [ "$process" = "${node_holder[$1]}" ] || echo "$process"
  done
}
ranks_of() {
  local process
  for process in $(processes_of "$1"); do
    [ "$(cat "/proc/$process/comm" 2>/dev/null)" != choir ] || echo "$process"
  done
}
# shellcheck disable=SC2046
kill_node() { kill -9 $(processes_of "$1") 2>/dev/null; }
power_off() {  # nobody notices that a connection was closed
  : >"$1.off"
  at_node "$1" ip link set net0 down
  at_node "$1" ip link set oob0 down
  kill_node "$1"
}
slow_node() {  # until its ranks have ended
  local ranks
  ranks=$(ranks_of "$1")
  # shellcheck disable=SC2086
  while kill -STOP $ranks; do
    sleep 0.1
    kill -CONT $ranks
    sleep 0.01
  done 2>/dev/null
}
wrong_clock() {  # wrong_clock NODE SECONDS: for processes started from now on. Namespaces share the wall clock
  cat >clock.c <<'EOF'
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec* at) {
  const int code = (int)syscall(SYS_clock_gettime, id, at);
  if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += AHEAD;
  return code;
}
int gettimeofday(struct timeval* at, void* zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
EOF
  cc -O1 -shared -fPIC -D"AHEAD=$2" clock.c -o "$1.so"
}

# The mpiexec of Open MPI on node0, which reaches the others through the agent. Busy waits would
# starve TCP of the core.
on_nodes() {  # on_nodes HOSTS ARGUMENT...: `choir ARGUMENT...`, one rank per slot of HOSTS
  local hosts=$1
  shift
  command="choir $* on $hosts"
  launch_environment 4
  at_node node0 env OMPI_MCA_odls_base_sigkill_timeout=0 OMPI_MCA_mpi_yield_when_idle=1 \
    timeout --kill-after=5 $((limit * patience)) mpiexec --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include oob0 \
    --mca btl_tcp_if_include net0 --mca btl self,vader,tcp --bind-to none --oversubscribe -x OMP_NUM_THREADS \
    -x OMPI_MCA_mpi_yield_when_idle --host "$hosts" "$choir" "$@" >out 2>&1 </dev/null
  code=$?
  code_of_launcher
}
