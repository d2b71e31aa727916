#!/usr/bin/env bash
# install.sh BUILD PREFIX: installs the program, decks, job files, man pages and completion below
# $DESTDIR/PREFIX.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: install.sh BUILD PREFIX} prefix=${2:?usage: install.sh BUILD PREFIX}
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
to=${DESTDIR:-}$prefix
share=$to/share/choir
[ -x "$build/choir" ] || { echo "install: $build/choir is missing; run make" >&2; exit 1; }
mkdir -p "$to/bin" "$share" "$to/share/bash-completion/completions"
install -m 755 "$build/choir" "$to/bin/choir"
rm -rf "$share/inputs" "$share/jobs"  # decks of an older version would remain
cp -r inputs jobs "$share/"
chmod -R u=rwX,go=rX "$share"
install -m 644 .make/choir_completion.bash "$to/share/bash-completion/completions/choir"
# A program for another type of processor cannot run here to print the contents of its pages.
if "$build/choir" --version >/dev/null 2>&1; then .make/manual.sh "$build/choir" "$to/share/man"
else echo "install: $build/choir does not run here, so there are no man pages" >&2; fi
echo "installed: $to/bin/choir, decks and job files in $share"
