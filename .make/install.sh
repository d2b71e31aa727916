#!/usr/bin/env bash
# install.sh BUILD PREFIX: the program, the library with its headers, decks, job files, man pages and completion below
# $DESTDIR/PREFIX.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: install.sh BUILD PREFIX} prefix=${2:?usage: install.sh BUILD PREFIX}
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
to=${DESTDIR:-}$prefix
share=$to/share/choir
for made in choir libchoir.a choir.pc; do
  [ -s "$build/$made" ] || { echo "install: $build/$made is missing; run make install" >&2; exit 1; }
done
mkdir -p "$to/bin" "$to/include" "$to/lib/choir" "$to/lib/pkgconfig" "$share" "$to/share/bash-completion/completions"
install -m 755 "$build/choir" "$to/bin/choir"
rm -rf "$share/inputs" "$share/jobs" "$share/bench"  # decks of an older version would remain
cp -r inputs jobs "$share/"
mkdir -p "$share/bench/lib"  # the sweep that jobs/scaling.* run
cp bench/scaling.sh bench/plots.sh "$share/bench/"
cp bench/lib/sweep.sh bench/lib/scaling.gp "$share/bench/lib/"
rm -rf "$to/include/choir"  # headers too
cp -r include/choir "$to/include/"
chmod -R u=rwX,go=rX "$share" "$to/include/choir"
install -m 644 "$build/libchoir.a" "$to/lib/libchoir.a"
for start in $(grep -o '[$]{libdir}/choir/[a-z_]*[.]o' "$build/choir.pc"); do
  install -m 644 "$build/obj/src/app/${start##*/}" "$to/lib/choir/${start##*/}"
done
{ echo "prefix=$prefix"; cat "$build/choir.pc"; } >"$to/lib/pkgconfig/choir.pc"
chmod 644 "$to/lib/pkgconfig/choir.pc"
install -m 644 .make/choir_completion.bash "$to/share/bash-completion/completions/choir"
# A program for another type of processor cannot run here to print the contents of its pages.
if "$build/choir" --version >/dev/null 2>&1; then .make/manual.sh "$build/choir" "$to/share/man"
else echo "install: $build/choir does not run here, so there are no man pages" >&2; fi
echo "installed: $to/bin/choir, the library in $to/lib, decks and job files in $share"
