#pragma once
// One attention problem with its tensors, run by a kernel or by the reference.
#include <omp.h>

#include <string>

#include "choir/ops/attention.hpp"
#include "kernels/attention.hpp"
#include "test/support/op_test.hpp"

namespace choir {

struct AttentionCase {
  std::int64_t batch = 2, heads = 2, kv_heads = 2, width = 32, queries = 64, keys = 64;
  bool causal = true;
  DType dtype = DType::f32;
  std::vector<std::int32_t> lengths{};
};

inline std::string name_of(const AttentionCase& c) {
  return fmt::format("{} B{} H{}/{} D{} Tq{} Tk{}{}{}", name_of(c.dtype), c.batch, c.heads,
                     c.kv_heads, c.width, c.queries, c.keys, c.causal ? " causal" : "",
                     c.lengths.empty() ? "" : " lengths");
}

/// Q, K, V inside one packed tensor when Tq = Tk, else K and V in a cache with room to spare.
class AttentionTensors {
 public:
  AttentionTensors(const AttentionCase& c, std::uint64_t seed) : c_(c) {
    packed_ = c.queries == c.keys;
    capacity_ = packed_ ? c.keys : c.keys + 3;
    const Shape q_shape{c.batch, c.queries, (c.heads + (packed_ ? 2 * c.kv_heads : 0)) * c.width};
    const Shape kv_shape{c.batch, capacity_, 2 * c.kv_heads * c.width};
    q = HostTensor::normal(c.dtype, q_shape, seed);
    d_q = HostTensor(c.dtype, q_shape);
    if (!packed_) {
      kv = HostTensor::normal(c.dtype, kv_shape, seed + 1);
      d_kv = HostTensor(c.dtype, kv_shape);
    }
    out = HostTensor(c.dtype, {c.batch, c.queries, c.heads * c.width});
    d_out = HostTensor::normal(c.dtype, out.shape(), seed + 2);
    log_sum_exp = HostTensor(sum_dtype(c.dtype), {c.batch, c.heads, c.queries});
  }
  /// The same numbers in f64, outputs poisoned.
  AttentionTensors exact() const {
    AttentionTensors t = *this;
    t.c_.dtype = DType::f64;
    for (HostTensor* x : {&t.q, &t.kv, &t.d_out, &t.out, &t.d_q, &t.d_kv, &t.log_sum_exp})
      *x = x->to(DType::f64);
    return t;
  }

  ops::AttentionProblem problem() const {
    return {c_.batch,    c_.heads,
            c_.kv_heads, c_.width,
            c_.queries,  c_.keys,
            c_.causal,   1.0 / std::sqrt(static_cast<double>(c_.width)),
            c_.dtype,    c_.lengths.empty() ? nullptr : c_.lengths.data()};
  }
  ops::AttentionForward forward() const {
    return {problem(), of_q(q), of_k(q, kv), of_v(q, kv), of_out(out), log_sum_exp, {}};
  }
  ops::AttentionBackward backward() const {
    return {problem(),   of_q(q),   of_k(q, kv),     of_v(q, kv),     of_out(out), of_out(d_out),
            log_sum_exp, of_q(d_q), of_k(d_q, d_kv), of_v(d_q, d_kv), {}};
  }

  HostTensor q, kv, out, log_sum_exp, d_out, d_q, d_kv;

 private:
  std::int64_t q_row() const { return q.shape().back(); }
  std::int64_t kv_row() const { return 2 * c_.kv_heads * c_.width; }
  static void* shifted(const HostTensor& t, std::int64_t elements) {
    return static_cast<char*>(t.data()) + elements * static_cast<std::int64_t>(size_of(t.dtype()));
  }
  ops::AttentionOperand of_q(const HostTensor& t) const {
    return {t.data(), c_.queries * q_row(), q_row()};
  }
  ops::AttentionOperand of_k(const HostTensor& pack, const HostTensor& cache) const {
    if (packed_) return {shifted(pack, c_.heads * c_.width), c_.queries * q_row(), q_row()};
    return {cache.data(), capacity_ * kv_row(), kv_row()};
  }
  ops::AttentionOperand of_v(const HostTensor& pack, const HostTensor& cache) const {
    if (packed_)
      return {shifted(pack, (c_.heads + c_.kv_heads) * c_.width), c_.queries * q_row(), q_row()};
    return {shifted(cache, c_.kv_heads * c_.width), capacity_ * kv_row(), kv_row()};
  }
  ops::AttentionOperand of_out(const HostTensor& t) const {
    return {t.data(), c_.queries * c_.heads * c_.width, c_.heads * c_.width};
  }

  AttentionCase c_;
  bool packed_;
  std::int64_t capacity_;
};

inline void run_forward(AttentionKernel kernel, const AttentionTensors& t, int threads = 2) {
  ops::AttentionForward args = t.forward();
  const HostTensor workspace(DType::u8,
                             {attention_workspace_cpu(kernel, args.problem, false, threads)});
  args.workspace = workspace;
  attention_forward_cpu(kernel, args, threads);
  EXPECT_TRUE(workspace.guard_intact() && t.out.guard_intact() && t.log_sum_exp.guard_intact());
}

inline void run_backward(AttentionKernel kernel, const AttentionTensors& t, int threads = 2) {
  ops::AttentionBackward args = t.backward();
  const HostTensor workspace(DType::u8,
                             {attention_workspace_cpu(kernel, args.problem, true, threads)});
  args.workspace = workspace;
  attention_backward_cpu(kernel, args, threads);
  EXPECT_TRUE(workspace.guard_intact() && t.d_q.guard_intact() && t.d_kv.guard_intact());
}

}  // namespace choir
