#!/usr/bin/env bash
# own_exit_codes.sh: filters the standard error of Open MPI's mpiexec. It removes the notices,
# between lines of dashes, that a rank ended by one of choir's exit codes, because choir prints the
# reason and mpiexec returns the code, and the note that it forwards a signal. Ranks killed by
# signals, missing slots and everything else pass; behind the notice of a rank that was killed
# stands a line on the likely causes. (Not awk: Debian's holds back text from a pipe.)
trap '' INT TERM HUP USR1  # lives as long as mpiexec
dashes='^-{70,80}$' own='Exit code: +(2|3|4|5|6|75)'$'\n' inside="" notice="" death=""
forwards='^[a-z]+: Forwarding signal [0-9]+ to job$'
killed='process rank ([0-9]+) with PID [0-9]+ on node ([^ ]+) exited on signal (9)'
while IFS= read -r line || [ -n "$line" ]; do
  if [[ $line =~ $dashes ]] && [ -z "$inside" ]; then inside=yes notice=$line$'\n'; continue; fi
  [[ ! $line =~ $forwards ]] || continue
  if [ -z "$inside" ]; then printf '%s\n' "$line"; continue; fi
  notice+=$line$'\n'
  [[ $line =~ $dashes || ${#notice} -gt 4000 ]] || continue
  [[ ! $notice =~ $killed ]] || death="choir: the process of rank ${BASH_REMATCH[1]} on ${BASH_REMATCH[2]} was killed by signal ${BASH_REMATCH[3]}"
  [[ $notice == *"Per user-direction, the job has been aborted"* || $notice =~ $own ]] || printf '%s' "$notice"
  [ -z "$death" ] || printf '%s\n' "$death"
  inside="" notice="" death=""
done
printf '%s' "$notice"
