#!/usr/bin/env bash
# The recipes of .make/packaging: EasyBuild's own parser reads its recipe (EB_PYTHON: the Python that has
# easybuild-framework and easybuild-easyblocks), Spack its repository, and both agree with the program
# about its version and with make about the names of its settings. Nothing is built.
. "$(dirname "$0")/../lib/common.sh"
limit=120
recipe=$(ls "$root"/.make/packaging/easybuild/choir-*.eb)
python=${EB_PYTHON:-python3}

cat >parse.py <<'END'
import sys

from easybuild.tools.options import set_up_configuration

set_up_configuration(args=["--allow-use-as-root-and-accept-consequences", "--ignore-osdeps",
                           "--robot-paths=" + sys.argv[2]], silent=True)
from easybuild.framework.easyconfig import easyconfig
from easybuild.framework.easyconfig.style import check_easyconfigs_style
from easybuild.tools import modules

easyconfig.modules_tool = lambda: modules.NoModulesTool(testing=True)  # no module is loaded
recipe = easyconfig.EasyConfig(sys.argv[1], validate=True)
# All other templates must resolve before there is a folder to build in.
recipe.template_values["installdir"] = "/prefix"
for key in ("name", "version", "homepage", "description", "moduleclass", "buildopts", "installopts"):
    print(f"{key}={recipe[key]}")
print("sources=" + " ".join(recipe["sources"]))
print("easyblock=" + recipe.easyblock)
print("dependencies=" + " ".join(d["name"] for d in recipe.dependencies()))
try:
    import pycodestyle
    print(f"style={check_easyconfigs_style([sys.argv[1]])}")
except ImportError:
    print("style=unknown")
END
said() { sed -n "s/^$1=//p" parsed; }  # said KEY
settings() { grep -oE '(^| )[A-Z_0-9]+=' <<<"$1" | tr -d ' ='; }
known_to_make() {  # known_to_make WORDS: every variable is one that make reads
  local name
  [ -n "$(settings "$1")" ] || { echo "no settings in '$1'"; return 1; }
  for name in $(settings "$1"); do
    grep -rqw -- "$name" "$root/Makefile" "$root/.make/features.sh" "$root/.make/program.mk" "$root/.make/install.sh" ||
      { echo "make does not read $name"; return 1; }
  done
}
version=$("$choir" --version | awk '{ print $2; exit }')
if "$python" -c 'import easybuild.framework, easybuild.easyblocks' 2>/dev/null; then
  check "EasyBuild parses its recipe" eval '"$python" parse.py "$recipe" "$work" >parsed 2>parse.err' || tail -n 5 parse.err
  check "... which is of this version" test "$(said name) $(said version)" = "choir $version"
  check "... and of the archive that its first lines make" test "$(said sources)" = "choir-$version.tar.gz"
  check "... its settings are those of make" known_to_make "$(said buildopts) $(said installopts)"
  check "... it names what choir needs" matches parsed '^dependencies=.*HDF5.*fmt.*spdlog'
  check "... in EasyBuild's style" matches parsed '^style=(0|unknown)$'
  sed '/^toolchain = /d' "$recipe" >damaged.eb
  check "a recipe that lacks a toolchain is refused" eval '! "$python" parse.py damaged.eb "$work" >damaged.out 2>&1'
else skip "the recipe of EasyBuild" "easybuild-framework and easybuild-easyblocks are not installed (EB_PYTHON)"; fi

package=$root/.make/packaging/spack_repo/choir/packages/choir/package.py
check "the package of Spack is Python" python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$package"
# shellcheck disable=SC2016
check "... its settings are those of make" known_to_make "$(grep -oE '"[A-Z_0-9]+=' "$package" | tr '"' ' ' | tr -d '\n')"
if command -v spack >/dev/null; then
  export SPACK_USER_CONFIG_PATH=$work/spack SPACK_USER_CACHE_PATH=$work/spack_cache
  check "Spack reads the package" eval 'spack repo add "$root/.make/packaging/spack_repo/choir" >spack.log 2>&1 && spack info choir >info 2>>spack.log' ||
    tail -n 5 spack.log
  check "... with its variants" has info "onednn"
else skip "the repository of Spack" "spack is not on the PATH"; fi
for image in "$root"/.make/packaging/*.def; do
  check "$(basename "$image") has the sections of a definition" eval 'matches "$image" "^Bootstrap: " && matches "$image" "^%post" && matches "$image" "^%runscript|^%environment"'
done
