// Fuzzes folders of PEFT: 'c' and adapter_config.json beside a valid adapter, or 'w' and
// adapter_model.safetensors beside a valid configuration. 'C' and 'W' are the same for a model
// whose q, k and v are one module, with adapters that are stacked.
#include <algorithm>
#include <utility>

#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/peft.hpp"
#include "src/store/finite.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

const std::string kConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], )"
    R"("lora_dropout": 0.1, "bias": "none", "task_type": "CAUSAL_LM", "use_rslora": true})";
const std::string kModel =
    R"({"model_type": "llama", "vocab_size": 8, "max_position_embeddings": 8, "hidden_size": 4, )"
    R"("intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, )"
    R"("num_key_value_heads": 2, "hidden_act": "silu", "tie_word_embeddings": true})";

const std::string kStackedConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["qkv_proj"], )"
    R"("bias": "none", "rank_pattern": {"qkv_proj": 6}, "alpha_pattern": {"qkv_proj": 12.0}})";
const std::string kFusedModel =
    R"({"model_type": "phi3", "vocab_size": 8, "max_position_embeddings": 8, "hidden_size": 4, )"
    R"("intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, )"
    R"("num_key_value_heads": 1, "hidden_act": "silu", "rms_norm_eps": 1e-05, )"
    R"("rope_theta": 10000.0, "tie_word_embeddings": false})";

std::string safetensors(const std::string& header, std::size_t bytes) {
  return bytes_of(static_cast<std::uint64_t>(header.size())) + header + std::string(bytes, '\1');
}

/// A [2, 4] and B [4, 2] of one module.
std::string adapter() {
  const std::string place = R"("base_model.model.model.layers.0.self_attn.q_proj.lora_)";
  return safetensors(
      "{" + place + R"(A.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},)" + place +
          R"(B.weight":{"dtype":"F32","shape":[4,2],"data_offsets":[32,64]}})",
      64);
}

/// A [6, 4] and B [8, 6] of the fused module. The factors of q, k and v have rank 2: 4, 2 and 2
/// rows of B have values in two columns of their own.
std::string stacked_adapter() {
  constexpr int kRank = 2, kColumns = 6;
  std::string b;
  for (const int section : {0, 0, 0, 0, 1, 1, 2, 2})
    for (int column = 0; column < kColumns; ++column)
      b += bytes_of(column / kRank == section ? 1.0F : 0.0F);
  const std::string place = R"("base_model.model.model.layers.0.self_attn.qkv_proj.lora_)";
  const std::string header =
      "{" + place + R"(A.weight":{"dtype":"F32","shape":[6,4],"data_offsets":[0,96]},)" + place +
      R"(B.weight":{"dtype":"F32","shape":[8,6],"data_offsets":[96,288]}})";
  return safetensors(header, 96) + b;
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      "c" + kConfig, "w" + adapter(), "C" + kStackedConfig, "W" + stacked_adapter(),
      R"(c{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": "all-linear", )"
      R"("use_dora": false, "fan_in_fan_out": false, "rank_pattern": {}, "inference_mode": true})"};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  const bool config = kind == 'c' || kind == 'C', stacked = kind == 'C' || kind == 'W';
  std::string text = stacked ? kStackedConfig : kConfig;
  std::string weights = stacked ? stacked_adapter() : adapter();
  (config ? text : weights) = input.substr(1);
  put("adapter_config.json", text);
  const std::string file = put("adapter_model.safetensors", weights);
  const std::string folder = std::filesystem::path(file).parent_path().string();
  accepted([&] {
    const PeftAdapter found = open_peft(folder, false);
    ForeignModel model = model_from_hf(stacked ? kFusedModel : kModel, "config.json", false);
    if (found.lora.rank > 64) return;
    model.config.lora = found.lora;
    const ParameterSet parameters = described_parameters(model.config);
    const auto parts = factor_parts(model.config, parameters, model.dialect, found.stacked);
    require_fit(found, parts, true, true);
    require_empty_sections(found, parts);
    FiniteCheck finite;
    for (const FactorPart& part : parts) {
      const TensorEntry* entry = found.find(part);
      if (entry == nullptr || part.own.empty()) continue;
      std::vector<float> values(static_cast<std::size_t>(part.shape.count()));
      read_factor_rows(*found.weights, entry->name, part,
                       {.rows = part.shape[0],
                        .data = reinterpret_cast<std::byte*>(values.data()),
                        .dtype = DType::f32},
                       finite);
    }
  });
}

}  // namespace choir::fuzz
