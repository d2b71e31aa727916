#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/simd/attention_simd.hpp"

namespace choir {
namespace {

using namespace simd;

constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;
/// Below every score, but finite: -inf - kNothing is -inf and not NaN.
constexpr double kNothing = -1e30;

/// Memory that one thread needs for a block of queries; vectors run along queries.
template <class T>
struct Scratch {
  T* q;       // [D, block], times scale * log2 e
  T* scores;  // [kKeyBlock, block]: scores, then probabilities
  T* out;     // [D, block]
  T* most;    // [block]
  T* sum;     // [block]
  T* k;       // [kKeyBlock, D], only if K must be converted
  T* v;
  T* bias;  // [kKeyBlock, block], only if there is a bias

  Scratch(Carver& carver, std::int64_t width, bool converts, bool biased)
      : q(carver.take<T>(width * kQueryBlock<T>)),
        scores(carver.take<T>(kKeyBlock * kQueryBlock<T>)),
        out(carver.take<T>(width * kQueryBlock<T>)),
        most(carver.take<T>(kQueryBlock<T>)),
        sum(carver.take<T>(kQueryBlock<T>)),
        k(carver.take<T>(converts ? kKeyBlock * width : 0)),
        v(carver.take<T>(converts ? kKeyBlock * width : 0)),
        bias(carver.take<T>(biased ? kKeyBlock * kQueryBlock<T> : 0)) {}
};

template <class T, class S>
std::int64_t bytes_per_thread(const ops::AttentionProblem& problem) {
  Carver carver(nullptr);
  Scratch<T>(carver, problem.head_width, !std::is_same_v<T, S>, problem.biased);
  return carver.used();
}

/// Rows of K or V as T: in place, or a converted copy.
template <class T, class S>
const T* as_computed(const S* rows, std::int64_t row, std::int64_t count, std::int64_t width,
                     T* copy) {
  if constexpr (std::is_same_v<T, S>) {
    return rows;
  } else {
    copy_rows<T>(copy, width, rows, row, count, width, T(1));
    return copy;
  }
}

/// Turns scores into probabilities relative to the new maximum, and updates sum and out.
template <class T>
void online_softmax(const Scratch<T>& s, std::int64_t keys, std::int64_t first,
                    std::int64_t vectors, std::int64_t width) {
  for (std::int64_t v = first; v < vectors; ++v) {
    const std::int64_t column = v * kLanes<T>;
    const Vec<T> old = load(s.most + column);
    Vec<T> most = old;
    for (std::int64_t r = 0; r < keys; ++r) {
      const Vec<T> x = load(s.scores + r * kQueryBlock<T> + column);
      most = x > most ? x : most;
    }
    const Vec<T> shrink = simd::exp2<T>(old - most);
    Vec<T> sum = load(s.sum + column) * shrink;
    for (std::int64_t r = 0; r < keys; ++r) {
      T* at = s.scores + r * kQueryBlock<T> + column;
      const Vec<T> p = simd::exp2<T>(load(at) - most);
      sum += p;
      store(at, p);
    }
    store(s.most + column, most);
    store(s.sum + column, sum);
    for (std::int64_t d = 0; d < width; ++d) {
      T* at = s.out + d * kQueryBlock<T> + column;
      store(at, load(at) * shrink);
    }
  }
}

template <class T, class S>
class Forward {
 public:
  Forward(const ops::AttentionForward& args, std::int64_t b, std::int64_t h, std::int64_t first,
          const Scratch<T>& scratch)
      : a_(args), p_(args.problem), s_(scratch), b_(b), h_(h), q0_(first) {
    rows_ = std::min<std::int64_t>(kQueryBlock<T>, p_.queries - q0_);
    vectors_ = (rows_ + kLanes<T> - 1) / kLanes<T>;
    offset_ = p_.keys - p_.queries;
  }

  void run() {
    const S* q = row_of<S>(a_.q, p_, b_, q0_, h_);
    transpose<T, true>(s_.q, kQueryBlock<T>, q, a_.q.position_stride, rows_, p_.head_width,
                       static_cast<T>(p_.scale * kLog2E));
    std::fill_n(s_.most, kQueryBlock<T>, T(kNothing));
    std::fill_n(s_.sum, kQueryBlock<T>, T(0));
    std::fill_n(s_.out, p_.head_width * kQueryBlock<T>, T(0));
    std::int64_t keys = keys_of(p_, b_);
    if (p_.causal) keys = std::min(keys, q0_ + rows_ + offset_);
    for (std::int64_t k0 = first_key(p_, b_, q0_); k0 < keys; k0 += kKeyBlock)
      add_keys(k0, std::min<std::int64_t>(kKeyBlock, keys - k0));
    finish();
  }

 private:
  void add_keys(std::int64_t k0, std::int64_t count) {
    const std::int64_t width = p_.head_width, kv_head = h_ / (p_.heads / p_.kv_heads);
    // Query q0 + i sees key k0 + r if i >= r + lead.
    const std::int64_t lead = k0 - offset_ - q0_;
    const std::int64_t first = p_.causal && lead > 0 ? lead / kLanes<T> : 0;
    const std::int64_t skip = first * kLanes<T>;
    constexpr bool kSame = std::is_same_v<T, S>;
    const T* k = as_computed<T>(row_of<S>(a_.k, p_, b_, k0, kv_head), a_.k.position_stride, count,
                                width, s_.k);
    product<T>(count, vectors_ - first, width, k, kSame ? a_.k.position_stride : width, 1,
               s_.q + skip, kQueryBlock<T>, s_.scores + skip, kQueryBlock<T>, false);
    if (p_.biased)
      add_bias<T>(s_.scores + skip, s_.bias, kQueryBlock<T>,
                  bias_of<S>(a_.bias, b_, h_, q0_ + skip, k0), a_.bias.query_stride, rows_ - skip,
                  count, static_cast<T>(kLog2E));
    SoftCap<T>(p_).apply(s_.scores + skip, kQueryBlock<T>, count, vectors_ - first);
    if (p_.causal && lead + count > 1)
      mask_causal<T>(s_.scores + skip, kQueryBlock<T>, count, vectors_ - first, lead - skip,
                     -std::numeric_limits<T>::infinity());
    if (p_.windowed())
      mask_window<T>(s_.scores + skip, kQueryBlock<T>, count, vectors_ - first,
                     lead - skip + p_.window - 1, -std::numeric_limits<T>::infinity());
    mask_documents<T>(s_.scores + skip, kQueryBlock<T>, count, p_, b_, q0_ + skip, rows_ - skip, k0,
                      -std::numeric_limits<T>::infinity());
    online_softmax(s_, count, first, vectors_, width);
    const T* v = as_computed<T>(row_of<S>(a_.v, p_, b_, k0, kv_head), a_.v.position_stride, count,
                                width, s_.v);
    product<T>(width, vectors_ - first, count, v, 1, kSame ? a_.v.position_stride : width,
               s_.scores + skip, kQueryBlock<T>, s_.out + skip, kQueryBlock<T>, true);
  }

  void finish() {
    for (std::int64_t v = 0; v < vectors_; ++v) {
      const Vec<T> sum = load(s_.sum + v * kLanes<T>);
      const Vec<T> inverse = sum > T(0) ? T(1) / sum : Vec<T>{};
      for (std::int64_t d = 0; d < p_.head_width; ++d) {
        T* at = s_.out + d * kQueryBlock<T> + v * kLanes<T>;
        store(at, load(at) * inverse);
      }
    }
    transpose<T, false>(row_of<S>(a_.out, p_, b_, q0_, h_), a_.out.position_stride, s_.out,
                        kQueryBlock<T>, p_.head_width, rows_, T(1));
    if (a_.log_sum_exp.empty()) return;
    T* lse = static_cast<T*>(a_.log_sum_exp.data) + (b_ * p_.heads + h_) * p_.queries + q0_;
    for (std::int64_t i = 0; i < rows_; ++i)
      lse[i] = s_.sum[i] > 0 ? s_.most[i] * T(kLn2) + std::log(s_.sum[i])
                             : -std::numeric_limits<T>::infinity();
  }

  const ops::AttentionForward& a_;
  const ops::AttentionProblem& p_;
  const Scratch<T>& s_;
  std::int64_t b_, h_, q0_, rows_, vectors_, offset_;
};

template <class T, class S>
void forward(const ops::AttentionForward& args, int threads) {
  const ops::AttentionProblem& p = args.problem;
  const std::int64_t bytes = bytes_per_thread<T, S>(p);
  const std::int64_t blocks = (p.queries + kQueryBlock<T> - 1) / kQueryBlock<T>;
  const std::int64_t heads = p.batch * p.heads;
#pragma omp parallel num_threads(threads)
  {
    Carver carver(static_cast<std::byte*>(args.workspace.data) + omp_get_thread_num() * bytes);
    const Scratch<T> scratch(carver, p.head_width, !std::is_same_v<T, S>, p.biased);
    // With a causal mask late blocks cost most, so they come first.
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t i = 0; i < heads * blocks; ++i) {
      const std::int64_t block = blocks - 1 - i / heads, head = i % heads;
      Forward<T, S>(args, head / p.heads, head % p.heads, block * kQueryBlock<T>, scratch).run();
    }
  }
}

}  // namespace

std::int64_t attention_forward_simd_bytes(const ops::AttentionProblem& problem, int threads) {
  return with_types(problem.dtype, [&](auto t, auto s) {
    return threads * bytes_per_thread<decltype(t), decltype(s)>(problem);
  });
}

void attention_forward_simd(const ops::AttentionForward& args, int threads) {
  with_types(args.problem.dtype,
             [&](auto t, auto s) { forward<decltype(t), decltype(s)>(args, threads); });
}

}  // namespace choir
