# shellcheck shell=bash disable=SC2154  # site_line is the site's; nodes and line are set by place.sh and by it
# File systems: stripes of the run directory, and copies of data on the disks of the nodes. To be sourced.

# Lustre decides on how many servers a file lies when it is made, by its folder: before the first checkpoint. Parts of
# 16 MiB are what the collective writes of a checkpoint are cut into; logs stay on one server.
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
# names the copy. Nothing is copied where the site has no such disk.
storage_stage() {
  local item key path target disk
  [ -n "${STAGE:-}" ] || return 0
  disk=$(site_scratch)
  [ -n "$disk" ] || { echo "storage: STAGE is set, but $site has no disks of nodes: data are read where they are"; return 0; }
  for item in $STAGE; do
    key=${item%%=*} path=${item#*=}
    [ -e "$path" ] || { echo "storage: STAGE: '$path' does not exist" >&2; return 3; }
    target=$disk/choir-${USER:-user}/$(basename "$path")
    site_line "$nodes" 1 1 || return
    echo "storage: $path to $target on $nodes node(s)"
    "${line[@]}" "$jobs/lib/stage.sh" "$path" "$target" || { echo "storage: copying $path failed" >&2; return 6; }
    override "$key=[\"$target\"]"
  done
}
