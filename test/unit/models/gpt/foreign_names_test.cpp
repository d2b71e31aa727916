// Names of tensors and keys of configurations as other programs write them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"

namespace choir {
namespace {

TEST(ForeignNames, PrefixesOfTrainersAreRemoved) {
  const auto llama = [](const char* name) { return name_in_table(name, Dialect::hf_llama); };
  const std::string plain = "model.layers.0.mlp.up_proj.weight";
  for (const char* prefix :
       {"", "module.", "_orig_mod.", "model.", "state_dict/model.", "module.module.", "state_dict/",
        "_forward_module.model.", "module/", "base_model.model.", "_fsdp_wrapped_module."})
    EXPECT_EQ(llama((prefix + plain).c_str()), plain) << prefix;
  EXPECT_EQ(llama("layers.0.mlp.up_proj.weight"), plain);
  for (const char* wrapped :
       {"_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module.mlp.up_proj.weight",
        "model.layers.0._checkpoint_wrapped_module.mlp._orig_mod.up_proj.weight"})
    EXPECT_EQ(llama(wrapped), plain) << wrapped;
  EXPECT_EQ(llama("model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(llama("model.norm.weight"), "model.norm.weight");
  const auto gpt2 = [](const char* name) { return name_in_table(name, Dialect::hf_gpt2); };
  EXPECT_EQ(gpt2("module.h.0.attn.c_attn.weight"), "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(gpt2("model.transformer.wte.weight"), "transformer.wte.weight");
  EXPECT_EQ(name_in_table("model/_orig_mod.transformer.wte.weight", Dialect::nanogpt),
            "transformer.wte.weight");
  EXPECT_EQ(name_in_table("model.embed_tokens.weight", Dialect::gguf_llama),
            "model.embed_tokens.weight");
}

TEST(ForeignNames, OtherEntriesOfACheckpointAreNoWeights) {
  for (const Dialect dialect : {Dialect::nanogpt, Dialect::hf_gpt2, Dialect::hf_llama}) {
    EXPECT_EQ(is_no_weight("best_val_loss", dialect), dialect == Dialect::nanogpt);
    EXPECT_TRUE(is_no_weight("optimizer/state/0/exp_avg", dialect));
    EXPECT_FALSE(is_no_weight("transformer.wte.weight", dialect));
  }
}

/// The configuration of a small Qwen2 with these further members.
std::string qwen2_with(const std::string& members) {
  return R"({"model_type":"qwen2","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":16,)"
         R"("num_key_value_heads":2,"intermediate_size":24,"max_position_embeddings":32,)"
         R"("vocab_size":50)" +
         members + "}";
}

TEST(ForeignKeys, ValuesThatChangeNothingAreAccepted) {
  for (const char* members :
       {R"(,"use_mrope":false,"max_window_layers":24,"use_sliding_window":false)",
        R"(,"top_p":0.9,"do_sample":true,"num_beams":1,"bad_words_ids":null,"prefix":null)",
        R"(,"pruned_heads":{},"tie_encoder_decoder":false,"is_decoder":true,"torchscript":false)",
        R"(,"quantization_config":null,"auto_map":null,"chunk_size_feed_forward":0)",
        R"(,"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true})"})
    EXPECT_EQ(model_from_hf(qwen2_with(members), "config.json", false).config.n_embd, 16)
        << members;
}

/// The configuration of a small model of any family with these further members.
std::string model_with(const std::string& type, const std::string& members) {
  const std::string text = qwen2_with(members);
  return R"({"model_type":")" + type + text.substr(text.find(R"(",)"));
}

// Keys of published configurations.
TEST(ForeignKeys, KeysOfRealModelsWithoutEffectAreAccepted) {
  const struct {
    const char *type, *members;
  } models[] = {
      {"qwen2", R"(,"attention_bias":false,"_num_labels":1,"lm_head_bias":false)"},
      {"mistral", R"(,"attention_bias":false,"mlp_bias":false,"sliding_window":null)"},
      {"llama", R"(,"rope_scaling":{"type":"yarn","factor":2.0,"finetuned":true,)"
                R"("original_max_position_embeddings":16})"},
      {"llama", R"(,"hidden_act":"swish")"},
      {"phi3", R"(,"auto_map":{"AutoConfig":"configuration_phi3.Phi3Config",)"
               R"("AutoModelForCausalLM":"me/repo--modeling_phi3.Phi3ForCausalLM",)"
               R"("AutoTokenizer":["a.B",null]})"},
      {"phi3",
       R"(,"full_attn_mod":1,"interpolate_factor":1,"lm_head_bias":false,"mlp_bias":false)"},
      {"gemma2", R"(,"head_dim":4,"sliding_window":4,"sliding_window_size":4)"}};
  for (const auto& one : models)
    EXPECT_EQ(model_from_hf(model_with(one.type, one.members), "config.json", false).config.n_embd,
              16)
        << one.type << one.members;
}

// The class of Llama has no window, and computes the same if the file names one.
TEST(ForeignKeys, AWindowThatTheClassDoesNotHaveIsNone) {
  for (const char* members :
       {R"(,"sliding_window":8)", R"(,"sliding_window":8,"use_sliding_window":true)"})
    EXPECT_EQ(model_from_hf(model_with("llama", members), "config.json", false).config.window, 0);
}

TEST(ForeignKeys, CodeOfAnotherNameIsRefused) {
  for (const char* members :
       {R"(,"auto_map":{"AutoModelForCausalLM":"modeling_foo.FooForCausalLM"})",
        R"(,"auto_map":{"AutoModelForCausalLM":"modeling_phi3.Phi3SmallForCausalLM"})",
        R"(,"auto_map":["modeling_phi3.Phi3ForCausalLM"])"})
    EXPECT_THROW(model_from_hf(model_with("phi3", members), "config.json", false), DeckError);
  for (const char* members : {R"(,"full_attn_mod":2)", R"(,"lm_head_bias":true)"})
    EXPECT_THROW(model_from_hf(model_with("phi3", members), "config.json", false), DeckError);
}

TEST(ForeignKeys, ValuesThatChangeTheModelAreRefusedByName) {
  for (const char* member :
       {R"("use_mrope":true)", R"("pruned_heads":{"0":[1]})", R"("auto_map":{"AutoModel":"m.M"})",
        R"("quantization_config":{"bits":4})", R"("nobody_knows":false)",
        R"("quantization_config":{"quant_method":"gptq"})", R"("quantization_config":[4])"}) {
    const std::string key = std::string(member).substr(1, std::string(member).find(':') - 2);
    try {
      model_from_hf(qwen2_with(std::string(",") + member), "config.json", false);
      ADD_FAILURE() << member;
    } catch (const DeckError& error) {
      EXPECT_NE(std::string(error.what()).find(key + " = "), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace choir
