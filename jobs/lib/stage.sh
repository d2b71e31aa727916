#!/usr/bin/env bash
# stage.sh SOURCE TARGET SHA256: one copy on this node, of the content that has this sum. The copy is made under another
# name, compared, and renamed; a file that bears the name TARGET is therefore whole. A copy that is there already is used
# if its content has the sum.
#   stage.sh --sum PATH        the sum of a file, or of the names and contents of a folder
#   stage.sh --remove FOLDER   removes the copies of a job
set -eu
set -o pipefail
export LC_ALL=C  # one order of names on every node
umask 077
usage() { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
sum_of() {  # sum_of PATH
  if [ -d "$1" ]; then (cd "$1" && find -L . -type f -print0 | sort -z | xargs -0r sha256sum) | sha256sum
  else sha256sum <"$1"; fi | cut -c1-64
}
fail() { echo "storage: $(hostname): $*" >&2; exit 6; }

[ $# -ge 2 ] || usage
case $1 in
  --sum) sum_of "$2"; exit ;;
  --remove) rm -rf -- "$2"; exit ;;
esac
source=$1 target=$2 sum=${3:-}
[ -n "$sum" ] || usage
folder=$(dirname "$target")
of_user=$(dirname "$folder")
mkdir -p "$of_user"
# On a disk to which all users may write, somebody else may have created a folder or a link of this
# name.
{ [ ! -L "$of_user" ] && [ -O "$of_user" ]; } || fail "$of_user is not a folder of this user: remove it, or set USER"
mkdir -p "$folder"
if [ -e "$target" ] && [ "$(sum_of "$target")" = "$sum" ]; then exit 0; fi
part=$(mktemp -d "$target.XXXXXX") || fail "$folder cannot be written"
trap 'rm -rf "$part"' EXIT
cp -rL --preserve=timestamps "$source" "$part/copy" || fail "$source cannot be copied to $folder"
[ "$(sum_of "$part/copy")" = "$sum" ] ||
  fail "the copy of $source in $folder differs from the source: did the source change, or is the disk faulty?"
rm -rf "$target"
mv -T "$part/copy" "$target"
