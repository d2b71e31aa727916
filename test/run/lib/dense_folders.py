#!/usr/bin/env python3
"""Writes folders of models with odd but legal settings, and the logits that transformers computes of them, in fp64 but for
its norms, softmax and angles.

    dense_folders.py OUT

OUT has a folder for each model, OUT/ids.npy, and OUT/NAME.npy with its logits. Prints a line for each model: its name.
"""
import os
import sys

import numpy
import torch
import transformers

COMMON = dict(vocab_size=64, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2)
IDS = [4, 58, 46, 44, 62, 43, 61, 28, 42, 28, 20, 59]
WINDOWED, FULL = "sliding_attention", "full_attention"

# Settings of each family: the first ones are those of all its models.
FAMILIES = {
    "gemma": [dict(head_dim=16, hidden_act="gelu_pytorch_tanh"), dict(), dict(num_key_value_heads=1), dict(num_key_value_heads=4),
              dict(head_dim=6), dict(tie_word_embeddings=False), dict(attention_bias=True), dict(rms_norm_eps=0.01),
              dict(rope_parameters=dict(rope_type="default", rope_theta=77.0)),
              dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=100.0)),
              dict(rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=100.0)),
              dict(rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=100.0)), dict(hidden_act="gelu")],
    "gemma2": [dict(head_dim=16, sliding_window=5, query_pre_attn_scalar=16), dict(), dict(attn_logit_softcapping=None),
               dict(final_logit_softcapping=None), dict(attn_logit_softcapping=None, final_logit_softcapping=None),
               dict(sliding_window=64), dict(sliding_window=4096), dict(sliding_window=1), dict(query_pre_attn_scalar=7),
               dict(layer_types=[FULL, WINDOWED]), dict(layer_types=[FULL, FULL]), dict(layer_types=[WINDOWED, WINDOWED]),
               dict(num_hidden_layers=3), dict(num_hidden_layers=3, layer_types=[WINDOWED, FULL, FULL]), dict(tie_word_embeddings=False),
               dict(num_hidden_layers=4, layer_types=[WINDOWED, WINDOWED, WINDOWED, FULL]), dict(attention_bias=True),
               dict(num_key_value_heads=1), dict(hidden_activation="gelu"), dict(use_bidirectional_attention=True)],
    "gemma3_text": [dict(head_dim=16, sliding_window=5, num_hidden_layers=3, query_pre_attn_scalar=16), dict(),
                    dict(layer_types=[WINDOWED, WINDOWED, FULL]), dict(layer_types=[FULL, WINDOWED, WINDOWED]),
                    dict(layer_types=[WINDOWED, FULL, WINDOWED]), dict(layer_types=[FULL] * 3), dict(layer_types=[WINDOWED] * 3),
                    dict(sliding_window=100, layer_types=[WINDOWED, WINDOWED, FULL]), dict(final_logit_softcapping=5.0),
                    dict(attn_logit_softcapping=5.0), dict(tie_word_embeddings=False), dict(num_key_value_heads=1),
                    dict(layer_types=[WINDOWED, WINDOWED, FULL],
                         rope_parameters={FULL: dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                                          WINDOWED: dict(rope_type="default", rope_theta=123.0)}),
                    dict(layer_types=[WINDOWED, WINDOWED, FULL],
                         rope_parameters={FULL: dict(rope_type="default", rope_theta=1e6),
                                          WINDOWED: dict(rope_type="linear", factor=2.0, rope_theta=123.0)}),
                    dict(layer_types=[WINDOWED, WINDOWED, FULL],
                         rope_parameters={FULL: dict(rope_type="yarn", factor=4.0, rope_theta=1e4, original_max_position_embeddings=16),
                                          WINDOWED: dict(rope_type="default", rope_theta=1e4)})],
    "granite": [dict(embedding_multiplier=3.0, residual_multiplier=0.22, attention_multiplier=0.2, logits_scaling=2.0), dict(),
                dict(attention_bias=True), dict(mlp_bias=True), dict(attention_bias=True, mlp_bias=True), dict(tie_word_embeddings=True),
                dict(num_key_value_heads=1), dict(embedding_multiplier=1.0, residual_multiplier=1.0, attention_multiplier=1.0,
                                                 logits_scaling=1.0),
                dict(rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=50.0)), dict(hidden_act="gelu")],
    "olmo2": [dict(), dict(), dict(num_key_value_heads=1), dict(num_key_value_heads=4), dict(attention_bias=True),
              dict(tie_word_embeddings=True), dict(rms_norm_eps=0.05),
              dict(rope_parameters=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                        original_max_position_embeddings=16, rope_theta=100.0))],
    "olmo3": [dict(num_hidden_layers=4, sliding_window=5), dict(), dict(sliding_window=64), dict(sliding_window=1000),
              dict(layer_types=[WINDOWED] * 4), dict(layer_types=[FULL] * 4), dict(layer_types=[WINDOWED, FULL] * 2),
              dict(layer_types=[FULL, WINDOWED, WINDOWED, WINDOWED]), dict(tie_word_embeddings=True), dict(num_key_value_heads=1)],
    "gpt_neox": [dict(num_key_value_heads=None, hidden_act="gelu"), dict(), dict(use_parallel_residual=False), dict(rotary_pct=0.5),
                 dict(rotary_pct=1.0), dict(attention_bias=False), dict(hidden_act="gelu_new"), dict(hidden_act="relu"),
                 dict(hidden_act="gelu_fast"), dict(hidden_act="gelu_pytorch_tanh"), dict(tie_word_embeddings=True),
                 dict(layer_norm_eps=0.1), dict(intermediate_size=37), dict(rotary_emb_base=50),
                 dict(rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=50.0, partial_rotary_factor=0.5))],
    "phi3": [dict(original_max_position_embeddings=64), dict(), dict(partial_rotary_factor=0.75), dict(partial_rotary_factor=0.5),
             dict(sliding_window=5), dict(sliding_window=262144), dict(sliding_window=None), dict(tie_word_embeddings=True),
             dict(num_key_value_heads=1), dict(num_key_value_heads=4),
             dict(original_max_position_embeddings=8, rope_parameters=dict(
                 rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.25, 1.5, 2.0], long_factor=[1.0, 1.75, 3.0, 4.5],
                 original_max_position_embeddings=8)),
             dict(original_max_position_embeddings=8, rope_parameters=dict(
                 rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.25, 1.5], long_factor=[1.0, 1.75, 3.0],
                 original_max_position_embeddings=8, partial_rotary_factor=0.75)),
             dict(hidden_act="gelu"), dict(attention_bias=True)],
}


def random_model(kind, settings, seed):
    config = transformers.AutoConfig.for_model(kind, **settings)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases, which would begin as 1 and 0
                parameter += 0.3 * torch.randn(parameter.shape, dtype=torch.float64)
            parameter.copy_(parameter.float().double())
    return model


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([IDS]), use_cache=False).logits[0].double().numpy()


def main():
    out = sys.argv[1]
    os.makedirs(out)
    numpy.save(f"{out}/ids.npy", numpy.array(IDS, dtype=numpy.int32))
    transformers.logging.set_verbosity_error()
    for kind, (always, *variants) in FAMILIES.items():
        for number, more in enumerate(variants):
            settings = {**COMMON, **always, **more}
            name = f"{kind}.{number}"
            model = random_model(kind, {key: value for key, value in settings.items() if value is not None or key not in COMMON}, number)
            numpy.save(f"{out}/{name}.npy", logits_of(model))
            model.float().save_pretrained(f"{out}/{name}")
            print(name)


main()
