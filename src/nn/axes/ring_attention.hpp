#pragma once
// The ring strategy of attention over shared positions.
#include "choir/nn/pass.hpp"
#include "choir/ops/attention.hpp"

namespace choir {

/// Attention of shared positions with keys and values that are passed around the ranks
/// (ContextMode::ring; Liu et al. 2023). In each step every rank attends to the keys of one more
/// rank, so that it never holds more than those of two. The results of the steps are merged by log
/// sum exp. In backward the gradients of keys and values are passed around with them, one step
/// further. If ranks exchange heads (ContextWay::group), rows are those of a group, and the ring is
/// one of groups.
/// Collective over the context axis. The memory comes from the arena of the pass, whose positions
/// zig-zag (ContextAxis::runs).
class RingAttention {
 public:
  /// `problem` is that of one run of positions with itself.
  RingAttention(Pass& pass, const ops::AttentionProblem& problem);

  /// Rows q | k | v -> rows of attention; log_sum_exp [2, B H n] of both runs is written.
  Tensor forward(const Tensor& qkv, const TensorView& log_sum_exp) const;
  /// The gradient of rows q | k | v, from the results of forward.
  Tensor backward(const Tensor& qkv, const Tensor& out, const Tensor& d_out,
                  const TensorView& log_sum_exp) const;

 private:
  /// Rows of the group of this rank.
  std::int64_t rows() const { return group_ * pass_->sequence().rows(); }
  Sequence::Run run(int i) const {
    const Sequence::Run own = pass_->sequence().run(i);
    return {group_ * own.first_row, group_ * own.rows, group_ * own.tokens, own.first_position};
  }
  /// The rank `steps` further in the ring, which has the same heads.
  int neighbour(int steps) const;
  /// The rows k | v of this rank.
  Tensor own_keys(const Tensor& qkv) const;
  /// f(query run, key run, problem) for each query run that sees keys of `owner`.
  template <class F>
  void each_seen(int owner, const F& f) const;
  /// A step of the ring: sends rows to the next rank while receiving those of the previous one.
  class Hop;
  /// sums += part; the types may differ.
  void add(const TensorView& sums, const TensorView& part) const;
  /// Sums converted to the compute type; returns them unchanged if they have it.
  Tensor rounded(Tensor sums) const;

  Pass* pass_;
  ops::AttentionProblem problem_;
  int group_, ranks_, rank_;  // ranks_ and rank_ are those of the ring
  std::int64_t q_width_, kv_width_;
};

}  // namespace choir
