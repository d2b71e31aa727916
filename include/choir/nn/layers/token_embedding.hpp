#pragma once
// Rows for tokens: E[id], and of models that learn positions P[position] beside it. The table of
// tokens is cut along the vocabulary; the table of positions is whole on every rank, and the first
// one adds it. Collective over the tensor axis.
#include <cstdint>
#include <functional>
#include <string>

#include "choir/nn/layers/dropout.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

/// How ranks share whatever has a row for each token.
inline ShardSpec vocabulary_shard() {
  return {.split_dim = 0, .alignment = kVocabularyAlignment};
}

class TokenEmbedding {
 public:
  struct Options {
    std::int64_t vocabulary = 0, width = 0;
    std::int64_t positions = 0;  ///< that there are rows for; 0: none are learnt
    double init_std = 0.02, dropout = 0;
    bool spliced = false;        ///< ids below 0 stand for rows that come from elsewhere
    bool shares_weight = false;  ///< with a head, whose GEMM overwrites the gradient first
    bool keeps_weight = false;   ///< ... and which gives its bucket back in place of forward()
  };
  /// Registers `name`.tokens.weight and `name`.positions.weight in a bucket each.
  TokenEmbedding(ParameterSet& parameters, const std::string& name, bool resident,
                 const Options& options);

  /// ids [B*T] -> rows [B*T, C], or this rank's share of them. `add_rows`, which may be empty, adds
  /// this rank's terms of rows that come from elsewhere.
  using AddRows = std::function<void(const Tensor& terms)>;
  Tensor forward(Pass& pass, const TensorView& ids, BucketHooks& hooks,
                 const AddRows& add_rows = {});
  /// The gradient of what forward() returned -> that of all rows [B*T, C].
  Tensor rows_backward(Pass& pass, const Tensor& d_out) const;
  /// ... which goes to the tables that are trained. The ids must live until weight gradients are
  /// done.
  void backward(Pass& pass, const Tensor& d_rows, const TensorView& ids, BucketHooks& hooks);

  Parameter& tokens() const { return *tokens_; }
  std::int64_t position_parameters() const { return positions_ ? positions_->count() : 0; }

 private:
  /// Where this rank's part of the vocabulary begins.
  std::int64_t first_id() const { return tokens_->split.rank * tokens_->local[0]; }
  static void gradient(Pass& pass, void* self, const Tensor& ids, const Tensor& d_rows);

  Options options_;
  Parameter* tokens_;  ///< perhaps on another rank, like the next
  Parameter* positions_ = nullptr;
  Dropout dropout_;
};

}  // namespace choir
