#!/usr/bin/env bash
# The random decks of test/run/drawn_decks.sh, 300 legal and 2,000 broken ones.
exec "$(dirname "$0")/../drawn_decks.sh" "${1:?usage: $0 BUILD}" --all
