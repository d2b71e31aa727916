#include "src/models/gpt/foreign/foreign_deck.hpp"

#include <array>
#include <filesystem>

#include "choir/core/json_value.hpp"

namespace choir {
namespace {

constexpr std::array<const char*, 2> kNorms{"layernorm", "rmsnorm"};
constexpr std::array<const char*, 5> kActivations{"gelu", "gelu_tanh", "relu", "swiglu", "silu"};
constexpr std::array<const char*, 2> kPositions{"learned", "rope"};

}  // namespace

std::string foreign_deck(const GptConfig& c, const std::string& run_directory) {
  nlohmann::ordered_json deck;
  auto& run = deck["run"];
  run["dir"] = run_directory;
  run["name"] = std::filesystem::path(run_directory).lexically_normal().filename().string();
  auto& model = deck["model"];
  model["type"] = "gpt";
  model["n_layer"] = c.n_layer;
  model["n_head"] = c.n_head;
  model["n_kv_head"] = c.n_kv_head;
  model["n_embd"] = c.n_embd;
  model["ffn_width"] = c.ffn_width;
  model["block_size"] = c.block_size;
  model["vocab_size"] = c.vocab_size;
  model["bias"] = c.bias;
  model["tied"] = c.tied;
  model["norm"] = kNorms[static_cast<std::size_t>(c.norm)];
  model["norm_eps"] = c.norm_eps;
  model["activation"] = kActivations[static_cast<std::size_t>(c.activation)];
  model["position"] = kPositions[static_cast<std::size_t>(c.position)];
  if (c.position == Position::rope) model["rope_theta"] = c.rope_theta;
  if (c.lora.rank > 0)
    model["lora"] = {{"rank", c.lora.rank},
                     {"alpha", c.lora.alpha},
                     {"dropout", c.lora.dropout},
                     {"rank_stabilised", c.lora.rank_stabilised},
                     {"targets", c.lora.targets}};
  deck["data"]["train"] = {"YOUR-TOKENS"};
  deck["train"]["micro_batch_size"] = 1;
  deck["train"]["grad_accum"] = 1;
  deck["optimizer"]["learning_rate"] = 2e-5;
  deck["eval"]["sample_tokens"] = 0;
  return dumped(deck, 2);
}

}  // namespace choir
