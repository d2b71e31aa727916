#!/usr/bin/env python3
"""What programs of others say of exported models, beside logits [ids, vocabulary] that choir wrote (generate --logits).

    foreign_oracle.py transformers FOLDER LOGITS.npy IDS MOST     AutoModel and AutoTokenizer of an exported folder
    foreign_oracle.py llama FILE.gguf LOGITS.npy IDS MOST [ADAPTER.gguf]   llama.cpp, of every beginning of the ids
    foreign_oracle.py likely FILE.gguf LOGITS.npy IDS MOST     the same, of tokens with probabilities of 1 % and more
    foreign_oracle.py peft BASE ADAPTER MERGED LOGITS.npy IDS MOST    an adapter on its base, and merged by choir and by peft
    foreign_oracle.py gguf QUANTISED.gguf DECODED.gguf    the same tensors, of which the second file has choir's f32

Prints the largest difference and ends with 1 where it is above MOST, or where a bit of a decoded tensor differs.
"""
import json
import sys

import numpy


def log_softmax(logits: numpy.ndarray) -> numpy.ndarray:
    logits = logits.astype(numpy.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))


def logits_of(model, ids: list[int]) -> numpy.ndarray:
    import torch

    model.eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def load(folder: str):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def transformers(folder: str, ours: numpy.ndarray, ids: list[int]) -> float:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.decode(ids)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids, f"{ids} come back changed from {text!r}"
    return float(numpy.abs(logits_of(load(folder), ids) - ours).max())


def likely(path: str, ours: numpy.ndarray, ids: list[int]) -> float:
    return llama(path, ours, ids, least=numpy.log(0.01))


def llama(path: str, ours: numpy.ndarray, ids: list[int], adapter: str = "", least: float = -numpy.inf) -> float:
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = path
    options.n_ctx, options.n_parallel, options.sampling.temp = 256, 1, 0.0
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.warmup = False
    if adapter:
        options.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(adapter, 1.0)]
    server = xllamacpp.Server(options)
    expected = log_softmax(ours)
    far, vocabulary = 0.0, expected.shape[1]
    for count in range(1, len(ids) + 1):
        answer = server.handle_completions(
            {"prompt": ids[:count], "n_predict": 1, "n_probs": vocabulary, "temperature": 0.0, "cache_prompt": False}
        )
        answer = json.loads(answer) if isinstance(answer, str) else answer
        found = probabilities(answer)
        assert len(found) == vocabulary, f"{len(found)} of {vocabulary} probabilities"
        near = {token: value for token, value in found.items() if expected[count - 1][token] >= least}
        far = max(far, max(abs(expected[count - 1][token] - value) for token, value in near.items()))
    return far


def probabilities(answer: dict) -> dict[int, float]:
    """Log-probabilities of the one token that was asked for."""
    answer = answer["choices"][0]["logprobs"]["content"] if "choices" in answer else answer["completion_probabilities"]
    return {entry["id"]: entry["logprob"] for entry in answer[0]["top_logprobs"]}


def peft(base: str, adapter: str, merged: str, ours: numpy.ndarray, ids: list[int]) -> float:
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(load(base), adapter)
    apart = logits_of(adapted, ids)
    theirs = logits_of(adapted.merge_and_unload(), ids)
    bare = logits_of(load(base), ids)
    assert numpy.abs(apart - bare).max() > 1e-3, "the adapter changes nothing"
    return float(max(numpy.abs(x - ours).max() for x in (apart, theirs, logits_of(load(merged), ids))))


def gguf(quantised: str, decoded: str) -> None:
    from gguf import GGUFReader, dequantize

    ours = {tensor.name: tensor.data for tensor in GGUFReader(decoded).tensors}
    kinds, differ = {}, 0
    for tensor in GGUFReader(quantised).tensors:
        theirs = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
        differ += int((theirs.view(numpy.uint32) != ours.pop(tensor.name).view(numpy.uint32)).sum())
    print(f"gguf: {differ} numbers differ in {kinds}, {len(ours)} tensors are missing")
    sys.exit(differ > 0 or len(ours) > 0 or len(kinds) < 2)


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "gguf":
        return gguf(*arguments)
    take = {"transformers": 1, "llama": 1, "likely": 1, "peft": 3}[what]
    paths, (logits, ids, most, *rest) = arguments[:take], arguments[take:]
    far = globals()[what](*paths, numpy.load(logits), [int(i) for i in ids.split(",")], *rest)
    print(f"{what}: largest difference {far:.3e}, at most {most}")
    sys.exit(not far <= float(most))


if __name__ == "__main__":
    main()
