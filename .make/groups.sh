#!/usr/bin/env bash
# groups.sh FOLDER BYTES SOURCE...: decides which sources are compiled as one. Up to BYTES of the
# sources of a folder, in the order of their names, become FOLDER/<their folder>/group_N.cpp, which
# includes them; a source that would be alone is compiled itself. Prints the sources to be compiled.
# An unchanged group keeps its time.
set -eu
folder=$1 most=$2
shift 2
[ $# -gt 0 ] || exit 0
printf '%s\n' "$@" | sed 's|/[^/]*$||' | sort -u | sed "s|^|$folder/|" | xargs mkdir -p
stat -c '%s %n' "$@" | awk -v folder="$folder" -v most="$most" '
  function finish(   name, file, line, was) {
    if (members == 1) print last
    if (members > 1) {
      name = room "/group_" ++groups[room] ".cpp"
      file = folder "/" name
      while ((getline line < file) > 0) was = was line "\n"
      close(file)
      if (was != text) printf "%s", text > file
      close(file)
      print name
    }
    members = bytes = 0
    text = ""
  }
  {
    own = $2
    sub("/[^/]*$", "", own)
    if (members > 0 && (own != room || bytes + $1 > most)) finish()
    room = own; last = $2; bytes += $1; members++
    text = text "#include \"" $2 "\"\n"
  }
  END { finish() }'
