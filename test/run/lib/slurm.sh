# shellcheck shell=bash
# A SLURM of one node that belongs to a test: its own munged, slurmctld and slurmd, with everything
# they write below $work and two free ports. It needs neither root nor systemd nor cgroups, and does
# not use /etc. Source this file after common.sh; call slurm_start, and slurm_stop before the end.
slurm_there() {
  local program
  PATH=$PATH:/usr/sbin
  for program in munged slurmctld slurmd sbatch; do command -v "$program" >/dev/null || return 1; done
}

# two_free_ports: prints the first of two adjacent ports on which nobody listens.
two_free_ports() {
  local port
  while :; do
    port=$((20000 + RANDOM % 10000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || (exec 3<>"/dev/tcp/127.0.0.1/$((port + 1))") 2>/dev/null ||
      { echo "$port"; return; }
  done
}
slurm_start() {  # slurm_start CPUS: as many as the node claims to have
  slurm=$work/slurm
  local host port
  host=$(hostname -s)
  port=$(two_free_ports)
  mkdir -p "$slurm/state" "$slurm/spool"
  chmod 755 "$work" "$slurm"
  head -c 1024 /dev/urandom >"$slurm/munge.key"
  chmod 600 "$slurm/munge.key"
  munged --socket="$slurm/munge.sock" --key-file="$slurm/munge.key" --pid-file="$slurm/munged.pid" \
    --log-file="$slurm/munged.log" --seed-file="$slurm/munge.seed" || return 1
  cat >"$slurm/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$slurm/munge.sock
CredType=cred/munge
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait=30
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=$1 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
END
  export SLURM_CONF=$slurm/slurm.conf
  slurmctld && slurmd || return 1
  local until=$((SECONDS + 30))
  until sinfo -h -o %t 2>/dev/null | grep -q idle; do
    [ "$SECONDS" -lt "$until" ] || { tail -n 5 "$slurm"/*.log; return 1; }
    sleep 0.2
  done
}

slurm_stop() {
  local daemon pid
  scancel --user="$(id -un)" 2>/dev/null
  for daemon in slurmd slurmctld munged; do
    pid=$(cat "$slurm/$daemon.pid" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
    kill -9 "$pid" 2>/dev/null
  done
}

# slurm_wait SECONDS: waits until the queue is empty.
slurm_wait() {
  local until=$((SECONDS + $1))
  while [ -n "$(squeue -h 2>/dev/null)" ]; do
    [ "$SECONDS" -lt "$until" ] || { squeue; return 1; }
    sleep 0.5
  done
}
