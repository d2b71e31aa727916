#pragma once
// Multi-head self-attention with relative positions (Dai et al. 2019; speech: Gulati et al. 2020):
// softmax(scale ((q_i + u) k_j + (q_i + v) (W r_{i-j}))) over the keys of a sequence that count and
// that the context lets it see. The position term is a bias of ops::attention that is read with a
// shift, so that it is written once, by products of matrices.
//
// Over the tensor axis heads are divided, as in SelfAttention: rows of qkv and of W, columns of the
// output, u and v.
#include <string>

#include "choir/nn/dropout.hpp"
#include "choir/nn/linear.hpp"
#include "choir/nn/recent_rows.hpp"
#include "choir/nn/residual_norm.hpp"
#include "choir/ops/attention.hpp"
#include "choir/ops/relative_attention.hpp"

namespace choir {

/// What attention over the chunks of a stream reads beside the chunk.
struct AttentionPast {
  RecentRows keys_values;  ///< rows k | v of the chunks that can still be seen
  Tensor positions;        ///< [H, P, D] W r of the distances there can be, largest first
  std::int64_t most_keys = 0;
};

class RelativeAttention {
 public:
  struct Options {
    std::int64_t width = 0;  ///< C
    std::int64_t heads = 0;  ///< H, divides width
    ops::AttentionContext context{};
    double dropout = 0;  ///< on the output; attention weights are never dropped
    double init_std = 0.02;
    ops::AttentionImplementation implementation = ops::AttentionImplementation::automatic;
  };
  /// Registers `name`.qkv (rows q | k | v), `name`.position.weight [C, C], `name`.query_bias (u)
  /// and `name`.position_bias (v), [H, C / H] and zero, and `name`.output in the current bucket.
  RelativeAttention(ParameterSet& parameters, const std::string& name, const Options& options);

  /// x [B*T, C] -> [B*T, C]; `positions` [2T - 1, C] of ops::relative_positions. `source`, the same
  /// in both calls: the norm that x came from and that makes it again for backward; then neither x
  /// nor the position term is kept.
  Tensor forward(Pass& pass, const Tensor& x, const Tensor& positions,
                 ResidualNorm* source = nullptr);
  Tensor backward(Pass& pass, const Tensor& d_y, ResidualNorm* source = nullptr);

  /// For streams in chunks of at most `chunk` frames that see `left` frames before them, whole
  /// chunks. `positions` [>= left + 2 chunk - 1, C] from the distance left + chunk - 1 down, as
  /// ops::relative_positions gives them for left + chunk frames. Needs the values of parameters.
  AttentionPast make_past(Pass& pass, std::int64_t left, std::int64_t chunk,
                          const Tensor& positions) const;
  /// Of the next chunk [T, C] of one stream, in evaluation: each of its frames sees all of it, and
  /// what is kept of those before.
  Tensor forward_chunk(Pass& pass, const Tensor& x, AttentionPast& past);

 private:
  ops::AttentionProblem problem(const Pass& pass) const;
  ops::AttentionOperand packed(const Tensor& rows, std::int64_t first_head, const Pass& pass) const;
  ops::AttentionBias bias(const Tensor& scores, const Pass& pass) const;
  /// W r of every head: [H, 2T - 1, D].
  Tensor project(Pass& pass, const Tensor& positions) const;
  /// [H, B*T, 2T - 1], what the context hides at -inf.
  Tensor position_scores(Pass& pass, const Tensor& shifted, const Tensor& projected) const;
  /// From the gradient of the bias to the queries in d_qkv, u, v and W.
  void backward_positions(Pass& pass, Tensor d_bias, const Tensor& shifted, const Tensor& projected,
                          const Tensor& positions, const Tensor& d_qkv);
  static void position_gradient(Pass& pass, void* self, const Tensor& positions,
                                const Tensor& d_projected);

  Options options_;  // with the heads of this rank
  std::int64_t head_width_;
  double scale_;
  Linear qkv_;
  Parameter *position_, *query_bias_, *position_bias_;
  Linear output_;
  Dropout dropout_;
};

}  // namespace choir
