# shellcheck shell=bash disable=SC2154  # site_line is the site's; nodes, line and job_id are set by place.sh, by it and by job.sh
# File systems: stripes of the run directory, and copies of data on the disks of the nodes. Source
# this file.

# Lustre decides on the number of servers of a file when it is created, by its folder: before the
# first checkpoint. The collective write of a checkpoint is divided into parts of 16 MiB; logs stay
# on one server.
storage_stripe() {  # storage_stripe RUN_DIR
  mkdir -p "$1/checkpoints" || return 6
  command -v lfs >/dev/null 2>&1 && lfs getstripe -d "$1/checkpoints" >/dev/null 2>&1 || return 0
  [ -z "$(ls -A "$1/checkpoints")" ] || return 0
  if lfs setstripe -c "${STRIPE_COUNT:-8}" -S "${STRIPE_SIZE:-16M}" "$1/checkpoints"; then
    echo "storage: $1/checkpoints on ${STRIPE_COUNT:-8} servers in parts of ${STRIPE_SIZE:-16M}"
  else echo "storage: lfs setstripe failed: checkpoints are written with the default stripes, perhaps slower" >&2
  fi
}

# STAGE="KEY=PATH ...": PATH (a file or folder of prepared data) is copied to the disk of every node, and the deck's KEY
# names the copy, or the copies of all paths that have this key. Nothing is copied where the site has no such disk. The
# name of a copy contains a hash of the absolute path, because files of different folders may have the same name. Each
# job has a folder of its own, which it removes at its end: jobs that share a node never touch each other's copies.
storage_stage() {
  local item key path target disk sum
  local -A copies=()
  staged=""
  [ -n "${STAGE:-}" ] || return 0
  disk=$(site_scratch)
  [ -n "$disk" ] || { echo "storage: STAGE is set, but $site has no disks of nodes: data are read where they are"; return 0; }
  staged=$disk/choir-${USER:-$(id -un)}/job-${job_id//[^A-Za-z0-9]/_}
  for item in $STAGE; do
    key=${item%%=*} path=${item#*=}
    [ -e "$path" ] || { echo "storage: STAGE: '$path' does not exist" >&2; return 3; }
    path=$(realpath -s "$path")
    target=$staged/$(printf %s "$path" | sha256sum | cut -c1-16)-$(basename "$path")
    sum=$("$jobs/lib/stage.sh" --sum "$path") || { echo "storage: STAGE: '$path' cannot be read" >&2; return 3; }
    site_line "$nodes" 1 1 || return
    echo "storage: $path to $target on $nodes node$([ "$nodes" = 1 ] || echo s)"
    "${line[@]}" "$jobs/lib/stage.sh" "$path" "$target" "$sum" || { echo "storage: copying $path failed" >&2; return 6; }
    copies[$key]+=${copies[$key]:+,}\"$target\"
    override "$key=[${copies[$key]}]"
  done
}

# Called at the end of the job. A job that is killed leaves its copies to the site, which cleans
# such disks.
storage_unstage() {
  [ -n "${staged:-}" ] && site_line "$nodes" 1 1 || return 0
  timeout 60 "${line[@]}" "$jobs/lib/stage.sh" --remove "$staged" </dev/null ||
    echo "storage: $staged could not be removed" >&2
}
