#!/usr/bin/env python3
"""Writes unicode_tables.cpp beside it: the classes of characters that tokenizers use.

The source is the Unicode Character Database, version 16.0.0, as Python's module `unicodedata` has it
(Python 3.14; for older ones: pip install unicodedata2==16.0.0). Published tokenizers have
these tables compiled in, so another version would give other ids and is refused.
Run it without arguments; the tables are checked against checksums before they are written.
"""
import pathlib
import sys
import zlib

import unicodedata as ucd

VERSION = "16.0.0"
if ucd.unidata_version != VERSION:
    try:
        import unicodedata2 as ucd
    except ImportError:
        sys.exit(f"Unicode {VERSION} is needed: pip install unicodedata2=={VERSION}")
if ucd.unidata_version != VERSION:
    sys.exit(f"Unicode {VERSION} is needed, this is {ucd.unidata_version}")

LETTER, NUMBER, BLANK, WORD, JOINS, CHANGES, UPPER, LOWER = 1, 2, 4, 8, 16, 32, 64, 128
SURROGATES = range(0xD800, 0xE000)
ALL = [c for c in range(0x110000) if c not in SURROGATES]

# White_Space and the part of Other_Alphabetic that is neither mark nor letter are properties of
# PropList.txt that the module does not have.
CONTROL_BLANKS = set(range(0x9, 0xE)) | {0x85}
CIRCLED_LETTERS = {c for first, last in ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169),
                                         (0x1F170, 0x1F189)) for c in range(first, last + 1)}
JOIN_CONTROLS = {0x200C, 0x200D}


def joins_previous():
    """Characters that may combine with the preceding one. A cut in front of any other never changes NFC."""
    joins = {c for c in ALL if ucd.combining(chr(c))}
    for c in ALL:
        if 0xAC00 <= c <= 0xD7A3:
            continue
        parts = ucd.normalize("NFD", chr(c))
        if parts != chr(c):
            joins.update(map(ord, parts[1:]))
    joins.update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))  # vowels and finals of Hangul
    # A character that decomposes into a joining one joins, too.
    return joins | {c for c in ALL if ord(ucd.normalize("NFD", chr(c))[0]) in joins}


def classes():
    joins = joins_previous()
    of = [0] * 0x110000
    for c in ALL:
        category = ucd.category(chr(c))
        if category[0] == "L":
            of[c] |= LETTER
        if category[0] == "N":
            of[c] |= NUMBER
        if category[0] == "Z" or c in CONTROL_BLANKS:
            of[c] |= BLANK
        if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in CIRCLED_LETTERS | JOIN_CONTROLS:
            of[c] |= WORD
        if category[0] == "M" or category in ("Lu", "Lt", "Lm", "Lo"):
            of[c] |= UPPER
        if category[0] == "M" or category in ("Ll", "Lm", "Lo"):
            of[c] |= LOWER
        if c in joins:
            of[c] |= JOINS
        if ucd.normalize("NFC", chr(c)) != chr(c):
            of[c] |= CHANGES
    return of


def runs(of):
    begin = 0
    for c in range(1, len(of) + 1):
        if c == len(of) or of[c] != of[begin]:
            yield begin, c - 1, of[begin]
            begin = c


def checksum(of, bit):
    lines = "".join("%X-%X\n" % (a, b) for a, b, on in runs([c & bit for c in of]) if on)
    return zlib.crc32(lines.encode())


of = classes()
for bit, expected in ((LETTER, 0x9CAC10B4), (NUMBER, 0x05D9864A), (BLANK, 0x0C16CFAF)):
    if checksum(of, bit) != expected:
        sys.exit(f"class {bit} is not that of Unicode {VERSION}: {checksum(of, bit):08x}, not {expected:08x}")

items = [f"{last - first + 1},{bits}," for first, last, bits in runs(of)]
lines, line = [], ""
for item in items:
    if len(line) + len(item) > 96:
        lines.append(line)
        line = ""
    line += item
lines.append(line)
table = "\n    ".join(lines)
pathlib.Path(__file__).with_suffix(".cpp").write_text(f"""\
// Written by unicode_tables.py from the Unicode Character Database {VERSION}.
#include "src/data/vocabulary/utf8.hpp"

namespace choir {{
namespace {{

// Runs of code points from U+0000 on: their length and their common classes.
// clang-format off
constexpr std::uint32_t kRuns[] = {{
    {table}
}};
// clang-format on

}}  // namespace

std::vector<std::uint8_t> unicode_classes() {{
  std::vector<std::uint8_t> classes;
  classes.reserve(kUnicodeSize);
  for (std::size_t i = 0; i < std::size(kRuns); i += 2)
    classes.insert(classes.end(), kRuns[i], static_cast<std::uint8_t>(kRuns[i + 1]));
  return classes;
}}

}}  // namespace choir
""")
