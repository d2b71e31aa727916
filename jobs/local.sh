#!/usr/bin/env bash
# local.sh [DECK [key=value...]]: runs like a job file on this machine, without a batch system.
# RANKS=4 sets the number of ranks; WALLTIME=HH:MM:SS saves and stops in time, as a job would, and
# the same command again continues.
case ${1:-} in -h | --help) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
DECK=${DECK:-inputs/gpt_quickstart.json}
export SITE=local
cd "$(dirname "${BASH_SOURCE[0]}")/.." && . jobs/lib/job.sh || exit 1
job "$@"
