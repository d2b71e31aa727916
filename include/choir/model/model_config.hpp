#pragma once
// Which model, and its shape: a value, by which every rank makes the same.
#include <utility>
#include <variant>

#include "choir/model/batch.hpp"
#include "choir/model/fastconformer_config.hpp"
#include "choir/model/gpt_config.hpp"

namespace choir {

class ModelConfig {
 public:
  ModelConfig() = default;  ///< a GPT
  ModelConfig(const GptConfig& config) : value_(config) {}
  ModelConfig(const FastConformerConfig& config) : value_(config) {}

  /// Reads audio; otherwise tokens.
  bool is_speech() const { return std::holds_alternative<FastConformerConfig>(value_); }
  /// Throw Error where it is the other kind.
  GptConfig& gpt() { return const_cast<GptConfig&>(std::as_const(*this).gpt()); }
  const GptConfig& gpt() const { return value_of<GptConfig>(value_); }
  FastConformerConfig& fastconformer() {
    return const_cast<FastConformerConfig&>(std::as_const(*this).fastconformer());
  }
  const FastConformerConfig& fastconformer() const { return value_of<FastConformerConfig>(value_); }

  // What all kinds have.
  std::int64_t n_layer() const {
    return std::visit([](const auto& c) { return c.n_layer; }, value_);
  }
  std::int64_t n_embd() const {
    return std::visit([](const auto& c) { return c.n_embd; }, value_);
  }
  std::int64_t vocab_size() const {
    return std::visit([](const auto& c) { return c.vocab_size; }, value_);
  }
  Recompute recompute() const {
    return std::visit([](const auto& c) { return c.recompute; }, value_);
  }
  void set_recompute(Recompute recompute) {
    std::visit([&](auto& c) { c.recompute = recompute; }, value_);
  }

 private:
  using Value = std::variant<GptConfig, FastConformerConfig>;
  template <class Config>
  static const Config& value_of(const Value& value) {
    const Config* config = std::get_if<Config>(&value);
    CHOIR_CHECK(config != nullptr, "a model of another kind, number {}", value.index());
    return *config;
  }

  Value value_;
};

/// `sequences` of the block size.
inline BatchShape token_shape(const GptConfig& config, std::int64_t sequences) {
  return {.samples = sequences, .tokens = config.block_size};
}

}  // namespace choir
