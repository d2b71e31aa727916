#pragma once
// Attention over whole sequences whose positions are shared by ranks (ContextAxis::share): the
// exchange of heads, the gathering of keys, and the ring. All other layers work token by token and
// simply see fewer rows.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "choir/core/run_choices.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/copy_rows.hpp"
#include "kernels/attention/attention.hpp"

namespace choir {

// Only attention mixes positions. It has these strategies:
//   ulysses  Whole sequences with a part of the heads (Jacobs et al. 2023). Rank c of C holds the
//            positions [c n, (c+1) n), n = ceil(T / C). One message carries q, k and v from "my
//            positions, all heads" to "all positions, my heads", one carries the output back;
//            backward is the mirror. If there are fewer K/V heads than ranks, or the query heads
//            of a rank read K/V heads outside its share, copies are sent, and the gradients of the
//            copies are summed at the rank of the head. The number of ranks divides the heads.
//   gather   The queries of a rank with the keys and values of all positions, which are gathered,
//            and gathered again in backward, where their gradients are then reduce-scattered. Any
//            number of ranks; cheap if there are few K/V heads. Positions zig-zag
//            (ContextAxis::runs).
//   ring     The same shares, but keys and values are passed around the ranks, so that none holds
//            more than those of two ranks (src/nn/axes/context_axis.hpp). Layers with a window
//            gather.
//   both     Groups of U neighbours, where U divides the heads, exchange heads, so that each rank
//            has the two runs of positions of its group with a part of the heads. Their keys and
//            values are passed around the C / U groups (Fang and Zhao 2024): 1 / U of the bytes of
//            a ring.
//
// Each rank has the gradient of its own tokens: every parameter's gradient is a sum over data and
// context (Mesh::replicas()).

/// The heads to which one rank attends.
struct ContextHeads {
  std::int64_t heads = 0;     ///< query heads: H / C
  std::int64_t kv_heads = 0;  ///< one for each run of query heads that read the same one
  std::int64_t copies = 1;    ///< number of times each K/V head is sent; gradients of copies are
                              ///< summed
};
/// `heads` must be divisible by `ranks`, and by `kv_heads`.
ContextHeads context_heads(std::int64_t heads, std::int64_t kv_heads, int ranks);

/// The sizes, ascending, that a context axis may have under ContextMode::ulysses with this many
/// query heads (of a rank of the tensor axis): the divisors.
std::vector<std::int64_t> legal_context_sizes(std::int64_t heads);

/// The strategy that parallel.context_mode selects for a model with `heads` query heads on each
/// rank of the tensor axis; 0 heads means a model without attention across shared positions.
/// `automatic` is ulysses if the number of ranks divides the heads, else gather; `ring_ulysses` is
/// a ring of the largest groups that divide heads and ranks.
ContextWay context_way_of(RequestedContextMode wanted, std::int64_t heads, std::int64_t ranks);

/// Exchange of rows q | k | v, or of rows of one width per query head, between positions and heads
/// of the ranks that exchange them (ContextAxis::exchanging). Collective over the context axis; the
/// memory comes from the arena of the pass.
class HeadExchange {
 public:
  enum class Rows { qkv, queries };

  /// Takes the heads of this rank before the exchange.
  HeadExchange(Pass& pass, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_width);

  const ContextHeads& here() const { return here_; }
  /// [B*n, (H + 2 Hkv) D] or [B*n, H D] of this rank's positions -> [B*C*n, ...] of all positions
  /// of the exchanging ranks with here() heads; run by run if there are two.
  Tensor to_heads(Tensor positions, Rows kind) const;
  /// The reverse. K/V heads that were sent several times return as the sum of their copies.
  Tensor to_positions(Tensor heads, Rows kind) const;

 private:
  /// Neighbouring heads of a row that are divided separately.
  struct Section {
    std::int64_t heads, copies;
  };
  std::span<const Section> sections(Rows kind) const;
  /// Elements of a row before (width_of_all) and after the exchange (width_here).
  std::int64_t width_of_all(Rows kind) const;
  std::int64_t width_here(Rows kind) const;
  void copy_sections(const Tensor& rows, const Tensor& blocks, Rows kind, bool back) const;
  /// [C, B, n, w] <-> [B, C, n, w]; the same memory for one sequence.
  Tensor reordered(Tensor blocks, std::int64_t outer, std::int64_t inner) const;
  Tensor exchanged(Tensor blocks) const;
  /// The same within a group of ranks; the partners of a rank advance in each round.
  void exchange_in_group(const Tensor& blocks, const Tensor& received) const;
  /// Runs of consecutive positions: one per sequence, two in a zig-zag.
  std::int64_t spans() const { return pass_->sequence().batch * pass_->sequence().runs(); }

  Pass* pass_;
  std::int64_t head_width_;
  int ranks_;
  ContextHeads here_;
  Section sections_[3];
};

/// Gathers rows k | v of all positions for the queries of this rank (ContextMode::gather).
/// Collective over the context axis; the memory comes from the arena of the pass.
class KeyGather {
 public:
  /// Rows have `width` elements.
  KeyGather(Pass& pass, std::int64_t width);

  /// The length of whole sequences, including the padding of the shares.
  std::int64_t tokens() const { return ranks_ * pass_->sequence().tokens; }
  /// Rows of this rank -> [B, tokens(), width] in the order of positions.
  Tensor gather(const ops::RowBlock& own) const;
  /// Rows of gather()'s result from element `first` on, as attention reads them.
  ops::AttentionOperand operand(const TensorView& rows, std::int64_t first) const;
  /// Zeros [2, B, tokens(), width]: the gradients from the queries of each of the two runs.
  Tensor gradients() const;
  /// Sums the gradients over runs and ranks into the rows of this rank.
  void scatter(Tensor gradients, const ops::RowBlock& own) const;

 private:
  /// [C, 2, B, n, width] by ranks -> [B, 2 C n, width] by positions; with `back` the reverse from
  /// two such tensors, which are summed.
  void reorder(const Tensor& by_ranks, const Tensor& by_positions, bool back) const;

  Pass* pass_;
  std::int64_t width_, ranks_;
};

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
