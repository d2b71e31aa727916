#include "src/models/gpt/foreign/foreign_deck.hpp"

#include <array>
#include <filesystem>

#include "choir/core/json_value.hpp"

namespace choir {
namespace {

constexpr std::array<const char*, 2> kNorms{"layernorm", "rmsnorm"};
constexpr std::array<const char*, 5> kActivations{"gelu", "gelu_tanh", "relu", "swiglu", "silu"};
constexpr std::array<const char*, 2> kPositions{"learned", "rope"};

constexpr std::array<const char*, 4> kScalings{"none", "linear", "llama3", "yarn"};
constexpr std::array<const char*, 3> kBiases{"auto", "yes", "no"};

void add_rope(nlohmann::ordered_json& model, const GptConfig& c) {
  const ops::RopeScaling standard, &s = c.rope_scaling;
  model["rope_theta"] = c.rope_theta;
  if (c.rope_skip_interval > 0) model["rope_skip_interval"] = c.rope_skip_interval;
  if (s.kind == ops::RopeScaling::Kind::none) return;
  model["rope_scaling"] = kScalings[static_cast<std::size_t>(s.kind)];
  const auto add = [&](const char* key, double value, double otherwise) {
    if (value != otherwise) model[key] = value;
  };
  add("rope_factor", s.factor, standard.factor);
  add("rope_original", s.original, standard.original);
  add("rope_low_factor", s.low, standard.low);
  add("rope_high_factor", s.high, standard.high);
  add("rope_beta_fast", s.beta_fast, standard.beta_fast);
  add("rope_beta_slow", s.beta_slow, standard.beta_slow);
  if (s.truncate != standard.truncate) model["rope_truncate"] = s.truncate;
  add("rope_attention_factor", s.attention_factor, standard.attention_factor);
}

void add_attention(nlohmann::ordered_json& model, const GptConfig& c) {
  if (c.own_head_width > 0) model["head_width"] = c.own_head_width;
  for (const auto& [key, value] :
       {std::pair{"qkv_bias", c.qkv_bias}, std::pair{"norm_bias", c.norm_bias}})
    if (value != Biases::as_bias) model[key] = kBiases[static_cast<std::size_t>(value)];
  if (c.qk_norm) model["qk_norm"] = true;
  if (c.window == 0) return;
  model["attention_window"] = c.window;
  if (c.window_first_layer > 0) model["window_first_layer"] = c.window_first_layer;
  if (c.window_skip_interval > 0) model["window_skip_interval"] = c.window_skip_interval;
}

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
  if (c.position == Position::rope) add_rope(model, c);
  add_attention(model, c);
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
