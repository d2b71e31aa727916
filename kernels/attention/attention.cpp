// Attention: checks, choice of the implementation, counts of work, workspace, the choice between
// SIMD and AMX on the CPU, and the fp64 reference.

#include "kernels/attention/attention.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <vector>

#include "choir/core/error.hpp"
#include "choir_cuda_features.hpp"
#include "kernels/attention/attention_cudnn.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/null_device.hpp"

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
  CHOIR_CHECK(p.softcap >= 0 && (p.softcap == 0 || !p.biased), "a soft cap of {}, {} a bias",
              p.softcap, p.biased ? "with" : "without");
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

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace choir {
namespace {

/// Requests the 8 KiB of tile state, which Linux grants once per process and only on request.
bool request_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  const CpuFeatures& cpu = cpu_features();
  return cpu.amx_bf16 && cpu.avx512_bf16 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

void check_tiles(const ops::AttentionProblem& problem) {
  CHOIR_CHECK(amx_available(), "attention with AMX tiles, which this process may not use");
  CHOIR_CHECK(!problem.biased, "attention with AMX tiles does not support a bias");
  CHOIR_CHECK(!problem.windowed(), "attention with AMX tiles does not support a window");
  CHOIR_CHECK(!problem.divided(), "attention with AMX tiles does not support documents");
  CHOIR_CHECK(problem.softcap == 0, "attention with AMX tiles does not support a soft cap");
}

}  // namespace

bool amx_available() {
  static const bool available = request_tiles();
  return available;
}

AttentionKernel attention_kernel(const ops::AttentionProblem& problem) {
  // Attention of a few queries to a cache is bound by reading it, and tiles would be mostly
  // padding.
  constexpr std::int64_t kFewQueries = 8;
  const bool tiles = problem.dtype == DType::bf16 && problem.queries >= kFewQueries &&
                     !problem.biased && !problem.windowed() && !problem.divided() &&
                     problem.softcap == 0 && amx_available();
  return tiles ? AttentionKernel::amx : AttentionKernel::simd;
}

std::int64_t attention_workspace_cpu(AttentionKernel kernel, const ops::AttentionProblem& problem,
                                     bool backward, int threads) {
  if (kernel == AttentionKernel::amx)
    return backward ? attention_backward_amx_bytes(problem, threads)
                    : attention_forward_amx_bytes(problem, threads);
  if (!backward && attention_of_one_query(problem))
    return attention_one_query_simd_bytes(problem, threads);
  return backward ? attention_backward_simd_bytes(problem, threads)
                  : attention_forward_simd_bytes(problem, threads);
}

void attention_forward_cpu(AttentionKernel kernel, const ops::AttentionForward& args, int threads) {
  if (kernel == AttentionKernel::simd)
    return attention_of_one_query(args.problem) ? attention_one_query_simd(args, threads)
                                                : attention_forward_simd(args, threads);
  check_tiles(args.problem);
  attention_forward_amx(args, threads);
}

void attention_backward_cpu(AttentionKernel kernel, const ops::AttentionBackward& args,
                            int threads) {
  if (kernel == AttentionKernel::simd) return attention_backward_simd(args, threads);
  check_tiles(args.problem);
  attention_backward_amx(args, threads);
}

}  // namespace choir

namespace choir::ref {
namespace {

/// Loads and stores row (b, t, h) of an operand as doubles.
struct Row {
  const ops::AttentionProblem& p;
  std::vector<double> operator()(const ops::AttentionOperand& x, std::int64_t b, std::int64_t t,
                                 std::int64_t h) const {
    std::vector<double> row(static_cast<std::size_t>(p.head_width));
    for (std::size_t d = 0; d < row.size(); ++d)
      row[d] = load(x.data, p.dtype,
                    b * x.batch_stride + t * x.position_stride + h * p.head_width +
                        static_cast<std::int64_t>(d));
    return row;
  }
  void put(const ops::AttentionOperand& x, std::int64_t b, std::int64_t t, std::int64_t h,
           const double* row) const {
    for (std::int64_t d = 0; d < p.head_width; ++d)
      store(x.data, p.dtype, b * x.batch_stride + t * x.position_stride + h * p.head_width + d,
            row[d]);
  }
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::int64_t visible_keys(const ops::AttentionProblem& p, std::int64_t b, std::int64_t t) {
  std::int64_t n = p.keys;
  if (p.lengths) n = std::clamp<std::int64_t>(p.lengths[b], 0, n);
  return p.causal ? std::min(n, p.keys - p.queries + t + 1) : n;
}

/// The first key that the window and the document of query t leave visible.
std::int64_t first_key(const ops::AttentionProblem& p, std::int64_t b, std::int64_t t) {
  const std::int64_t at = p.keys - p.queries + t;
  const std::int64_t begin =
      p.divided() ? p.begins[b * p.positions + std::min(at, p.positions - 1)] : 0;
  return p.window == 0 ? begin : std::max(begin, at + 1 - p.window);
}

double bias_at(const ops::AttentionProblem& p, const ops::AttentionBias& bias, std::int64_t b,
               std::int64_t h, std::int64_t t, std::int64_t j) {
  if (!bias.data) return 0;
  return load(bias.data, p.dtype,
              b * bias.batch_stride + h * bias.head_stride + t * bias.query_stride + j);
}

/// Computes the probabilities of one query; returns log sum exp.
double softmax_row(const ops::AttentionProblem& p, const std::vector<double>& q,
                   const ops::AttentionOperand& k, const ops::AttentionBias& bias, std::int64_t b,
                   std::int64_t t, std::int64_t h, std::vector<double>& out) {
  const Row row{p};
  out.assign(static_cast<std::size_t>(visible_keys(p, b, t)), 0);
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::size_t j = 0; j < out.size(); ++j) {
    const auto key = static_cast<std::int64_t>(j);
    out[j] = p.scale * dot(q, row(k, b, key, h / (p.heads / p.kv_heads))) +
             bias_at(p, bias, b, h, t, key);
    if (p.softcap > 0) out[j] = p.softcap * std::tanh(out[j] / p.softcap);
    if (key < first_key(p, b, t)) out[j] = -std::numeric_limits<double>::infinity();
    most = std::max(most, out[j]);
  }
  if (std::isinf(most)) {  // no key is visible
    std::fill(out.begin(), out.end(), 0.0);
    return most;
  }
  for (double& x : out) sum += x = std::exp(x - most);
  for (double& x : out) x /= sum;
  return most + std::log(sum);
}

}  // namespace

void attention_forward(const ops::AttentionForward& args) {
  const ops::AttentionProblem& p = args.problem;
  const Row row{p};
  std::vector<double> weights;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t t = 0; t < p.queries; ++t) {
        const double lse =
            softmax_row(p, row(args.q, b, t, h), args.k, args.bias, b, t, h, weights);
        std::vector<double> sum(static_cast<std::size_t>(p.head_width), 0.0);
        for (std::size_t j = 0; j < weights.size(); ++j) {
          const auto v = row(args.v, b, static_cast<std::int64_t>(j), h / (p.heads / p.kv_heads));
          for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += weights[j] * v[d];
        }
        row.put(args.out, b, t, h, sum.data());
        if (!args.log_sum_exp.empty())
          store(args.log_sum_exp.data, args.log_sum_exp.dtype, (b * p.heads + h) * p.queries + t,
                lse);
      }
}

void attention_backward(const ops::AttentionBackward& args) {
  const ops::AttentionProblem& p = args.problem;
  const Row row{p};
  const auto width = static_cast<std::size_t>(p.head_width);
  std::vector<double> weights;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t g = 0; g < p.kv_heads; ++g) {
      std::vector<double> d_k(static_cast<std::size_t>(p.keys) * width, 0.0), d_v = d_k;
      for (std::int64_t h = g * (p.heads / p.kv_heads); h < (g + 1) * (p.heads / p.kv_heads); ++h)
        for (std::int64_t t = 0; t < p.queries; ++t) {
          const auto q = row(args.q, b, t, h), d_out = row(args.d_out, b, t, h);
          softmax_row(p, q, args.k, args.bias, b, t, h, weights);
          std::vector<double> d_weights(weights.size()), d_q(width, 0.0);
          double delta = 0;
          for (std::size_t j = 0; j < weights.size(); ++j) {
            d_weights[j] = dot(d_out, row(args.v, b, static_cast<std::int64_t>(j), g));
            delta += weights[j] * d_weights[j];
          }
          if (!args.d_bias.empty())
            for (std::int64_t j = 0; j < p.keys; ++j)
              store(args.d_bias.data, p.dtype, ((b * p.heads + h) * p.queries + t) * p.keys + j, 0);
          for (std::size_t j = 0; j < weights.size(); ++j) {
            const double d_biased = weights[j] * (d_weights[j] - delta);
            double d_score = d_biased * p.scale;
            if (p.softcap > 0) {
              const auto k = row(args.k, b, static_cast<std::int64_t>(j), g);
              const double share = std::tanh(p.scale * dot(q, k) / p.softcap);
              d_score *= 1 - share * share;
            }
            if (!args.d_bias.empty())
              store(args.d_bias.data, p.dtype,
                    ((b * p.heads + h) * p.queries + t) * p.keys + static_cast<std::int64_t>(j),
                    d_biased);
            const auto k = row(args.k, b, static_cast<std::int64_t>(j), g);
            for (std::size_t d = 0; d < width; ++d) {
              d_q[d] += d_score * k[d];
              d_k[j * width + d] += d_score * q[d];
              d_v[j * width + d] += weights[j] * d_out[d];
            }
          }
          row.put(args.d_q, b, t, h, d_q.data());
        }
      for (std::int64_t t = 0; t < p.keys; ++t) {
        row.put(args.d_k, b, t, g, d_k.data() + static_cast<std::size_t>(t) * width);
        row.put(args.d_v, b, t, g, d_v.data() + static_cast<std::size_t>(t) * width);
      }
    }
}

}  // namespace choir::ref

namespace choir::ops {
namespace {

// Merging of attention over sets of keys: checks and dispatch, the CPU twin, and the fp64
// reference.

void check(const AttentionMerge& a) {
  const std::int64_t rows = a.part.shape.rows(), width = a.part.shape.back();
  const DType sums = sum_dtype_of(a.part.dtype);
  CHOIR_CHECK(a.heads >= 1 && width % a.heads == 0 && a.queries >= 1 && rows % a.queries == 0,
              "{} rows of {} with {} heads, {} queries", rows, width, a.heads, a.queries);
  check_tensor(a.part, a.part.dtype, rows * width, "attention over a set of keys");
  check_tensor(a.out, sums, rows * width, "merged attention");
  check_tensor(a.part_log_sum_exp, sums, rows * a.heads, "log_sum_exp of a set of keys");
  check_tensor(a.log_sum_exp, sums, rows * a.heads, "merged log_sum_exp");
}

}  // namespace

void attention_merge(const Stream& stream, const AttentionMerge& args) {
  check(args);
  stream.count(args.first ? 0 : 3.0 * static_cast<double>(args.part.count()),
               as_bytes(args.part) + (args.first ? 1 : 2) * as_bytes(args.out));
  if (on_cuda(stream)) return cuda::attention_merge(stream, args);
  if (!computes(stream)) return;
  with_element(args.part.dtype, [&](auto t) { cpu::attention_merge<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::cpu {

template <class T>
void attention_merge(const ops::AttentionMerge& a) {
  using S = Sum<T>;
  constexpr S kNothing = -std::numeric_limits<S>::infinity();
  const std::int64_t width = a.part.shape.back(), head = width / a.heads;
  const auto* const part = static_cast<const T*>(a.part.data);
  const auto* const part_lse = static_cast<const S*>(a.part_log_sum_exp.data);
  auto* const out = static_cast<S*>(a.out.data);
  auto* const lse = static_cast<S*>(a.log_sum_exp.data);
  parallel_ranges(a.part.shape.rows(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      for (std::int64_t h = 0; h < a.heads; ++h) {
        const std::int64_t of_lse = (r / a.queries * a.heads + h) * a.queries + r % a.queries;
        const S before = a.first ? kNothing : lse[of_lse], more = part_lse[of_lse];
        const S most = std::max(before, more);
        const S old = before == kNothing ? S(0) : std::exp(before - most);
        const S added = more == kNothing ? S(0) : std::exp(more - most);
        const S sum = old + added, inverse = sum > 0 ? 1 / sum : S(0);
        lse[of_lse] = sum > 0 ? most + std::log(sum) : kNothing;
        const T* const from = part + r * width + h * head;
        S* const to = out + r * width + h * head;
        for (std::int64_t d = 0; d < head; ++d) {
          const S kept = old > 0 ? old * inverse * to[d] : S(0);
          to[d] = kept + added * inverse * static_cast<S>(from[d]);
        }
      }
  });
}

template void attention_merge<double>(const ops::AttentionMerge&);
template void attention_merge<float>(const ops::AttentionMerge&);
template void attention_merge<bf16>(const ops::AttentionMerge&);
template void attention_merge<f16>(const ops::AttentionMerge&);

}  // namespace choir::cpu

namespace choir::ref {

void attention_merge(const ops::AttentionMerge& a) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const std::int64_t rows = a.part.shape.rows(), head = a.part.shape.back() / a.heads;
  const auto at = [](const TensorView& x, std::int64_t i) { return load(x.data, x.dtype, i); };
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const std::int64_t of_lse = (r / a.queries * a.heads + h) * a.queries + r % a.queries;
      const double before = a.first ? kNothing : at(a.log_sum_exp, of_lse);
      const double more = at(a.part_log_sum_exp, of_lse);
      const double sum = std::exp(before) + std::exp(more);
      store(a.log_sum_exp.data, a.log_sum_exp.dtype, of_lse, std::log(sum));
      for (std::int64_t d = 0; d < head; ++d) {
        const std::int64_t i = (r * a.heads + h) * head + d;
        const double old = std::exp(before) > 0 ? std::exp(before) / sum * at(a.out, i) : 0;
        const double added = std::exp(more) > 0 ? std::exp(more) / sum * at(a.part, i) : 0;
        store(a.out.data, a.out.dtype, i, old + added);
      }
    }
}

}  // namespace choir::ref
