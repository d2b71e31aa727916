#include "choir/ops/attention.hpp"

#include <omp.h>

#include <algorithm>
#include <initializer_list>

#include "choir/core/error.hpp"
#include "choir/device/work_journal.hpp"
#include "choir_cuda_features.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/attention_cudnn.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check(const Stream& stream, const AttentionProblem& p) {
  if (p.implementation == AttentionImplementation::cudnn &&
      stream.device().plans_for() != DeviceKind::cuda)
    throw DeckError(
        fmt::format("cuDNN attention on the {} device", name_of(stream.device().plans_for())),
        "cuDNN needs device=cuda; other devices use choir's own attention");
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
  CHOIR_CHECK(p.window >= 0 && (p.window == 0 || (p.causal && !p.biased)),
              "a window of {} keys, {}causal, {} a bias", p.window, p.causal ? "" : "not ",
              p.biased ? "with" : "without");
  CHOIR_CHECK(p.positions >= 0 && (!p.divided() || (p.causal && !p.biased)),
              "documents in {} positions, {}causal, {} a bias", p.positions, p.causal ? "" : "not ",
              p.biased ? "with" : "without");
}

void check(const AttentionProblem& p, const AttentionBias& bias) {
  CHOIR_CHECK(p.biased == (bias.data != nullptr), "attention planned {} a bias, called {} one",
              p.biased ? "with" : "without", bias.data ? "with" : "without");
}

void check_documents(const Stream& stream, const AttentionProblem& p) {
  CHOIR_CHECK(!p.divided() || p.begins || !(computes(stream) || on_cuda(stream)),
              "documents in {} positions, but no begins are given", p.positions);
}

void check_gradient(const AttentionProblem& p, const TensorView& d_bias) {
  if (d_bias.empty()) return;
  CHOIR_CHECK(p.biased, "gradient of a bias requested, but attention has no bias");
  check_tensor(d_bias, p.dtype, p.batch * p.heads * p.queries * p.keys, "d_bias");
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

/// Refuses, in the user's terms, problems that our own cuda kernels do not support; called before
/// anything is planned.
void check_own_on_cuda(const AttentionProblem& p) {
  if (p.dtype == DType::f64)
    throw DeckError("attention in fp64 on the cuda device", "fp64 runs on the CPU: device=cpu");
  if (p.head_width > cuda::kWidestHead)
    throw DeckError(
        fmt::format("attention heads {} wide on the cuda device", p.head_width),
        fmt::format("its kernels support heads from 1 to {} wide: use {} times as many "
                    "heads (model.n_head), or device=cpu",
                    cuda::kWidestHead, (p.head_width + cuda::kWidestHead - 1) / cuda::kWidestHead));
}

cudnn::AttentionBias for_cudnn(const AttentionBias& bias, const TensorView& gradient = {}) {
  return {bias.data, bias.batch_stride, bias.head_stride, bias.query_stride, gradient.data};
}

/// The reason why cuDNN cannot compute this call; empty if it can.
std::string refused_by_cudnn(const Stream& stream, const AttentionProblem& p,
                             const cudnn::AttentionLayout& layout,
                             std::initializer_list<const void*> addresses) {
  // cuDNN would sum the gradient over the broadcast dimensions of the bias, but the caller needs
  // every pair.
  if (layout.bias.gradient &&
      ((p.batch > 1 && layout.bias.batch == 0) || (p.heads > 1 && layout.bias.head == 0)))
    return "cuDNN attention computes no gradient per pair of a broadcast bias";
  for (const void* address : addresses)
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0)
      return "an operand of cuDNN attention is not 16-byte aligned";
  std::string why;
  cudnn::attention_supported(stream.device(), p, layout, &why);
  return why;
}

/// True if cuDNN computes the call. Only this function chooses the implementation.
bool by_cudnn(const Stream& stream, const AttentionProblem& p, const cudnn::AttentionLayout& layout,
              std::initializer_list<const void*> addresses) {
  if (p.implementation == AttentionImplementation::own) return false;
  const std::string why = refused_by_cudnn(stream, p, layout, addresses);
  if (!why.empty() && p.implementation == AttentionImplementation::cudnn)
    throw DeckError(fmt::format("attention by cuDNN: {}", why),
                    "use the attention implementation own or auto");
  return why.empty();
}

/// A size that is sufficient for each implementation that may be chosen. Strides are not known yet,
/// so the estimate assumes strides that cuDNN supports.
std::int64_t workspace_on_cuda(const AttentionProblem& p, bool backward) {
  std::int64_t bytes = 0;
  if (p.implementation != AttentionImplementation::cudnn) {
    check_own_on_cuda(p);
    bytes = cuda::attention_workspace(p, backward);
  }
#if defined(CHOIR_HAVE_CUDNN)
  if (p.implementation != AttentionImplementation::own) {
    cudnn::AttentionLayout layout{.backward = backward, .deterministic = p.deterministic};
    layout.bias = {.present = p.biased, .gradient = p.biased, .batch = 8, .head = 8, .row = 8};
    for (auto* strides : {&layout.q, &layout.k, &layout.v, &layout.out, &layout.d_out, &layout.d_q,
                          &layout.d_k, &layout.d_v})
      *strides = {8, 8};
    if (cudnn::attention_outside_rules(p, layout).empty())
      bytes = std::max(bytes, cudnn::attention_workspace(p, layout));
  }
#endif
  return bytes;
}

/// Pairs that the causal mask and the window do not hide. Lengths and documents are in device
/// memory and are ignored.
double visible_pairs(const AttentionProblem& p) {
  const auto tq = static_cast<double>(p.queries), tk = static_cast<double>(p.keys);
  double pairs = p.causal ? tq * (tk - tq) + tq * (tq + 1) / 2 : tq * tk;
  if (p.windowed()) {
    // A query that would see n > W keys loses n - W of them. This concerns the last queries, with n
    // up to Tk.
    const double most = tk - static_cast<double>(p.window);
    const double least = std::max(0.0, most - tq);
    pairs -= (most * (most + 1) - least * (least + 1)) / 2;
  }
  return pairs * static_cast<double>(p.batch) * static_cast<double>(p.heads);
}

/// Bytes of one operand with `heads` heads and `positions` rows.
double operand_bytes(const AttentionProblem& p, std::int64_t heads, std::int64_t positions) {
  return static_cast<double>(size_of(p.dtype)) *
         static_cast<double>(p.batch * heads * positions * p.head_width);
}

/// Bytes of the bias (counted as if nothing were broadcast) or of its gradient.
double bias_bytes(const AttentionProblem& p) {
  return visible_pairs(p) * static_cast<double>(size_of(p.dtype));
}

void count_attention(const Stream& stream, const AttentionProblem& p, bool backward, double bytes) {
  const double flops =
      (backward ? 10.0 : 4.0) * static_cast<double>(p.head_width) * visible_pairs(p);
  stream.count(flops, bytes);
  if (WorkJournal* journal = journal_of(stream))
    journal->attention({.dtype = p.dtype,
                        .backward = backward,
                        .causal = p.causal,
                        .batch = p.batch,
                        .heads = p.heads,
                        .kv_heads = p.kv_heads,
                        .queries = p.queries,
                        .keys = p.keys,
                        .head_width = p.head_width,
                        .flops = flops},
                       bytes);
}

}  // namespace

std::int64_t attention_workspace(const Stream& stream, const AttentionProblem& problem,
                                 bool backward) {
  check(stream, problem);
  if (stream.device().plans_for() == DeviceKind::cuda) return workspace_on_cuda(problem, backward);
  return attention_workspace_cpu(attention_kernel(problem), problem, backward,
                                 omp_get_max_threads());
}

void attention_forward(const Stream& stream, const AttentionForward& args) {
  const AttentionProblem& p = args.problem;
  check(stream, p);
  if (!args.log_sum_exp.empty()) check(p, args.log_sum_exp);
  check(p, args.bias);
  check_documents(stream, p);
  check(stream, p, args.workspace, false);
  count_attention(stream, p, false,
                  2 * operand_bytes(p, p.heads, p.queries) +
                      2 * operand_bytes(p, p.kv_heads, p.keys) + (p.biased ? bias_bytes(p) : 0));
  if (on_cuda(stream)) {
    if (p.implementation != AttentionImplementation::cudnn &&
        cuda::attention_of_one_query(stream, args))
      return;
    CHOIR_CHECK(!p.seen, "{} queries with a number of keys in device memory", p.queries);
    const cudnn::AttentionBias bias = for_cudnn(args.bias);
    return by_cudnn(stream, p, cudnn::layout_of(args, bias),
                    {args.q.data, args.k.data, args.v.data, args.out.data, bias.data,
                     args.log_sum_exp.data, args.workspace.data})
               ? cudnn::attention_forward(stream, args, bias)
               : cuda::attention_forward(stream, args);
  }
  if (!computes(stream)) return;
  CHOIR_CHECK(!p.seen, "a number of keys in device memory, on the CPU");
  attention_forward_cpu(attention_kernel(p), args, omp_get_max_threads());
}

void attention_backward(const Stream& stream, const AttentionBackward& args) {
  const AttentionProblem& p = args.problem;
  check(stream, p);
  check(p, args.log_sum_exp);
  check(p, args.bias);
  check_gradient(p, args.d_bias);
  check_documents(stream, p);
  check(stream, p, args.workspace, true);
  count_attention(stream, p, true,
                  4 * operand_bytes(p, p.heads, p.queries) +
                      4 * operand_bytes(p, p.kv_heads, p.keys) + (p.biased ? bias_bytes(p) : 0) +
                      as_bytes(args.d_bias));
  if (on_cuda(stream)) {
    const cudnn::AttentionBias bias = for_cudnn(args.bias, args.d_bias);
    return by_cudnn(stream, p, cudnn::layout_of(args, bias),
                    {args.q.data, args.k.data, args.v.data, args.out.data, args.d_out.data,
                     args.d_q.data, args.d_k.data, args.d_v.data, bias.data, bias.gradient,
                     args.log_sum_exp.data, args.workspace.data})
               ? cudnn::attention_backward(stream, args, bias)
               : cuda::attention_backward(stream, args);
  }
  if (!computes(stream)) return;
  attention_backward_cpu(attention_kernel(p), args, omp_get_max_threads());
}

}  // namespace choir::ops
