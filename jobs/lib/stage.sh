#!/usr/bin/env bash
# stage.sh SOURCE TARGET: one copy on this node, kept for the next job if it is whole: a copy that was cut short has
# another name.
set -eu
source=${1:?usage: stage.sh SOURCE TARGET} target=${2:?usage: stage.sh SOURCE TARGET}
mkdir -p "$(dirname "$target")"
if [ -e "$target" ] && [ ! "$source" -nt "$target" ] &&
  [ "$(du -sb "$source" | cut -f1)" = "$(du -sb "$target" | cut -f1)" ]; then exit 0; fi
part=$target.part.$$
trap 'rm -rf "$part"' EXIT
cp -rL --preserve=timestamps "$source" "$part"
rm -rf "$target"
mv "$part" "$target"
