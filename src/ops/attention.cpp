#include "choir/ops/attention.hpp"

#include <omp.h>

#include "choir/core/error.hpp"
#include "kernels/attention.hpp"

namespace choir::ops {
namespace {

void check(const AttentionProblem& p) {
  CHOIR_CHECK(p.dtype == DType::f64 || p.dtype == DType::f32 || p.dtype == DType::bf16 ||
                  p.dtype == DType::f16,
              "attention of {}", name_of(p.dtype));
  CHOIR_CHECK(p.batch > 0 && p.heads > 0 && p.kv_heads > 0 && p.heads % p.kv_heads == 0,
              "attention of {} samples, {} heads, {} K/V heads", p.batch, p.heads, p.kv_heads);
  CHOIR_CHECK(p.head_width > 0 && p.head_width <= kWidestHead, "heads {} wide, at most {}",
              p.head_width, kWidestHead);
  CHOIR_CHECK(p.queries > 0 && p.keys > 0 && (!p.causal || p.keys >= p.queries),
              "{} queries over {} keys", p.queries, p.keys);
  CHOIR_CHECK(p.scale > 0, "attention scale {}", p.scale);
}

void check(const AttentionProblem& p, const TensorView& log_sum_exp) {
  const DType type = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  CHOIR_CHECK(log_sum_exp.dtype == type && log_sum_exp.count() == p.batch * p.heads * p.queries,
              "log_sum_exp {} of {} for {} x {} x {}", to_string(log_sum_exp.shape),
              name_of(log_sum_exp.dtype), p.batch, p.heads, p.queries);
}

void check(const Stream& stream, const AttentionProblem& p, const TensorView& workspace,
           bool backward) {
  const std::int64_t needed = attention_workspace(stream, p, backward);
  const std::int64_t given = workspace.empty() ? 0 : static_cast<std::int64_t>(workspace.bytes());
  CHOIR_CHECK(given >= needed, "attention workspace of {} bytes, {} needed", given, needed);
}

/// Pairs a causal mask lets through; lengths are device data and not looked at.
double visible_pairs(const AttentionProblem& p) {
  const auto tq = static_cast<double>(p.queries), tk = static_cast<double>(p.keys);
  const double pairs = p.causal ? tq * (tk - tq) + tq * (tq + 1) / 2 : tq * tk;
  return pairs * static_cast<double>(p.batch) * static_cast<double>(p.heads);
}

/// Bytes of one operand with `heads` heads and `positions` rows.
double operand_bytes(const AttentionProblem& p, std::int64_t heads, std::int64_t positions) {
  return static_cast<double>(size_of(p.dtype)) *
         static_cast<double>(p.batch * heads * positions * p.head_width);
}

bool only_counts(const Stream& stream) {
  if (stream.kind() == DeviceKind::null) return true;
  CHOIR_CHECK(stream.kind() == DeviceKind::cpu, "no attention for the {} device",
              name_of(stream.kind()));
  return false;
}

}  // namespace

std::int64_t attention_workspace(const Stream&, const AttentionProblem& problem, bool backward) {
  check(problem);
  return attention_workspace_cpu(attention_kernel(problem), problem, backward,
                                 omp_get_max_threads());
}

void attention_forward(const Stream& stream, const AttentionForward& args) {
  const AttentionProblem& p = args.problem;
  check(p);
  if (!args.log_sum_exp.empty()) check(p, args.log_sum_exp);
  check(stream, p, args.workspace, false);
  stream.count(4.0 * static_cast<double>(p.head_width) * visible_pairs(p),
               2 * operand_bytes(p, p.heads, p.queries) + 2 * operand_bytes(p, p.kv_heads, p.keys));
  if (only_counts(stream)) return;
  attention_forward_cpu(attention_kernel(p), args, omp_get_max_threads());
}

void attention_backward(const Stream& stream, const AttentionBackward& args) {
  const AttentionProblem& p = args.problem;
  check(p);
  check(p, args.log_sum_exp);
  check(stream, p, args.workspace, true);
  stream.count(10.0 * static_cast<double>(p.head_width) * visible_pairs(p),
               4 * operand_bytes(p, p.heads, p.queries) + 4 * operand_bytes(p, p.kv_heads, p.keys));
  if (only_counts(stream)) return;
  attention_backward_cpu(attention_kernel(p), args, omp_get_max_threads());
}

}  // namespace choir::ops
