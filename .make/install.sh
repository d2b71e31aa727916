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
version=$(sed -nE 's/.*kVersion = "(.*)";/\1/p' src/core/build_info.hpp)
mkdir -p "$to/bin" "$to/include" "$to/lib/choir" "$to/lib/pkgconfig" "$share" "$to/share/bash-completion/completions"
install -m 755 "$build/choir" "$to/bin/choir"
rm -rf "$share/inputs" "$share/jobs" "$share/bench"  # decks of an older version would remain
cp -r inputs jobs "$share/"
mkdir -p "$share/bench/lib"  # the sweep that jobs/scaling.* run
cp bench/scaling.sh bench/plots.sh "$share/bench/"
cp bench/lib/sweep.sh bench/lib/scaling.gp "$share/bench/lib/"
# Pages that are installed name files of the source tree that are not: those links become plain words.
for page in "$share"/*/*.md; do
  for link in $(grep -oE '\]\([^)#:]+[)#]' "$page" | sed -E 's/^\]\(//; s/[)#]$//' | sort -u); do
    [ -e "${page%/*}/$link" ] || sed -i -z -E "s|\[([^][]*)\]\($link(#[^)]*)?\)|\1|g" "$page"
  done
  sed -i '1a\
\
This is the installed copy: `build/choir` is `choir` here, and `make` and files that are not beside it are those of the source tree.' "$page"
done
rm -rf "$to/include/choir"  # headers too
cp -r include/choir "$to/include/"
chmod -R u=rwX,go=rX "$share" "$to/include/choir"
install -m 644 "$build/libchoir.a" "$to/lib/libchoir.a"
for start in $(grep -o '[$]{libdir}/choir/[a-z_]*[.]o' "$build/choir.pc"); do
  install -m 644 "$build/obj/src/app/${start##*/}" "$to/lib/choir/${start##*/}"
done
{ echo "prefix=$prefix"; cat "$build/choir.pc"; } >"$to/lib/pkgconfig/choir.pc"
chmod 644 "$to/lib/pkgconfig/choir.pc"
# For Lmod and Environment Modules.
modules=$share/modulefiles/choir
mpi=$(sed -nE 's/^ *[^ ]+ MPI +//p' "$build/features.txt" | head -n 1 | tr -d '"[]{}$\\;')
rm -rf "$share/modulefiles" && mkdir -p "$modules"
cat >"$modules/$version" <<END
#%Module1.0
proc ModulesHelp { } { puts stderr "choir $version: trains and runs language and speech models (choir --help, man choir); its MPI, to be loaded, too: ${mpi:-unknown}" }
module-whatis "choir $version, with ${mpi:-an unknown MPI}"
conflict choir
prepend-path PATH $prefix/bin
prepend-path MANPATH $prefix/share/man
prepend-path PKG_CONFIG_PATH $prefix/lib/pkgconfig
setenv CHOIR $prefix/bin/choir
END
chmod 644 "$modules/$version"
install -m 644 .make/choir_completion.bash "$to/share/bash-completion/completions/choir"
# A program for another type of processor cannot run here to print the contents of its pages.
if "$build/choir" --version >/dev/null 2>&1; then .make/manual.sh "$build/choir" "$to/share/man"
else echo "install: $build/choir does not run here, so there are no man pages" >&2; fi
echo "installed: $to/bin/choir, the library in $to/lib, decks and job files in $share"
if [ -z "${DESTDIR:-}" ]; then echo "try: $share/jobs/launch -n 2 $prefix/bin/choir doctor"; fi
