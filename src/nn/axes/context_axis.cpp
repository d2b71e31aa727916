#include "choir/nn/axes/context_axis.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "choir/ops/copy_blocks.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {

ContextHeads context_heads(std::int64_t heads, std::int64_t kv_heads, int ranks) {
  CHOIR_CHECK(kv_heads > 0 && heads % kv_heads == 0 && heads % ranks == 0,
              "{} heads, {} of keys and values, for {} ranks of the context axis", heads, kv_heads,
              ranks);
  // Runs of `run` query heads lie inside the share of one rank and inside one group.
  const std::int64_t group = heads / kv_heads, share = heads / ranks;
  const std::int64_t run = std::gcd(group, share);
  return {.heads = share, .kv_heads = share / run, .copies = group / run};
}

std::vector<std::int64_t> legal_context_sizes(std::int64_t heads) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 1; n <= heads; ++n)
    if (heads % n == 0) sizes.push_back(n);
  return sizes;
}

ContextWay context_way_of(std::string_view word, std::int64_t heads, std::int64_t ranks) {
  if (heads == 0) return {};
  if (word == "gather") return {.mode = ContextMode::gather};
  if (word == "ring") return {.mode = ContextMode::ring};
  if (word == "ulysses" || heads % ranks == 0) return {};
  if (word == "ring-ulysses")
    return {.mode = ContextMode::ring, .group = static_cast<int>(std::gcd(heads, ranks))};
  return {.mode = ContextMode::gather};
}

HeadExchange::HeadExchange(Pass& pass, std::int64_t heads, std::int64_t kv_heads,
                           std::int64_t head_width)
    : pass_(&pass),
      head_width_(head_width),
      ranks_(pass.context().exchanging()),
      here_(context_heads(heads, kv_heads, ranks_)),
      sections_{{heads, 1}, {kv_heads, here_.copies}, {kv_heads, here_.copies}} {}

std::span<const HeadExchange::Section> HeadExchange::sections(Rows kind) const {
  return {sections_, kind == Rows::qkv ? 3u : 1u};
}

std::int64_t HeadExchange::width_of_all(Rows kind) const {
  std::int64_t heads = 0;
  for (const Section& section : sections(kind)) heads += section.heads;
  return heads * head_width_;
}

std::int64_t HeadExchange::width_here(Rows kind) const {
  return (here_.heads + (kind == Rows::qkv ? 2 * here_.kv_heads : 0)) * head_width_;
}

// Copies between rows of all heads and one block [B*n, w] per rank.
void HeadExchange::copy_sections(const Tensor& rows, const Tensor& blocks, Rows kind,
                                 bool back) const {
  const std::int64_t ranks = ranks_, width = width_here(kind);
  const std::int64_t count = pass_->sequence().rows();
  const auto at = [](const Tensor& x, std::int64_t element) -> void* {
    return static_cast<std::byte*>(x.data) + static_cast<std::size_t>(element) * size_of(x.dtype);
  };
  std::int64_t first = 0, first_here = 0;
  for (const Section& section : sections(kind)) {
    const std::int64_t share = section.heads * section.copies / ranks;
    // Without copies the share of a rank is one block, otherwise each head is one.
    const std::int64_t unit = section.copies == 1 ? share : 1;
    const std::int64_t block = unit * head_width_, per_rank = share / unit;
    const ops::BlockPlace there{.data = at(blocks, first_here),
                                .row_stride = width,
                                .stride = block,
                                .group = per_rank,
                                .group_stride = count * width};
    ops::BlockPlace here{.data = at(rows, first),
                         .row_stride = rows.shape.back(),
                         .group = back ? 1 : section.copies,
                         .group_stride = block};
    ops::copy_blocks(pass_->stream(), {.dtype = rows.dtype,
                                       .rows = count,
                                       .blocks = ranks * per_rank / (back ? section.copies : 1),
                                       .width = block,
                                       .terms = back ? section.copies : 1,
                                       .from = back ? there : here,
                                       .to = back ? here : there});
    first += section.heads * head_width_;
    first_here += share * head_width_;
  }
}

Tensor HeadExchange::reordered(Tensor blocks, std::int64_t outer, std::int64_t inner) const {
  if ((outer == 1 || inner == 1) && !pass_->mixes_shapes()) return blocks;
  const Tensor to = pass_->allocate(blocks.shape, "sequences of heads");
  const std::int64_t block = blocks.count() / (outer * inner);
  ops::copy_blocks(
      pass_->stream(),
      {.dtype = blocks.dtype,
       .rows = inner,
       .blocks = outer,
       .width = block,
       .from = {.data = blocks.data, .row_stride = block, .group_stride = inner * block},
       .to = {.data = to.data, .row_stride = outer * block, .group_stride = block}});
  return to;
}

Tensor HeadExchange::exchanged(Tensor blocks) const {
  Tensor received = pass_->allocate(blocks.shape, "exchanged heads");
  if (ranks_ < pass_->context().size())
    exchange_in_group(blocks, received);
  else
    pass_->context().communicator->all_to_all(blocks.data, received.data,
                                              blocks.bytes() / static_cast<std::size_t>(ranks_));
  return received;
}

void HeadExchange::exchange_in_group(const Tensor& blocks, const Tensor& received) const {
  constexpr int kTag = 3;  // differs from the tags of a ring
  const int own = pass_->context().rank() % ranks_, first = pass_->context().rank() - own;
  const std::int64_t rows = blocks.shape.rows() / ranks_;
  const auto block = [&](const Tensor& of, int member) { return of.slice(member * rows, rows); };
  ops::copy(pass_->stream(), block(blocks, own), block(received, own));
  for (int next = 1; next < ranks_; next += 2) {
    std::array<Message, Communicator::kMaxPeers> messages;
    std::size_t count = 0;
    for (int distance = next; distance < std::min(next + 2, ranks_); ++distance)
      for (const bool send : {true, false}) {
        const int member = (own + (send ? distance : ranks_ - distance)) % ranks_;
        const TensorView data = block(send ? blocks : received, member);
        messages[count++] = {.send = send,
                             .data = data.data,
                             .bytes = data.bytes(),
                             .peer = first + member,
                             .tag = kTag};
      }
    pass_->context().communicator->start_exchange({messages.data(), count}).wait();
  }
}

Tensor HeadExchange::to_heads(Tensor positions, Rows kind) const {
  CHOIR_CHECK(positions.shape.rows() == pass_->sequence().rows() &&
                  positions.shape.back() == width_of_all(kind),
              "{} for {} rows of {}", to_string(positions.shape), pass_->sequence().rows(),
              width_of_all(kind));
  Tensor blocks =
      pass_->allocate({ranks_ * pass_->sequence().rows(), width_here(kind)}, "heads to exchange");
  copy_sections(positions, blocks, kind, false);
  positions.reset();
  return reordered(exchanged(std::move(blocks)), ranks_, spans());
}

Tensor HeadExchange::to_positions(Tensor heads, Rows kind) const {
  const std::int64_t rows = ranks_ * pass_->sequence().rows();
  CHOIR_CHECK(heads.shape.rows() == rows && heads.shape.back() == width_here(kind),
              "{} for {} rows of {}", to_string(heads.shape), rows, width_here(kind));
  const Tensor blocks = exchanged(reordered(std::move(heads), spans(), ranks_));
  Tensor positions = pass_->allocate({pass_->sequence().rows(), width_of_all(kind)}, "positions");
  copy_sections(positions, blocks, kind, true);
  return positions;
}

KeyGather::KeyGather(Pass& pass, std::int64_t width)
    : pass_(&pass), width_(width), ranks_(pass.context().size()) {
  CHOIR_CHECK(pass.sequence().runs() == 2, "keys gathered for positions in one run");
}

void KeyGather::reorder(const Tensor& by_ranks, const Tensor& by_positions, bool back) const {
  const Sequence& sequence = pass_->sequence();
  const std::int64_t block = sequence.run(0).tokens * width_, batch = sequence.batch;
  const std::int64_t sequence_of_all = 2 * ranks_ * block, terms = back ? 2 : 1;
  const std::int64_t group = pass_->context().way.group;
  const auto at = [](const Tensor& x, std::int64_t element) -> void* {
    return static_cast<std::byte*>(x.data) + static_cast<std::size_t>(element) * size_of(x.dtype);
  };
  // First runs are in the order of ranks. Second runs are in the order of ranks within a group, but
  // groups are in reverse order.
  const auto copy = [&](std::int64_t run, std::int64_t rank, std::int64_t first, std::int64_t rows,
                        std::int64_t next_rank, std::int64_t next) {
    const ops::BlockPlace ranks{.data = at(by_ranks, (2 * rank + run) * batch * block),
                                .row_stride = 2 * next_rank * batch * block,
                                .group_stride = block};
    const ops::BlockPlace positions{.data = at(by_positions, first * block),
                                    .row_stride = next * block,
                                    .stride = batch * sequence_of_all,
                                    .group = terms,
                                    .group_stride = sequence_of_all};
    ops::copy_blocks(pass_->stream(), {.dtype = by_ranks.dtype,
                                       .rows = rows,
                                       .blocks = batch,
                                       .width = block,
                                       .terms = terms,
                                       .from = back ? positions : ranks,
                                       .to = back ? ranks : positions});
  };
  copy(0, 0, 0, ranks_, 1, 1);
  for (std::int64_t member = 0; member < group; ++member)
    copy(1, member, 2 * ranks_ - group + member, ranks_ / group, group, -group);
}

Tensor KeyGather::gather(const ops::RowBlock& own) const {
  const Sequence& sequence = pass_->sequence();
  const std::int64_t rows = sequence.rows();
  Communicator& ranks = *pass_->context().communicator;
  Tensor gathered = pass_->allocate({ranks_ * rows, width_}, "gathered keys");
  const TensorView mine = gathered.slice(ranks.rank() * rows, rows);
  ops::copy_rows(pass_->stream(), gathered.dtype, rows, width_, own, {mine.data, width_});
  ranks.all_gather(gathered.data, static_cast<std::size_t>(mine.count()), gathered.dtype);
  Tensor keys = pass_->allocate({sequence.batch, tokens(), width_}, "keys of all positions");
  reorder(gathered, keys, false);
  return keys;
}

ops::AttentionOperand KeyGather::operand(const TensorView& rows, std::int64_t first) const {
  return {.data = static_cast<std::byte*>(rows.data) +
                  static_cast<std::size_t>(first) * size_of(rows.dtype),
          .batch_stride = tokens() * width_,
          .position_stride = width_};
}

Tensor KeyGather::gradients() const {
  Tensor parts =
      pass_->allocate({2, pass_->sequence().batch, tokens(), width_}, "gradients of all keys");
  ops::zero(pass_->stream(), parts);
  return parts;
}

void KeyGather::scatter(Tensor gradients, const ops::RowBlock& own) const {
  const std::int64_t rows = pass_->sequence().rows();
  Communicator& ranks = *pass_->context().communicator;
  const Tensor sums = pass_->allocate({ranks_ * rows, width_}, "gradients of keys");
  reorder(sums, gradients, true);
  gradients.reset();
  const TensorView mine = sums.slice(ranks.rank() * rows, rows);
  ranks.reduce_scatter(sums.data, static_cast<std::size_t>(mine.count()), sums.dtype, ReduceOp::sum,
                       pass_->tensor().order);
  ops::copy_rows(pass_->stream(), sums.dtype, rows, width_, {mine.data, width_}, own);
}

}  // namespace choir
