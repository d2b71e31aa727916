#include "src/nn/axes/ring_attention.hpp"

#include <array>
#include <optional>
#include <utility>

#include "choir/ops/attention_merge.hpp"
#include "choir/ops/copy_rows.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
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
      add(d_keys.slice(there.first_row, there.rows), d_kv_part);
    });
    if (hop) {
      hop->wait();
      std::swap(keys, next);
    }
    // The gradients follow their keys and return to their rank after the last step.
    Hop(*this, d_keys, d_next, kGradientsTag).wait();
    std::swap(d_keys, d_next);
  }
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
