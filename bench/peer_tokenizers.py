#!/usr/bin/env python3
"""Hugging Face's tokenizers on one thread: MB of text a second to ids, as `choir prepare text` tells its own.

    peer_tokenizers.py tokenizer.json TEXT...      prints "MB_PER_SECOND IDS"
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer  # noqa: E402  after the environment that it reads


def main() -> None:
    tokenizer = Tokenizer.from_file(sys.argv[1])
    size = ids = 0
    seconds = 0.0
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8", newline="") as file:
            # Lines in batches: the text as a whole takes the library longer, not less time.
            lines = file.readlines()
        size += os.path.getsize(path)
        begin = time.perf_counter()
        for first in range(0, len(lines), 1000):
            ids += sum(len(e.ids) for e in tokenizer.encode_batch_fast(lines[first : first + 1000], add_special_tokens=False))
        seconds += time.perf_counter() - begin
    print(f"{size / seconds / 1e6:.2f} {ids}")


if __name__ == "__main__":
    main()
