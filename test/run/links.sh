#!/usr/bin/env bash
# .make/links.sh, which `make style` runs: targets of links in documents exist, and missing ones are
# named.
. "$(dirname "$0")/lib/common.sh"

links() { command=".make/links.sh $*"; "$root/.make/links.sh" "$@" >out 2>&1; code=$?; }
links
expect "the documents of this tree" 0 "lead somewhere"
mkdir -p tree/bench/results tree/jobs
cd tree || exit 1
: >bench/results/2026-01-02-a.csv
: >jobs/run.sh
cat >README.md <<'END'
# The `House`, and more
[rows](bench/results/2026-01-02-a.csv), [below](#the-house-and-more), [elsewhere](https://example.org/x), `jobs/run.sh -n 2`, `bench/NAME.sh`

    [not a link](in-a-block.md)
END
echo 'see `2026-01-02-a.csv` and [the front](../README.md#the-house-and-more)' >bench/README.md
cd .. || exit 1
links tree
expect "a tree in which all is there" 0 "all of 2 documents lead somewhere"
refused() {  # refused NAME WORDS LINE: with this line added to bench/README.md
  cp tree/bench/README.md kept
  echo "$3" >>tree/bench/README.md
  links tree
  expect "$1" 1 "links: bench/README.md: $2"
  mv kept tree/bench/README.md
}
refused "a link to nothing" "the link to '../jobs/README.md' leads nowhere" '[jobs](../jobs/README.md)'
refused "a heading that is not there" "'bench/../README.md' has no heading '#the-cellar'" '[cellar](../README.md#the-cellar)'
refused "a path that is not there" "there is no 'jobs/walk.sh'" 'run `jobs/walk.sh --fast`'
refused "a name that is not there" "no file is called 'walk.sh'" '`walk.sh` walks'
refused "a result that is not there" "there is no result '2026-01-03-b.md'" '`2026-01-03-b.md`'
: >tree/bench/results/2026-01-04-c.csv
links tree
expect "a result of which nothing is said" 1 "bench/README.md has no line for bench/results/2026-01-04-c.csv"
