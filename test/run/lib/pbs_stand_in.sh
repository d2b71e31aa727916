# shellcheck shell=bash
# A stand-in for PBS: qsub, qstat and qdel in $work/bin that run jobs on this machine as PBS would,
# with PBS_JOBID, PBS_NODEFILE and PBS_O_WORKDIR, at most $PBS_STAND_IN_LIMIT of them, from a copy
# of the job file, after the job on which they depend, ended by SIGTERM at their walltime. Source
# this file after common.sh.
export PBS_STAND_IN=$work/pbs
mkdir -p "$work/bin" "$PBS_STAND_IN"
export PATH=$work/bin:$PATH

cat >"$work/bin/qsub" <<'END'
#!/usr/bin/env bash
after="" seconds=3600 variables=()
while [ $# -gt 1 ]; do
  case $1 in
    -v) IFS=, read -r -a variables <<<"$2" ;;
    -W) after=${2#depend=afterany:} ;;
    -l) case $2 in walltime=00:00:*) seconds=$((10#${2##*:})) ;; esac ;;
    -A | -q | -N) ;;
    *) echo "qsub: illegal option $1" >&2; exit 2 ;;
  esac
  shift 2
done
mkdir -p "$PBS_STAND_IN/queue"
if [ "$(ls "$PBS_STAND_IN/queue" | wc -l)" -ge "${PBS_STAND_IN_LIMIT:-1000}" ]; then
  echo "stand-in: the queue is full" >&2
  exit 38
fi
number=1
until mkdir "$PBS_STAND_IN/queue/$number.stand-in" 2>/dev/null; do number=$((number + 1)); done
id=$number.stand-in folder=$PBS_STAND_IN/queue/$number.stand-in
cp "$1" "$folder/job"
printf '%s\n' "$(hostname)" "$(hostname)" >"$folder/nodes"
echo "$seconds" >"$folder/seconds"
export PBS_JOBID=$id PBS_NODEFILE=$folder/nodes PBS_O_WORKDIR=$PWD PBS_O_HOST=login
(
  until [ -z "$after" ] || [ -e "$PBS_STAND_IN/queue/$after/code" ]; do sleep 0.05; done
  code=0
  cd "$PBS_STAND_IN" && env ${variables[@]+"${variables[@]}"} timeout --kill-after=2 "$seconds" bash "$folder/job" || code=$?
  echo "$code" >"$folder/code.new" && mv "$folder/code.new" "$folder/code"
) >"$folder/out" 2>&1 </dev/null &
echo "$id"
END
cat >"$work/bin/qstat" <<'END'
#!/usr/bin/env bash
# qstat -f JOB
[ "$1" = -f ] || exit 2
printf 'Job Id: %s\n    Job_Name = choir\n    Resource_List.walltime = 00:00:%02d\n' "$2" \
  "$(cat "$PBS_STAND_IN/queue/$2/seconds")"
END
cat >"$work/bin/qdel" <<'END'
#!/usr/bin/env bash
echo "$1" >>"$PBS_STAND_IN/deleted"
END
chmod +x "$work/bin/qsub" "$work/bin/qstat" "$work/bin/qdel"

# pbs_wait SECONDS: waits until every submitted job has ended. Appends their output to out, sets
# `codes`.
pbs_wait() {
  local until=$((SECONDS + $1)) folder
  for folder in $(ls -d "$PBS_STAND_IN"/queue/* | sort -V); do
    until [ -e "$folder/code" ]; do
      [ "$SECONDS" -lt "$until" ] || { echo "$folder has not ended" >>out; codes=hung; return 1; }
      sleep 0.05
    done
  done
  codes=$(for folder in $(ls -d "$PBS_STAND_IN"/queue/* | sort -V); do cat "$folder/code"; done | paste -sd' ')
  for folder in $(ls -d "$PBS_STAND_IN"/queue/* | sort -V); do cat "$folder/out"; done >>out
  rm -rf "$PBS_STAND_IN/queue"
}
