#pragma once
// The choice of a model and its shape, a value from which every rank builds the same model. It
// holds the configuration of some family, for example GptConfig, which only that family reads.
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "choir/core/error.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class ModelFamily;

class ModelConfig {
 public:
  ModelConfig() = default;  ///< no model
  /// Copies the configuration of a family, which family_of(config) finds. The configuration has the
  /// members n_layer, n_embd, vocab_size and recompute.
  template <class Config>
  requires(!std::same_as<Config, ModelConfig>) ModelConfig(const Config& config)
      : family_(&family_of(config)), held_(std::make_unique<Held<Config>>(config)) {}
  ModelConfig(const ModelConfig& other)
      : family_(other.family_), held_(other.held_ ? other.held_->clone() : nullptr) {}
  ModelConfig& operator=(const ModelConfig& other) { return *this = ModelConfig(other); }
  ModelConfig(ModelConfig&&) = default;
  ModelConfig& operator=(ModelConfig&&) = default;
  ~ModelConfig() = default;

  const ModelFamily& family() const {
    CHOIR_CHECK(family_ != nullptr, "no model was configured");
    return *family_;
  }
  /// The configuration in the family's own type. Throws Error if it belongs to another family.
  template <class Config>
  const Config& as() const {
    const auto* const held = dynamic_cast<const Held<Config>*>(held_.get());
    CHOIR_CHECK(held != nullptr, "a model of another family");
    return held->config;
  }
  template <class Config>
  Config& as() {
    return const_cast<Config&>(std::as_const(*this).template as<Config>());
  }

  // Members of every family's configuration.
  std::int64_t n_layer() const { return held().n_layer(); }
  std::int64_t n_embd() const { return held().n_embd(); }
  std::int64_t vocab_size() const { return held().vocab_size(); }
  Recompute recompute() const { return held().recompute(); }
  void set_recompute(Recompute recompute) { held_->recompute() = recompute; }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual std::unique_ptr<Base> clone() const = 0;
    virtual std::int64_t n_layer() const = 0;
    virtual std::int64_t n_embd() const = 0;
    virtual std::int64_t vocab_size() const = 0;
    virtual Recompute recompute() const = 0;
    virtual Recompute& recompute() = 0;
  };
  template <class Config>
  struct Held final : Base {
    explicit Held(const Config& from) : config(from) {}
    std::unique_ptr<Base> clone() const override { return std::make_unique<Held>(config); }
    std::int64_t n_layer() const override { return config.n_layer; }
    std::int64_t n_embd() const override { return config.n_embd; }
    std::int64_t vocab_size() const override { return config.vocab_size; }
    Recompute recompute() const override { return config.recompute; }
    Recompute& recompute() override { return config.recompute; }
    Config config;
  };
  const Base& held() const {
    CHOIR_CHECK(held_ != nullptr, "no model was configured");
    return *held_;
  }

  const ModelFamily* family_ = nullptr;
  std::unique_ptr<Base> held_;
};

}  // namespace choir
