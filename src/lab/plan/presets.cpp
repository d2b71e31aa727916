#include "choir/lab/plan/presets.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace choir {
namespace {

/// The sizes come from the published config.json. A vocabulary of 50,257 tokens means GPT-2.
struct Preset {
  const char* name;
  int layers, heads, kv_heads, width, ffn, block, vocabulary;
  double theta;
  bool tied;
};
constexpr std::array<Preset, 11> kPresets{{
    {"gpt2", 12, 12, 12, 768, 3072, 1024, 50257, 0, true},
    {"gpt2-medium", 24, 16, 16, 1024, 4096, 1024, 50257, 0, true},
    {"gpt2-large", 36, 20, 20, 1280, 5120, 1024, 50257, 0, true},
    {"gpt2-xl", 48, 25, 25, 1600, 6400, 1024, 50257, 0, true},
    {"llama2-7b", 32, 32, 32, 4096, 11008, 4096, 32000, 10000, false},
    {"llama2-13b", 40, 40, 40, 5120, 13824, 4096, 32000, 10000, false},
    {"llama2-70b", 80, 64, 8, 8192, 28672, 4096, 32000, 10000, false},
    {"llama3.2-1b", 16, 32, 8, 2048, 8192, 8192, 128256, 500000, true},
    {"llama3.2-3b", 28, 24, 8, 3072, 8192, 8192, 128256, 500000, true},
    {"llama3-8b", 32, 32, 8, 4096, 14336, 8192, 128256, 500000, false},
    {"llama3-70b", 80, 64, 8, 8192, 28672, 8192, 128256, 500000, false},
}};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::string preset_deck(const std::string& name) {
  const auto* found = std::find_if(kPresets.begin(), kPresets.end(),
                                   [&](const Preset& p) { return p.name == name; });
  if (found == kPresets.end()) return {};
  const std::string style =
      found->theta == 0
          ? R"("norm": "layernorm", "activation": "gelu_tanh", "position": "learned", "bias": true)"
          : fmt::format(R"("norm": "rmsnorm", "activation": "swiglu", "position": "rope", )"
                        R"("rope_theta": {}, "bias": false)",
                        found->theta);
  return fmt::format(R"({{"model": {{"n_layer": {}, "n_head": {}, "n_kv_head": {}, "n_embd": {}, )"
                     R"("ffn_width": {}, "block_size": {}, "vocab_size": {}, "tied": {}, {}}},)"
                     "\n"
                     R"( "data": {{"format": "synthetic"}},)"
                     "\n"
                     R"( "train": {{"precision": "bf16-mixed", "micro_batch_size": 1}}}})",
                     found->layers, found->heads, found->kv_heads, found->width, found->ffn,
                     found->block, found->vocabulary, found->tied, style);
}

}  // namespace choir
