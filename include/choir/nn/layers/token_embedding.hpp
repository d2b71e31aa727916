#pragma once
// Embedding rows of tokens: E[id], plus P[position] in models with learned positions, times a
// factor. The table of tokens is divided along the vocabulary; the table of positions is whole on
// every rank, and the first rank adds it. Collective over the tensor axis.
#include <cstdint>
#include <functional>
#include <string>

#include "choir/nn/layers/dropout.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

/// Division of a tensor that has a row for each token.
inline ShardSpec vocabulary_shard() {
  return {.split_dim = 0, .alignment = kVocabularyAlignment};
}

class TokenEmbedding {
 public:
  struct Options {
    std::int64_t vocabulary = 0, width = 0;
    std::int64_t positions = 0;  ///< rows of learned positions; 0: none
    double init_std = 0.02, dropout = 0;
    /// Factor of the result, rows that come from elsewhere included; rounded to the element type,
    /// as Gemma was trained (transformers).
    double scale = 1;
    bool spliced = false;        ///< ids below 0 mark rows that come from elsewhere
    bool shares_weight = false;  ///< with a head whose GEMM overwrites the gradient first
    bool keeps_weight = false;   ///< the head also releases the bucket instead of forward()
  };
  /// Registers `name`.tokens.weight and `name`.positions.weight, each in a bucket of its own.
  TokenEmbedding(ParameterSet& parameters, const std::string& name, bool resident,
                 const Options& options);

  /// ids [B*T] -> rows [B*T, C], or this rank's share of them. `add_rows`, if not empty, adds this
  /// rank's terms of rows that come from elsewhere.
  using AddRows = std::function<void(const Tensor& terms)>;
  Tensor forward(Pass& pass, const TensorView& ids, const AddRows& add_rows = {});
  /// Gradient of the result of forward() -> gradient of all rows [B*T, C].
  Tensor rows_backward(Pass& pass, const Tensor& d_out) const;
  /// Adds d_rows to the gradients of the trainable tables. The ids must live until the weight
  /// gradients are done.
  void backward(Pass& pass, const Tensor& d_rows, const TensorView& ids);

  Parameter& tokens() const { return *tokens_; }
  std::int64_t position_parameters() const { return positions_ ? positions_->count() : 0; }

 private:
  /// First id of this rank's part of the vocabulary.
  std::int64_t first_id() const { return tokens_->split.rank * tokens_->local[0]; }
  static void gradient(Pass& pass, void* self, const Tensor& ids, const Tensor& d_rows);

  Options options_;
  Parameter* tokens_;  ///< may be on another rank, like positions_
  Parameter* positions_ = nullptr;
  Dropout dropout_;
};

}  // namespace choir
