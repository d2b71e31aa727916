#pragma once
// Attention of shared positions with keys and values that go round the ranks (ContextMode::ring;
// Liu et al. 2023): step by step every rank attends to those of one rank more, so that it never
// holds more than those of two. What the steps give is merged by log sum exp; in backward gradients
// of keys and values go round with them, once more than they. Where ranks exchange heads
// (ContextWay::group) rows are those of a group, and the ring is one of groups.
#include "choir/nn/pass.hpp"
#include "choir/ops/attention.hpp"

namespace choir {

/// Collective over the context axis; the memory comes from the arena of the pass, whose positions
/// zig-zag (ContextAxis::runs).
class RingAttention {
 public:
  /// `problem`: of one run of positions with itself.
  RingAttention(Pass& pass, const ops::AttentionProblem& problem);

  /// Rows q | k | v -> rows of attention; log_sum_exp [2, B H n] of both runs is written.
  Tensor forward(const Tensor& qkv, const TensorView& log_sum_exp) const;
  /// From what forward returned and wrote: the gradient of its rows q | k | v.
  Tensor backward(const Tensor& qkv, const Tensor& out, const Tensor& d_out,
                  const TensorView& log_sum_exp) const;

 private:
  /// Rows of the group of this rank.
  std::int64_t rows() const { return group_ * pass_->sequence().rows(); }
  Sequence::Run run(int i) const {
    const Sequence::Run own = pass_->sequence().run(i);
    return {group_ * own.first_row, group_ * own.rows, group_ * own.tokens, own.first_position};
  }
  /// The rank so many steps on, which has the same heads.
  int neighbour(int steps) const;
  /// The rows k | v of this rank.
  Tensor own_keys(const Tensor& qkv) const;
  /// f(query run, key run, problem) for those that the keys of `owner` are seen by.
  template <class F>
  void each_seen(int owner, const F& f) const;
  /// Begins to hand rows on to the next rank, while those of the rank before come.
  class Hop;
  /// sums += part, of another type or the same.
  void add(const TensorView& sums, const TensorView& part) const;
  /// Sums as rows of the compute type: themselves if they are.
  Tensor rounded(Tensor sums) const;

  Pass* pass_;
  ops::AttentionProblem problem_;
  int group_, ranks_, rank_;  // the latter of the ring
  std::int64_t q_width_, kv_width_;
};

}  // namespace choir
