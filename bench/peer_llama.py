#!/usr/bin/env python3
"""llama.cpp (PyPI's xllamacpp) on a GGUF: tokens a second of reading a prompt and of going on, as its server times them.

    peer_llama.py MODEL.gguf --threads 2 --prompt 512 --tokens 128 --rounds 3      prints "PREFILL DECODE" a round
"""
import argparse
import json

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    options = xllamacpp.CommonParams()
    options.model.path = arguments.model
    options.n_ctx = arguments.prompt + arguments.tokens + 8
    options.n_batch = options.n_ubatch = arguments.prompt
    options.n_parallel = 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = arguments.threads
    options.warmup = True
    server = xllamacpp.Server(options)
    for i in range(arguments.rounds):
        # Each round has different ids, so that no prompt is found in a cache.
        ids = [(17 * k + i) % 1000 + 300 for k in range(arguments.prompt)]
        answer = server.handle_completions(
            {"prompt": ids, "n_predict": arguments.tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        )
        answer = json.loads(answer) if isinstance(answer, str) else answer
        times = answer["timings"]
        print(f"{times['prompt_per_second']:.2f} {times['predicted_per_second']:.2f}", flush=True)


if __name__ == "__main__":
    main()
