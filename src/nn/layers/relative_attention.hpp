#pragma once
// Multi-head self-attention with relative positions (Dai et al. 2019; speech: Gulati et al. 2020):
// softmax(scale ((q_i + u) k_j + (q_i + v) (W r_{i-j}))) over the valid keys of a sequence that the
// context includes. The position term is a bias of ops::attention that is read with a shift, so
// that matrix products write it once.
#include <string>

#include "choir/nn/layers/dropout.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/layers/norms.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/relative_attention/relative_attention.hpp"

namespace choir {

/// Over the tensor axis heads are divided, as in SelfAttention: rows of qkv and of W, columns of
/// the output, and u and v.
class RelativeAttention {
 public:
  struct Options {
    std::int64_t width = 0;  ///< C
    std::int64_t heads = 0;  ///< H, divides width
    ops::AttentionContext context{};
    double dropout = 0;            ///< on the output; attention weights are never dropped
    bool dropout_in_norm = false;  ///< as in FeedForward::Options
    double init_std = 0.02;
    /// All gradients in one kernel, if ops::relative_backward_is_one().
    bool one_kernel = false;
  };
  /// Registers `name`.qkv (rows q | k | v), `name`.position.weight [C, C], `name`.query_bias (u)
  /// and `name`.position_bias (v), [H, C / H] and zero, and `name`.output in the current bucket.
  RelativeAttention(ParameterSet& parameters, const std::string& name, const Options& options);

  /// Rows of `positions` for T frames: 2T - 1 distances, and rows of zeros that make rows of scores
  /// whole packs of 16 bytes, with which products on a GPU are several times faster.
  static constexpr std::int64_t position_rows(std::int64_t tokens) {
    return round_up(2 * tokens - 1, 8);
  }
  /// x [B*T, C] -> [B*T, C]. `positions` [position_rows(T), C], or 2T - 1 rows, are from
  /// ops::relative_positions. `source`, the same in both calls, is the norm that produced x and
  /// recomputes it for backward; then neither x nor the position term is kept. With streams, x is
  /// the next chunk, whose frames see the whole chunk and the kept frames before it; `positions` is
  /// not read.
  Tensor forward(Pass& pass, const Tensor& x, const Tensor& positions,
                 ResidualNorm* source = nullptr);
  Tensor backward(Pass& pass, const BranchGradient& d_y, ResidualNorm* source = nullptr);
  /// The last steps, for the norm behind the branch.
  BranchEnd end() { return {&dropout_, &output_}; }

  /// Creates the tracks of keys and values, and W r of all distances, for streams in chunks of at
  /// most `chunk` frames that see `left` frames (whole chunks) before them. `positions` [>= left +
  /// 2 chunk - 1, C] begin at the distance left + chunk - 1 and descend, as ops::relative_positions
  /// gives them for left + chunk frames. Reads the values of parameters.
  void remember(Pass& pass, StreamState& state, std::int64_t left, std::int64_t chunk,
                const Tensor& positions) const;

 private:
  ops::AttentionProblem problem(const Pass& pass) const;
  ops::AttentionOperand packed(const Tensor& rows, std::int64_t first_head, const Pass& pass) const;
  ops::AttentionBias bias(const Tensor& scores, const Pass& pass) const;
  /// Inputs of attention besides the queries of this pass: keys and values of this pass or of the
  /// streams until now, and W r of the distances between them, which begins at `first` in
  /// `projected`.
  struct Past {
    std::int64_t keys = 0;
    ops::AttentionOperand k, v;
    Tensor projected;
    std::int64_t first = 0;
  };
  Past read(Pass& pass, const Tensor& qkv, const Tensor& positions) const;
  /// W r of every head: [H, 2T - 1, D].
  Tensor project(Pass& pass, const Tensor& positions) const;
  /// Rows of all heads -> [H, D, columns].
  TensorView by_heads(const TensorView& rows) const;
  /// [H, B*T, keys + T - 1], with -inf where the context hides a key. A chunk of a stream sees
  /// everything.
  Tensor position_scores(Pass& pass, const Tensor& shifted, const Tensor& projected,
                         std::int64_t keys, std::int64_t first = 0) const;
  /// Propagates the gradient of the scores of positions to the queries in d_qkv, u, v and W.
  void backward_positions(Pass& pass, Tensor d_scores, const Tensor& shifted,
                          const Tensor& projected, const Tensor& positions, const Tensor& d_qkv);
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
