# shellcheck shell=bash disable=SC2154  # batch is of lib/place.sh
# The remaining time of a job, and the time before its end at which it must save. Source this file.

# [D-]HH:MM:SS, MM:SS or seconds, as batch systems write them; empty for anything else (UNLIMITED).
deadline_seconds() {  # deadline_seconds TEXT
  [[ ${1:-} =~ ^(([0-9]+)-)?(([0-9]+):)?(([0-9]+):)?([0-9]+)$ ]] || return 0
  local days=${BASH_REMATCH[2]:-0} hours=${BASH_REMATCH[4]:-0} minutes=${BASH_REMATCH[6]:-0} rest=${BASH_REMATCH[7]}
  # With one colon only, the first part is the minutes.
  [ -n "${BASH_REMATCH[5]}" ] || { minutes=$hours; hours=0; }
  echo $((10#$days * 86400 + 10#$hours * 3600 + 10#$minutes * 60 + 10#$rest))
}

# Seconds until the batch system ends this job; empty if it has no limit or does not report one.
# $WALLTIME (the whole job's) has precedence, for systems that do not report it.
deadline_left() {
  local told=""
  if [ -n "${WALLTIME:-}" ]; then told=$(deadline_seconds "$WALLTIME")
  elif [ "$batch" = slurm ]; then
    deadline_seconds "$(squeue -h -j "$SLURM_JOB_ID" -o %L 2>/dev/null)"  # the remaining time, not the requested one
    return
  elif [ "$batch" = pbs ]; then
    told=$(deadline_seconds "$(qstat -f "$PBS_JOBID" 2>/dev/null | sed -nE 's/^ *Resource_List\.walltime = //p')")
  fi
  # shellcheck disable=SC2015  # both parts only print
  [ -n "$told" ] && echo $((told > SECONDS ? told - SECONDS : 0)) || true
}

# The slowest save in the log of a run, in whole seconds, rounded up; empty if there was none.
deadline_slowest_save() {  # deadline_slowest_save RUN_DIR
  sed -nE 's/.*\] checkpoint [^(]*\([^,]*, ([^,]*), [^,;]*\/s[;)].*/\1/p' "$1/log.txt" 2>/dev/null | awk '
    { s = 0
      for (i = 1; i <= NF; ++i) {
        if ($i ~ /^[0-9]+h$/) s += 3600 * $i
        else if ($i ~ /^[0-9]+m$/) s += 60 * $i
        else if ($i ~ /^[0-9]+s$/) s += $i
        else if ($i == "s") s += $(i - 1)
        else if ($i == "ms") s += $(i - 1) / 1000
      }
      if (s > most) most = s }
    END { if (NR > 0) print int(most) + (most > int(most)) }'
}

# Seconds before the end at which the last save begins: enough for two saves as slow as the slowest
# so far (the trainer adds its own measurements); a tenth of the job before the first save, so that
# it is not lost; the deck's value if that is more; never more than half of the remaining time.
deadline_margin() {  # deadline_margin LEFT SLOWEST_SAVE DECK_MARGIN
  local margin=60
  if [ -n "$2" ]; then [ $((2 * $2)) -le "$margin" ] || margin=$((2 * $2))
  elif [ $(($1 / 10)) -gt "$margin" ]; then margin=$(($1 / 10 < 600 ? $1 / 10 : 600))
  fi
  [ "$3" -le "$margin" ] || margin=$3
  echo $((margin < $1 / 2 ? margin : $1 / 2))
}
