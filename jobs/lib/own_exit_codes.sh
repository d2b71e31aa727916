#!/usr/bin/env bash
# own_exit_codes.sh: standard error of Open MPI's mpiexec without its notices, between lines of dashes, that a rank ended by
# one of choir's exit codes: choir says why, and the code is that of mpiexec. Ranks killed by signals, missing slots and all
# else pass. (Not awk: that of Debian holds back what it reads from a pipe.)
trap '' INT TERM HUP USR1  # lives as long as mpiexec
dashes='^-{70,80}$' own='Exit code: +(2|3|4|5|6|75)'$'\n' inside="" notice=""
while IFS= read -r line || [ -n "$line" ]; do
  if [[ $line =~ $dashes ]] && [ -z "$inside" ]; then inside=yes notice=$line$'\n'; continue; fi
  if [ -z "$inside" ]; then printf '%s\n' "$line"; continue; fi
  notice+=$line$'\n'
  [[ $line =~ $dashes || ${#notice} -gt 4000 ]] || continue
  [[ $notice == *"Per user-direction, the job has been aborted"* || $notice =~ $own ]] || printf '%s' "$notice"
  inside="" notice=""
done
printf '%s' "$notice"
