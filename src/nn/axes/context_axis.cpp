#include "src/nn/axes/context_axis.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "choir/ops/copy_rows.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/copy/copy.hpp"
#include "kernels/sums/sums.hpp"

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

ContextWay context_way_of(RequestedContextMode wanted, std::int64_t heads, std::int64_t ranks) {
  using enum RequestedContextMode;
  if (heads == 0) return {};
  if (wanted == gather) return {.mode = ContextMode::gather};
  if (wanted == ring) return {.mode = ContextMode::ring};
  if (wanted == ulysses || heads % ranks == 0) return {};
  if (wanted == ring_ulysses)
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

namespace {

constexpr int kKeysTag = 1, kGradientsTag = 2;

std::byte* element(const TensorView& x, std::int64_t index) {
  return static_cast<std::byte*>(x.data) + static_cast<std::size_t>(index) * size_of(x.dtype);
}

/// Rows of a run as an operand, starting at element `first` of a row.
ops::AttentionOperand of_run(const TensorView& rows, std::int64_t first, const Sequence::Run& run) {
  const std::int64_t width = rows.shape.back();
  return {.data = element(rows, run.first_row * width + first),
          .batch_stride = run.tokens * width,
          .position_stride = width};
}

}  // namespace

class RingAttention::Hop {
 public:
  Hop(const RingAttention& ring, const Tensor& out, const Tensor& in, int tag)
      : messages_{{{.send = true,
                    .data = out.data,
                    .bytes = out.bytes(),
                    .peer = ring.neighbour(1),
                    .tag = tag},
                   {.data = in.data, .bytes = in.bytes(), .peer = ring.neighbour(-1), .tag = tag}}},
        request_(&ring.pass_->context().communicator->start_exchange(messages_)) {}
  Hop(const Hop&) = delete;
  Hop& operator=(const Hop&) = delete;
  void wait() { request_->wait(); }

 private:
  std::array<Message, 2> messages_;
  ExchangeRequest* request_;
};

RingAttention::RingAttention(Pass& pass, const ops::AttentionProblem& problem)
    : pass_(&pass),
      problem_(problem),
      group_(pass.context().way.group),
      ranks_(pass.context().size() / group_),
      rank_(pass.context().rank() / group_),
      q_width_(problem.heads * problem.head_width),
      kv_width_(2 * problem.kv_heads * problem.head_width) {
  CHOIR_CHECK(pass.sequence().runs() == 2 && problem.window == 0,
              "a ring for positions in one run, or with a window of {}", problem.window);
}

int RingAttention::neighbour(int steps) const {
  const int all = ranks_ * group_;
  return (pass_->context().rank() + all + steps * group_) % all;
}

Tensor RingAttention::own_keys(const Tensor& qkv) const {
  Tensor keys = pass_->allocate({rows(), kv_width_}, "keys of a rank");
  ops::copy_rows(pass_->stream(), keys.dtype, keys.shape.rows(), kv_width_,
                 {element(qkv, q_width_), qkv.shape.back()}, {keys.data, kv_width_});
  return keys;
}

template <class F>
void RingAttention::each_seen(int owner, const F& f) const {
  const auto share = [&](int rank, int run) { return run == 0 ? rank : 2 * ranks_ - 1 - rank; };
  for (const int queries : {0, 1})
    for (const int keys : {0, 1}) {
      const int mine = share(rank_, queries), theirs = share(owner, keys);
      if (theirs > mine) continue;
      ops::AttentionProblem problem = problem_;
      problem.causal = theirs == mine;
      f(run(queries), queries, run(keys), keys, problem);
    }
}

void RingAttention::add(const TensorView& sums, const TensorView& part) const {
  if (part.dtype == sums.dtype) return ops::add(pass_->stream(), sums, part, sums);
  const Tensor same = pass_->allocate_statistic(part.shape, "terms of a ring");
  ops::cast(pass_->stream(), part, same);
  ops::add(pass_->stream(), sums, same, sums);
}

Tensor RingAttention::rounded(Tensor sums) const {
  if (sums.dtype == problem_.dtype) return sums;
  Tensor rows = pass_->allocate(sums.shape, "attention of a ring");
  ops::cast(pass_->stream(), sums, rows);
  return rows;
}

Tensor RingAttention::forward(const Tensor& qkv, const TensorView& log_sum_exp) const {
  const Sequence::Run first = run(0);
  Tensor keys = own_keys(qkv);
  Tensor next = pass_->allocate(keys.shape, "keys of a rank");
  Tensor sums = pass_->allocate_statistic({rows(), q_width_}, "attention of a ring");
  {
    const Tensor part = pass_->allocate({first.rows, q_width_}, "attention to a rank");
    const Tensor lse = pass_->allocate_statistic({first.rows, problem_.heads}, "attention lse");
    for (int step = 0; step < ranks_; ++step) {
      const int owner = (rank_ - step + ranks_) % ranks_;
      std::optional<Hop> hop;
      if (step + 1 < ranks_) hop.emplace(*this, keys, next, kKeysTag);
      each_seen(owner, [&](const Sequence::Run& queries, int query_run, const Sequence::Run& there,
                           int key_run, const ops::AttentionProblem& problem) {
        const Tensor workspace = pass_->scratch(
            ops::attention_workspace(pass_->stream(), problem, false), "attention workspace");
        ops::attention_forward(pass_->stream(), {.problem = problem,
                                                 .q = of_run(qkv, 0, queries),
                                                 .k = of_run(keys, 0, there),
                                                 .v = of_run(keys, kv_width_ / 2, there),
                                                 .out = of_run(part, 0, first),
                                                 .log_sum_exp = lse,
                                                 .workspace = workspace});
        ops::attention_merge(pass_->stream(), {.heads = problem.heads,
                                               .queries = queries.tokens,
                                               .part = part,
                                               .part_log_sum_exp = lse,
                                               .out = sums.slice(queries.first_row, queries.rows),
                                               .log_sum_exp = log_sum_exp.slice(query_run, 1),
                                               .first = step == 0 && key_run == 0});
      });
      if (!hop) break;
      hop->wait();
      std::swap(keys, next);
    }
  }
  keys.reset(), next.reset();
  return rounded(std::move(sums));
}

Tensor RingAttention::backward(const Tensor& qkv, const Tensor& out, const Tensor& d_out,
                               const TensorView& log_sum_exp) const {
  const Sequence::Run first = run(0);
  Tensor keys = own_keys(qkv);
  Tensor next = pass_->allocate(keys.shape, "keys of a rank");
  Tensor d_q = pass_->allocate_statistic({rows(), q_width_}, "gradient of queries");
  Tensor d_keys = pass_->allocate_statistic(keys.shape, "gradient of keys");
  Tensor d_next = pass_->allocate_statistic(keys.shape, "gradient of keys");
  ops::zero(pass_->stream(), d_q);
  ops::zero(pass_->stream(), d_keys);
  // The gradients follow their keys and return to their rank after the last step. They arrive while
  // the next products are computed, which are only added to them.
  std::optional<Hop> gradients;
  const auto arrive = [&] {
    if (!gradients) return;
    gradients->wait();
    gradients.reset();
    std::swap(d_keys, d_next);
  };
  for (int step = 0; step < ranks_; ++step) {
    const int owner = (rank_ - step + ranks_) % ranks_;
    std::optional<Hop> hop;
    if (step + 1 < ranks_) hop.emplace(*this, keys, next, kKeysTag);
    each_seen(owner, [&](const Sequence::Run& queries, int query_run, const Sequence::Run& there,
                         int, const ops::AttentionProblem& problem) {
      const Tensor d_q_part = pass_->allocate({first.rows, q_width_}, "gradient of queries");
      const Tensor d_kv_part = pass_->allocate({first.rows, kv_width_}, "gradient of keys");
      {
        const Tensor workspace = pass_->scratch(
            ops::attention_workspace(pass_->stream(), problem, true), "attention workspace");
        ops::attention_backward(pass_->stream(), {.problem = problem,
                                                  .q = of_run(qkv, 0, queries),
                                                  .k = of_run(keys, 0, there),
                                                  .v = of_run(keys, kv_width_ / 2, there),
                                                  .out = of_run(out, 0, queries),
                                                  .d_out = of_run(d_out, 0, queries),
                                                  .log_sum_exp = log_sum_exp.slice(query_run, 1),
                                                  .d_q = of_run(d_q_part, 0, first),
                                                  .d_k = of_run(d_kv_part, 0, first),
                                                  .d_v = of_run(d_kv_part, kv_width_ / 2, first),
                                                  .workspace = workspace});
      }
      add(d_q.slice(queries.first_row, queries.rows), d_q_part);
      arrive();
      add(d_keys.slice(there.first_row, there.rows), d_kv_part);
    });
    if (hop) {
      hop->wait();
      std::swap(keys, next);
    }
    gradients.emplace(*this, d_keys, d_next, kGradientsTag);
  }
  arrive();
  keys.reset(), next.reset(), d_next.reset();
  Tensor d_qkv = pass_->allocate(qkv.shape, "qkv gradient");
  const std::int64_t row = d_qkv.shape.back();
  const Tensor of_queries = rounded(std::move(d_q)), of_keys = rounded(std::move(d_keys));
  ops::copy_rows(pass_->stream(), d_qkv.dtype, rows(), q_width_, {of_queries.data, q_width_},
                 {d_qkv.data, row});
  ops::copy_rows(pass_->stream(), d_qkv.dtype, rows(), kv_width_, {of_keys.data, kv_width_},
                 {element(d_qkv, q_width_), row});
  return d_qkv;
}

}  // namespace choir
