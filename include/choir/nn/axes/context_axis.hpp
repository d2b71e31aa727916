#pragma once
// How attention sees whole sequences whose positions ranks share (ContextAxis::share). What works
// token by token just sees fewer rows.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "choir/nn/pass.hpp"
#include "choir/ops/attention.hpp"
#include "choir/ops/copy_rows.hpp"

namespace choir {

// Only attention mixes positions. There are these ways:
//   ulysses  Whole sequences with a part of the heads (Jacobs et al. 2023). Rank c of C holds the
//            positions [c n, (c+1) n), n = ceil(T / C): one message carries q, k and v from "my
//            positions, all heads" to "all positions, my heads", one carries the output back;
//            backward is the mirror. Where the K/V heads are fewer than the ranks, or a rank's
//            query heads read other ones than its share, copies are sent, and the gradients of the
//            copies are summed where the head came from. The ranks divide the heads.
//   gather   My queries with the keys and values of all positions, which are gathered, in backward
//            again, where their gradients are then reduce-scattered. Any number of ranks; cheap
//            where K/V heads are few. Positions zig-zag (ContextAxis::runs).
//   ring     The same shares, but keys and values go round the ranks, so that none has more than
//            those of two (src/nn/axes/ring_attention.hpp). Layers with a window gather.
//   both     Groups of U neighbours, which divide the heads, exchange them, so that a group has
//            its two runs of positions with a part of the heads on each rank; keys and values of
//            these go round the C / U groups (Fang and Zhao 2024): 1 / U of the bytes of a ring.
//
// Each rank has the gradient of its own tokens: every parameter's gradient is a sum over data and
// context (Mesh::replicas()).

/// What one rank attends to.
struct ContextHeads {
  std::int64_t heads = 0;     ///< of queries: H / C
  std::int64_t kv_heads = 0;  ///< one for each run of query heads that read the same one
  std::int64_t copies = 1;    ///< how often each K/V head is sent; gradients of copies are summed
};
/// `heads` must be divisible by `ranks`, and by `kv_heads`.
ContextHeads context_heads(std::int64_t heads, std::int64_t kv_heads, int ranks);

/// The sizes, ascending, that a context axis may have with this many query heads (of a rank of the
/// tensor axis) under ContextMode::ulysses: the divisors.
std::vector<std::int64_t> legal_context_sizes(std::int64_t heads);

/// What parallel.context_mode says for a model of which each rank of the tensor axis has so many
/// query heads; 0: a model without attention across shared positions. "auto" is ulysses where the
/// ranks divide the heads, else gather; "ring-ulysses" a ring of the largest groups that divide
/// heads and ranks.
ContextWay context_way_of(std::string_view word, std::int64_t heads, std::int64_t ranks);

/// Rows q | k | v, or rows of one width per query head, between positions and heads of the ranks
/// that exchange them (ContextAxis::exchanging). Collective over the context axis; the memory comes
/// from the arena of the pass.
class HeadExchange {
 public:
  enum class Rows { qkv, queries };

  /// Heads of this rank before the exchange.
  HeadExchange(Pass& pass, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_width);

  const ContextHeads& here() const { return here_; }
  /// [B*n, (H + 2 Hkv) D] or [B*n, H D] of my positions -> [B*C*n, ...] of all positions of these
  /// ranks with here() heads; run by run where there are two.
  Tensor to_heads(Tensor positions, Rows kind) const;
  /// The reverse; K/V heads that were sent several times come back as the sum of their copies.
  Tensor to_positions(Tensor heads, Rows kind) const;

 private:
  /// Neighbouring heads of a row, cut by themselves.
  struct Section {
    std::int64_t heads, copies;
  };
  std::span<const Section> sections(Rows kind) const;
  /// Elements of a row before, and after the exchange.
  std::int64_t width_of_all(Rows kind) const;
  std::int64_t width_here(Rows kind) const;
  void copy_sections(const Tensor& rows, const Tensor& blocks, Rows kind, bool back) const;
  /// [C, B, n, w] <-> [B, C, n, w]; the same memory for one sequence.
  Tensor reordered(Tensor blocks, std::int64_t outer, std::int64_t inner) const;
  Tensor exchanged(Tensor blocks) const;
  /// The same among some of the ranks: two of them further on in each round.
  void exchange_in_group(const Tensor& blocks, const Tensor& received) const;
  /// Runs of consecutive positions: sequences, each of them twice in a zig-zag.
  std::int64_t spans() const { return pass_->sequence().batch * pass_->sequence().runs(); }

  Pass* pass_;
  std::int64_t head_width_;
  int ranks_;
  ContextHeads here_;
  Section sections_[3];
};

/// Rows k | v of all positions, for the queries of this rank (ContextMode::gather). Collective over
/// the context axis; the memory comes from the arena of the pass.
class KeyGather {
 public:
  /// Rows of so many elements.
  KeyGather(Pass& pass, std::int64_t width);

  /// The length of whole sequences, with the padding of the shares.
  std::int64_t tokens() const { return ranks_ * pass_->sequence().tokens; }
  /// Rows of this rank -> [B, tokens(), width] in the order of positions.
  Tensor gather(const ops::RowBlock& own) const;
  /// Rows of such a tensor from element `first` on, as attention reads them.
  ops::AttentionOperand operand(const TensorView& rows, std::int64_t first) const;
  /// Zeros [2, B, tokens(), width]: for the gradients from the queries of each of the two runs.
  Tensor gradients() const;
  /// Their sum over runs and ranks, for the rows of this rank.
  void scatter(Tensor gradients, const ops::RowBlock& own) const;

 private:
  /// [C, 2, B, n, width] by ranks -> [B, 2 C n, width] by positions; back from two such tensors,
  /// which are summed.
  void reorder(const Tensor& by_ranks, const Tensor& by_positions, bool back) const;

  Pass* pass_;
  std::int64_t width_, ranks_;
};

}  // namespace choir
