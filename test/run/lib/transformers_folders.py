#!/usr/bin/env python3
"""Writes folders as transformers saves models, with odd but legal settings, and the logits of each.

    transformers_folders.py FOLDER   writes FOLDER/NAME/{config.json,model*.safetensors}, ids.npy and
                                     NAME.npy, and prints a line for each: NAME LARGEST_DIFFERENCE

The logits are computed here in fp64 from the weights as they are stored, with numpy alone; the
formulas are those of the papers and of transformers' documentation. This program shares nothing
with choir.
"""
import json
import os
import struct
import sys

import numpy as np

IDS = np.array([3, 17, 5, 0, 23, 11, 8, 8, 2, 19, 7, 1], dtype=np.int32)
BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def stored(values, kind):
    """The bytes of an array, and its values after rounding."""
    f32 = values.astype(np.float32)
    if kind == "F32":
        return f32.tobytes(), f32.astype(np.float64)
    if kind == "F16":
        f16 = f32.astype(np.float16)
        return f16.tobytes(), f16.astype(np.float64)
    bits = f32.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest even
    return rounded.astype(np.uint16).tobytes(), (rounded << 16).astype(np.uint32).view(np.float32).astype(np.float64)


class Weights:
    """Random weights by name, with the bytes that a file has."""

    def __init__(self, seed, kind):
        self.random = np.random.default_rng(seed)
        self.kind, self.bytes, self.values = kind, {}, {}

    def add(self, name, *shape, around=0.0, scale=0.25):
        data, values = stored(around + scale * self.random.standard_normal(shape), self.kind)
        self.bytes[name], self.values[name] = data, values.reshape(shape)

    def write(self, folder, shards, metadata):
        names = list(self.bytes)
        groups = [names[i::shards] for i in range(shards)]
        index, total = {}, 0
        for number, group in enumerate(groups):
            file = "model.safetensors" if shards == 1 else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            header, at = {"__metadata__": {"format": "pt"}} if metadata else {}, 0
            for name in group:
                size = len(self.bytes[name])
                header[name] = {"dtype": self.kind, "shape": list(self.values[name].shape),
                                "data_offsets": [at, at + size]}
                index[name], at = file, at + size
            total += at
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            with open(os.path.join(folder, file), "wb") as out:
                out.write(struct.pack("<Q", len(text)) + text + b"".join(self.bytes[n] for n in group))
        if shards > 1:
            with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
                json.dump({"metadata": {"total_size": total}, "weight_map": index}, out)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q, k, v, window, scale):
    """q [heads, T, d]; k and v [key heads, T, d]; a query sees `window` keys, itself included."""
    heads, count, _ = q.shape
    k, v = (np.repeat(x, heads // x.shape[0], axis=0) for x in (k, v))
    scores = q @ k.transpose(0, 2, 1) * scale
    i, j = np.indices((count, count))
    hidden = j > i if window is None else (j > i) | (i - j >= window)
    return softmax(np.where(hidden, -np.inf, scores)) @ v


def activation(name, x):
    if name in ("silu", "swish"):
        return x / (1 + np.exp(-x))
    if name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if name == "relu":
        return np.maximum(x, 0)
    erf = np.vectorize(__import__("math").erf)
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def gpt2(c, w):
    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + c["layer_norm_epsilon"])
        return x * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["transformer.wte.weight"][IDS] + w["transformer.wpe.weight"][: len(IDS)]
    width, heads = c["n_embd"], c["n_head"]
    for layer in range(c["n_layer"]):
        p = f"transformer.h.{layer}."
        q, k, v = (part.reshape(len(IDS), heads, width // heads).transpose(1, 0, 2)
                   for part in np.split(linear(norm(x, p + "ln_1"), p + "attn.c_attn"), 3, -1))
        seen = attend(q, k, v, None, (width // heads) ** -0.5)
        x = x + linear(seen.transpose(1, 0, 2).reshape(len(IDS), width), p + "attn.c_proj")
        inner = activation(c["activation_function"], linear(norm(x, p + "ln_2"), p + "mlp.c_fc"))
        x = x + linear(inner, p + "mlp.c_proj")
    head = "transformer.wte.weight" if c["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "transformer.ln_f") @ w[head].T


def frequencies(c, width):
    """The angles per position, and the factor of the rotated vectors."""
    rope = c.get("rope_parameters") or {}
    theta = rope.get("rope_theta", c.get("rope_theta", 10000.0))
    scaling = c.get("rope_scaling") or rope
    inverse = theta ** (-np.arange(0, width, 2) / width)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor", 1.0)
    if kind == "linear":
        return inverse / factor, 1.0
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * inverse / (2 * np.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return (1 - smooth) * inverse / factor + smooth * inverse, 1.0
    if kind == "yarn":
        original = scaling.get("original_max_position_embeddings", c["max_position_embeddings"])

        def dim(rotations):
            return width * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(theta))

        first = max(np.floor(dim(scaling.get("beta_fast", 32))), 0)
        last = min(np.ceil(dim(scaling.get("beta_slow", 1))), width - 1)
        ramp = np.clip((np.arange(width // 2) - first) / (last - first if last > first else 0.001), 0, 1)
        scale = scaling.get("attention_factor") or 0.1 * np.log(factor) + 1
        return inverse / factor * ramp + inverse * (1 - ramp), scale
    return inverse, 1.0


def rotate(x, inverse, scale):
    angles = np.arange(x.shape[1])[:, None] * inverse
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def llama_like(c, w):
    eps, heads, keys = c["rms_norm_eps"], c["num_attention_heads"], c["num_key_value_heads"]
    width = c.get("head_dim") or c["hidden_size"] // heads
    inverse, scale = frequencies(c, width)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    x = w["model.embed_tokens.weight"][IDS]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        y = norm(x, p + "input_layernorm.weight")
        q, k, v = (linear(y, p + f"self_attn.{n}_proj").reshape(len(IDS), h, width)
                   for n, h in (("q", heads), ("k", keys), ("v", keys)))
        if c["model_type"] == "qwen3":
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        q, k, v = (z.transpose(1, 0, 2) for z in (q, k, v))
        if c.get("no_rope_layers", [1] * 99)[layer]:
            q, k = rotate(q, inverse, scale), rotate(k, inverse, scale)
        seen = attend(q, k, v, window_of(c, layer), width**-0.5)
        x = x + linear(seen.transpose(1, 0, 2).reshape(len(IDS), heads * width), p + "self_attn.o_proj")
        y = norm(x, p + "post_attention_layernorm.weight")
        x = x + linear(activation(c["hidden_act"], linear(y, p + "mlp.gate_proj")) * linear(y, p + "mlp.up_proj"),
                       p + "mlp.down_proj")
    head = "model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "model.norm.weight") @ w[head].T


def window_of(c, layer):
    window = c.get("sliding_window")
    if c["model_type"] == "mistral":
        return window
    if not c.get("use_sliding_window"):
        return None
    if c.get("layer_types"):
        return window if c["layer_types"][layer] == "sliding_attention" else None
    return window if layer >= c["max_window_layers"] else None


def build(name, c, kind, seed, tied_copy=False):
    w = Weights(seed, kind)
    if c["model_type"] == "gpt2":
        d, inner = c["n_embd"], c["n_inner"] or 4 * c["n_embd"]
        w.add("transformer.wte.weight", c["vocab_size"], d)
        w.add("transformer.wpe.weight", c["n_positions"], d)
        for layer in range(c["n_layer"]):
            p = f"transformer.h.{layer}."
            for norm in ("ln_1", "ln_2"):
                w.add(p + norm + ".weight", d, around=1)
                w.add(p + norm + ".bias", d)
            for n, i, o in (("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, inner),
                            ("mlp.c_proj", inner, d)):
                w.add(p + n + ".weight", i, o)
                w.add(p + n + ".bias", o)
        w.add("transformer.ln_f.weight", d, around=1)
        w.add("transformer.ln_f.bias", d)
        if not c["tie_word_embeddings"]:
            w.add("lm_head.weight", c["vocab_size"], d)
        return w, gpt2(c, w.values)
    d, heads, keys = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    width, inner = c.get("head_dim") or d // heads, c["intermediate_size"]
    w.add("model.embed_tokens.weight", c["vocab_size"], d)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        for n, o, i in (("q", heads * width, d), ("k", keys * width, d), ("v", keys * width, d), ("o", d, heads * width)):
            w.add(p + f"self_attn.{n}_proj.weight", o, i)
            if c.get("attention_bias") or (c["model_type"] == "qwen2" and n != "o"):
                w.add(p + f"self_attn.{n}_proj.bias", o)
        if c["model_type"] == "qwen3":
            w.add(p + "self_attn.q_norm.weight", width, around=1)
            w.add(p + "self_attn.k_norm.weight", width, around=1)
        for n, o, i in (("gate", inner, d), ("up", inner, d), ("down", d, inner)):
            w.add(p + f"mlp.{n}_proj.weight", o, i)
            if c.get("mlp_bias"):
                w.add(p + f"mlp.{n}_proj.bias", o)
        w.add(p + "input_layernorm.weight", d, around=1)
        w.add(p + "post_attention_layernorm.weight", d, around=1)
    w.add("model.norm.weight", d, around=1)
    if not c["tie_word_embeddings"]:
        w.add("lm_head.weight", c["vocab_size"], d)
    elif tied_copy:
        w.bytes["lm_head.weight"] = w.bytes["model.embed_tokens.weight"]
        w.values["lm_head.weight"] = w.values["model.embed_tokens.weight"]
    return w, llama_like(c, w.values)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}


def llama(kind, **changes):
    c = {"architectures": [{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
                            "qwen3": "Qwen3ForCausalLM", "smollm3": "SmolLM3ForCausalLM"}[kind]],
         "model_type": kind, "vocab_size": 29, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "use_cache": True,
         "attention_dropout": 0.0, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2,
         "torch_dtype": "float32", "transformers_version": "4.57.1"}
    if kind == "qwen3":
        c["head_dim"] = 6
    if kind == "smollm3":
        c.update(no_rope_layers=[1, 1, 0], no_rope_layer_interval=3, pad_token_id=0)
    c.update(changes)
    return {key: value for key, value in c.items() if value != "absent"}


def gpt(**changes):
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 29, "n_embd": 24, "n_layer": 3,
            "n_head": 4, "n_inner": None, "n_positions": 40, "n_ctx": 40, "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False, "embd_pdrop": 0.1,
            "attn_pdrop": 0.1, "resid_pdrop": 0.1, "initializer_range": 0.02, "bos_token_id": 28,
            "eos_token_id": 28, "torch_dtype": "float32", "transformers_version": "4.57.1"} | changes


def cases():
    """Name, description, kind of the weights, shards."""
    for kind in ("F32", "F16", "BF16"):
        yield f"gpt2.{kind}", gpt(), kind, 1
        for family in ("llama", "mistral", "qwen2", "qwen3", "smollm3"):
            dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[kind]
            yield f"{family}.{kind}", llama(family, torch_dtype=dtype), kind, {"F32": 1, "F16": 3, "BF16": 2}[kind]
    yield "gpt2.untied", gpt(tie_word_embeddings=False), "F32", 1
    yield "gpt2.inner", gpt(n_inner=31), "F32", 2
    yield "gpt2.heads", gpt(n_head=1, n_layer=1, vocab_size=33), "F32", 1
    yield "gpt2.eps", gpt(layer_norm_epsilon=1e-3), "F32", 1
    yield "gpt2.positions", gpt(n_positions=12, n_ctx=12), "F32", 1
    for family in ("llama", "mistral", "qwen2", "qwen3", "smollm3"):
        yield f"{family}.tied", llama(family, tie_word_embeddings=True), "F32", 1
        yield f"{family}.tied_copy", llama(family, tie_word_embeddings=True), "F32", 2
        yield f"{family}.one_key_head", llama(family, num_key_value_heads=1), "F32", 1
        yield f"{family}.all_key_heads", llama(family, num_key_value_heads=4), "F32", 1
        yield f"{family}.theta", llama(family, rope_theta=500000.0, rms_norm_eps=1e-6), "F32", 1
        yield f"{family}.linear", llama(family, rope_scaling={"type": "linear", "factor": 4.0}), "F32", 1
        yield f"{family}.llama3", llama(family, rope_scaling=LLAMA3), "F32", 1
        yield f"{family}.version5", llama(family, rope_theta="absent", torch_dtype="absent", dtype="float32",
                                          rope_parameters={"rope_type": "default", "rope_theta": 20000.0}), "F32", 1
    for family in ("llama", "mistral"):
        yield f"{family}.head_dim", llama(family, head_dim=10), "F32", 1
        yield f"{family}.null_head_dim", llama(family, head_dim=None), "F32", 1
    yield "qwen3.head_dim", llama("qwen3", head_dim=14, hidden_size=20), "F32", 1
    yield "llama.biases", llama("llama", attention_bias=True, mlp_bias=True), "F32", 1
    yield "llama.attention_bias", llama("llama", attention_bias=True), "F32", 1
    yield "qwen3.attention_bias", llama("qwen3", attention_bias=True), "F32", 1
    yield "smollm3.attention_bias", llama("smollm3", attention_bias=True), "F32", 1
    yield "mistral.window", llama("mistral", sliding_window=4), "F32", 1
    yield "mistral.no_window", llama("mistral", sliding_window=None), "F32", 1
    yield "mistral.wide_window", llama("mistral", sliding_window=4096), "F32", 1
    for family in ("qwen2", "qwen3"):
        yield f"{family}.window", llama(family, use_sliding_window=True, sliding_window=5, max_window_layers=1), "F32", 1
        yield f"{family}.window_off", llama(family, use_sliding_window=False, sliding_window=5, max_window_layers=1), "F32", 1
        yield f"{family}.layer_types", llama(
            family, use_sliding_window=True, sliding_window=3, max_window_layers=3,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"]), "F32", 1
    yield "smollm3.layer_types", llama(
        "smollm3", use_sliding_window=True, sliding_window=3,
        layer_types=["full_attention", "sliding_attention", "full_attention"]), "F32", 1
    yield "smollm3.all_rope", llama("smollm3", no_rope_layers=[1, 1, 1]), "F32", 1
    yield "smollm3.no_rope", llama("smollm3", no_rope_layers=[0, 0, 0]), "F32", 1
    yield "llama.gelu", llama("llama", hidden_act="gelu"), "F32", 1
    yield "llama.yarn", llama("llama", rope_scaling={"rope_type": "yarn", "factor": 4.0,
                                                     "original_max_position_embeddings": 16}), "F32", 1


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    np.save(os.path.join(folder, "ids.npy"), IDS)
    for number, (name, c, kind, shards) in enumerate(cases()):
        w, logits = build(name, c, kind, number + 1, name.endswith("tied_copy"))
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        w.write(os.path.join(folder, name), shards, number % 2 == 0)
        with open(os.path.join(folder, name, "config.json"), "w") as out:
            json.dump(c, out, indent=2)
        np.save(os.path.join(folder, name + ".npy"), logits)
        print(name, c["model_type"])


main()
