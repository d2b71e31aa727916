# shellcheck shell=bash disable=SC2154  # run_dir, random_seed and overrides are the chain's, of its file `arguments`
# The record of a chain: jobs of a batch system, one after the other, that continue one run. Source
# this file. The folder of a chain is RUN/chains/K, with
#   arguments   deck, overrides, run_dir and random_seed, as bash reads them
#   jobs        the ids of the jobs, one a line
#   record      start JOB STEP SEED TIME, end JOB CODE STEP TIME, stop CODE WHY
# STEP is that of RUN/checkpoints/latest. All decisions here depend on these lines only.

# The step from which a run could be continued: 0 if there is none.
chain_step() {  # chain_step RUN_DIR
  local latest
  latest=$(readlink "$1/checkpoints/latest" 2>/dev/null)
  [[ $latest =~ ^step_([0-9]+)$ ]] || { echo 0; return; }
  echo $((10#${BASH_REMATCH[1]}))
}

# Decides from the record and the current step of the run if one more job has something to do.
# Prints one of
#   go | done | CODE WHY
# Another job can help after these exit codes: 75 saved, 5 communication, 137 killed. A job that
# began and did not write how it ended was killed with its script. Without a new checkpoint any of
# them would happen again.
chain_verdict() {  # chain_verdict RECORD STEP_NOW
  local word first second third last="" job="" code="" before=0 after=0
  [ -e "$1" ] || { echo go; return; }
  while read -r word first second third _; do
    case $word in
      start) last=start job=$first before=$second ;;
      end) last=end code=$second after=$third ;;
      stop) last=stop code=$first; break ;;
    esac
  done <"$1"
  case $last in
    "") echo go; return ;;
    stop) echo "$code $(sed -nE 's/^stop [0-9]+ //p' "$1" | tail -n 1)"; return ;;
    start) code=137 after=$2 ;;
  esac
  case $code in
    0) echo "done" ;;
    75 | 5 | 137)
      if [ "$after" -gt "$before" ]; then echo go
      else
        echo "$code job $job ended with exit code $code and left no checkpoint after step $before: it made no" \
          "progress, and another would do the same"
      fi ;;
    *) echo "$code job $job ended with exit code $code, which another job would not help" ;;
  esac
}

# Called at the start of a job. Returns 0 if there is work; otherwise prints the reason and ends the
# job: with 0 if the run is complete, else with the exit code that stopped the chain.
chain_begin() {  # chain_begin JOB
  local record=$CHOIR_CHAIN/record step verdict
  step=$(chain_step "$run_dir")
  verdict=$(chain_verdict "$record" "$step")
  case $verdict in
    go) ;;
    done)
      echo "chain: the run is complete (step $step of $run_dir): nothing left for job $1"
      exit 0 ;;
    *)
      echo "chain: stopped: ${verdict#* }. Job $1 does nothing. Look at $run_dir/log.txt; then submit a new chain." >&2
      grep -q '^stop ' "$record" || echo "stop $verdict" >>"$record"
      exit "${verdict%% *}" ;;
  esac
  if [ "$random_seed" = yes ]; then
    # One seed per job, not one per rank: all ranks get the same one, and the sampler gives
    # data-parallel ranks different parts of its order.
    seed=$(($(od -An -N4 -tu4 /dev/urandom) & 0x7fffffff))
    override "run.seed=$seed"
    # A resumed run does not take another seed unless told.
    override 'checkpoint.allow_changes=["run.seed"]'
  fi
  echo "start $1 $step ${seed:--} $(date +%Y-%m-%dT%H:%M:%S)" >>"$record"
  echo "chain: job $1 goes on at step $step of $run_dir${seed:+, with run.seed=$seed}"
}

chain_end() {  # chain_end JOB CODE
  local record=$CHOIR_CHAIN/record verdict step
  step=$(chain_step "$run_dir")
  echo "end $1 $2 $step $(date +%Y-%m-%dT%H:%M:%S)" >>"$record"
  verdict=$(chain_verdict "$record" "$step")
  case $verdict in
    go) echo "chain: step $step is saved (exit code $2): the next job goes on from there" ;;
    done) echo "chain: the run is complete" ;;
    *)
      echo "stop $verdict" >>"$record"
      echo "chain: stopped: ${verdict#* }" >&2 ;;
  esac
}
