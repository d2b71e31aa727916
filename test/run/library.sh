#!/usr/bin/env bash
# choir as a library: another program, with a family of models of its own, is built outside the tree from the installed
# headers, the archive and choir.pc, and trains (toy_family.sh tests the family itself).
. "$(dirname "$0")/lib/common.sh"
there=$work/there stage=$work/stage
command="install.sh" code=0
"$root/.make/install.sh" "$build" "$there" >out 2>&1 || code=$?
expect "installs the library" 0 "the library in $there/lib"
public=$(find "$there/include/choir" -name '*.hpp' | wc -l)
check "at most 60 headers are public" test "$public" -gt 0 -a "$public" -le 60
check "public headers include public headers only" eval '! grep -rnE "^#include [<\"](src|kernels|test)/" "$there/include"'
check "choir.pc of a package names the folder that it is for" eval \
  'DESTDIR=$stage "$root/.make/install.sh" "$build" /opt/choir && grep -qx "prefix=/opt/choir" "$stage/opt/choir/lib/pkgconfig/choir.pc"'
rm -rf "$stage"

if ! command -v pkg-config >/dev/null 2>&1; then skip "a program outside the tree" "pkg-config is not installed"; exit; fi
mkdir own && cp "$root"/test/toy_family/* own/ && cd own || exit 1
export PKG_CONFIG_PATH=$there/lib/pkgconfig
version=$("$build/choir" --version | awk '{ print $2 }')
check "pkg-config has the version of the program" test "$(pkg-config --modversion choir)" = "$version"
build_own() {
  # shellcheck disable=SC2046
  ${MPICXX:-mpicxx} -o own_choir toy_family.cpp $(pkg-config --cflags --libs choir)
}
check "it is built with pkg-config's flags alone" build_own
choir=$work/own/own_choir
run 2 train toy.json run.dir=trained train.max_steps=2 eval.interval=0
expect "it trains its own family on two ranks" 0 "tokens by a rule" "summary:"
check "... in two steps" test "$(losses trained | wc -l)" = 2
run 0 train --describe
expect "its keys are in the table of keys" 0 "model.length" 'gpt | fastconformer | salm | codec | duplex | toy'
run 0 train --check "$debug" "data.train=[\"../text.txt\"]"
expect "it has the families of choir" 0 "deck OK"
choir=$build/choir
run 0 train --check toy.json
expect "the program choir lacks that family" 2 'model.type = "toy" is not one of'
