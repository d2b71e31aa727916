#!/usr/bin/env bash
# groups.sh FOLDER BYTES NAME ROOMS SOURCE...: decides which sources are compiled as one. Up to BYTES
# of the sources of a folder, in the order of their names, become FOLDER/<their folder>/NAME_N.cpp,
# which includes them; the folders below one of the ROOMS count as one. A source that would be alone
# is compiled itself. Prints the sources to be compiled. An unchanged group keeps its time.
set -eu
folder=$1 most=$2 name=$3 rooms=$4
shift 4
[ $# -gt 0 ] || exit 0
stat -c '%s %n' "$@" | awk -v folder="$folder" -v most="$most" -v prefix="$name" -v rooms="$rooms" '
  function room_of(source,   n) {
    for (n in whole) if (index(source, whole[n] "/") == 1) return whole[n]
    sub("/[^/]*$", "", source)
    return source
  }
  function finish(   name, file, line, was) {
    if (members == 1) print last
    if (members > 1) {
      name = room "/" prefix "_" ++groups[room] ".cpp"
      file = folder "/" name
      while ((getline line < file) > 0) was = was line "\n"
      close(file)
      if (was == "") system("mkdir -p " folder "/" room)
      if (was != text) printf "%s", text > file
      close(file)
      print name
    }
    members = bytes = 0
    text = ""
  }
  BEGIN { split(rooms, whole, " ") }
  {
    own = room_of($2)
    if (members > 0 && (own != room || bytes + $1 > most)) finish()
    room = own; last = $2; bytes += $1; members++
    text = text "#include \"" $2 "\"\n"
  }
  END { finish() }'
