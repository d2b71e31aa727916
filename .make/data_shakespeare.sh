#!/usr/bin/env bash
# Downloads tiny Shakespeare (1.1 MB, Andrej Karpathy's char-rnn) to data/shakespeare/input.txt,
# within 20 seconds or not at all: a file that exists is complete.
set -eu
file=data/shakespeare/input.txt
address=${SHAKESPEARE_URL:-https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt}
bytes=1115394

if [ -s "$file" ]; then echo "$file is there already ($(wc -c <"$file") bytes)."; exit 0; fi
command -v curl >/dev/null 2>&1 || { echo "There is no curl to download tiny Shakespeare with: 'make deps'." >&2; exit 1; }
mkdir -p "$(dirname "$file")"
fresh=$(mktemp "$file.XXXXXX")
trap 'rm -f "$fresh"' EXIT
echo "Downloading tiny Shakespeare from $address"
if ! curl --fail --silent --show-error --location --connect-timeout 10 --max-time 20 --output "$fresh" "$address"; then
  echo "Tiny Shakespeare could not be downloaded. Offline? Put a copy at $file, or name another text in data.train." >&2
  exit 1
fi
got=$(wc -c <"$fresh")
if [ "$got" -ne "$bytes" ]; then
  echo "What came from $address has $got bytes, tiny Shakespeare has $bytes: not kept." >&2
  exit 1
fi
chmod 644 "$fresh"
mv "$fresh" "$file"
echo "$file: $bytes bytes."
