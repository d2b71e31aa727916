#pragma once
// The shape of a decoder-only transformer. nanoGPT, GPT-2 and Llama are values of it.
#include <cstdint>

#include "choir/models/batch.hpp"
#include "choir/models/model_config.hpp"
#include "choir/nn/layers/lora.hpp"
#include "choir/nn/recompute.hpp"
#include "choir/ops/activation.hpp"
#include "choir/ops/attention.hpp"
#include "choir/ops/norm.hpp"

namespace choir {

enum class Position { learned, rope };

struct GptConfig {
  std::int64_t vocab_size = 0;
  std::int64_t block_size = 1024;  ///< longest sequence, T
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_kv_head = 12;    ///< divides n_head
  std::int64_t n_embd = 768;      ///< C, a multiple of n_head
  std::int64_t ffn_width = 3072;  ///< F
  int tile = 1;                   ///< tiles of the feed-forward layer, see FeedForward
  bool bias = true;               ///< in linear layers and layer norms
  double dropout = 0;             ///< on the embedding and on both branches of every block
  bool tied = true;               ///< head and token embedding share one matrix
  ops::Norm norm = ops::Norm::layernorm;
  double norm_eps = 1e-5;
  ops::Activation activation = ops::Activation::gelu;
  Position position = Position::learned;
  double rope_theta = 10000;
  ops::AttentionImplementation attention = ops::AttentionImplementation::automatic;
  Recompute recompute = Recompute::none;  ///< in every block, while training
  double label_smoothing = 0;             ///< of the targets, while training; in [0, 1)
  Lora lora{};                            ///< of every block

  std::int64_t head_width() const { return n_embd / n_head; }
};

const ModelFamily& family_of(const GptConfig& config);

/// A micro-batch of sequences of tokens: "inputs" and "targets", [B*T] i32; targets below 0 are
/// ignored. Without targets, as a model that generates reads it, where `targets` is empty.
ModelBatch token_batch(std::int64_t samples, const TensorView& inputs,
                       const TensorView& targets = {}, std::int64_t first_sample = 0);

}  // namespace choir
