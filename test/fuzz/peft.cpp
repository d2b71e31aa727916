// Fuzzes folders of PEFT: 'c' and adapter_config.json beside a valid adapter, or 'w' and
// adapter_model.safetensors beside a valid configuration.
#include <algorithm>
#include <utility>

#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/peft.hpp"
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

}  // namespace

std::vector<std::string> seeds() {
  return {
      "c" + kConfig, "w" + adapter(),
      R"(c{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": "all-linear", )"
      R"("use_dora": false, "fan_in_fan_out": false, "rank_pattern": {}, "inference_mode": true})"};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const bool config = input.front() == 'c';
  const std::string bytes(input.substr(1));
  put("adapter_config.json", config ? bytes : kConfig);
  const std::string file = put("adapter_model.safetensors", config ? adapter() : bytes);
  const std::string folder = std::filesystem::path(file).parent_path().string();
  accepted([&] {
    const PeftAdapter found = open_peft(folder, false);
    ForeignModel model = model_from_hf(kModel, "config.json", false);
    if (found.lora.rank > 64) return;
    model.config.lora = found.lora;
    const ParameterSet parameters = described_parameters(model.config);
    const auto parts = factor_parts(model.config, parameters, model.dialect);
    require_fit(found, parts, true, true);
    for (const FactorPart& part : parts) {
      const TensorEntry* entry = found.find(part);
      if (entry == nullptr) continue;
      std::vector<float> values(static_cast<std::size_t>(part.shape.count()));
      found.weights->read(entry->name, part.first, part.shape.count(), values.data(), DType::f32);
    }
  });
}

}  // namespace choir::fuzz
