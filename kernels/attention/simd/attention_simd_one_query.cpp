#include <omp.h>

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/simd/attention_simd.hpp"

namespace choir {
namespace {

using namespace simd;

constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;
constexpr double kNothing = -1e30;  // below every score, yet finite
constexpr std::int64_t kTogether = 8;

/// One half is added to the other until one lane is left: a score is so short that additions one
/// after the other would take as long as its products.
template <class T>
T sum_of_lanes(Vec<T> v) {
  typedef std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t> Index;
  typedef Index Lanes __attribute__((vector_size(kVectorBytes)));
#pragma GCC unroll 4
  for (int half = kLanes<T> / 2; half > 0; half /= 2) {
    Lanes other{};
    for (int i = 0; i < kLanes<T>; ++i) other[i] = static_cast<Index>((i + half) % kLanes<T>);
    v += __builtin_shuffle(v, other);
  }
  return v[0];
}

/// What one thread needs; vectors along the head.
template <class T>
struct Scratch {
  T* q;       // [D], times scale * log2 e
  T* out;     // [D]
  T* scores;  // [kKeyBlock]: scores, then probabilities

  Scratch(Carver& carver, std::int64_t width)
      : q(carver.take<T>(round_up(width, kLanes<T>))),
        out(carver.take<T>(round_up(width, kLanes<T>))),
        scores(carver.take<T>(kKeyBlock)) {}
};

template <class T, class S>
class OneQuery {
 public:
  OneQuery(const ops::AttentionForward& args, std::int64_t b, std::int64_t h,
           const Scratch<T>& scratch)
      : a_(args), p_(args.problem), s_(scratch), b_(b), h_(h), width_(p_.head_width) {}

  void run() {
    const S* q = row_of<S>(a_.q, p_, b_, 0, h_);
    over_head([&](std::int64_t d, auto n) {
      store(s_.q + d, static_cast<T>(p_.scale * kLog2E) * load_some<T>(q + d, n));
      store(s_.out + d, Vec<T>{});
    });
    const std::int64_t keys = keys_of(p_, b_), kv_head = h_ / (p_.heads / p_.kv_heads);
    for (std::int64_t k0 = first_key(p_, b_, 0); k0 < keys; k0 += kKeyBlock) {
      const std::int64_t count = std::min<std::int64_t>(kKeyBlock, keys - k0);
      const S* v = row_of<S>(a_.v, p_, b_, k0, kv_head);
      score(row_of<S>(a_.k, p_, b_, k0, kv_head), v, count);
      soften(count);
      add(v, count);
    }
    finish();
  }

 private:
  /// body(d, n lanes), whole vectors with a constant, which leaves no branch in them.
  template <class Body>
  void over_head(const Body& body) const {
    std::int64_t d = 0;
    for (; d + kLanes<T> <= width_; d += kLanes<T>)
      body(d, std::integral_constant<std::int64_t, kLanes<T>>());
    if (d < width_) body(d, width_ - d);
  }
  /// body(i) for i = 0 .. keys - 1, unrolled.
  template <int kKeys, class Body>
  static void of_each(std::integral_constant<int, kKeys>, const Body& body) {
    [&]<int... i>(std::integer_sequence<int, i...>) {
      (body(i), ...);
    }
    (std::make_integer_sequence<int, kKeys>());
  }
  /// body(key, how many of them): some together, so that latencies overlap.
  template <class Body>
  static void over_keys(std::int64_t count, const Body& body) {
    std::int64_t r = 0;
    for (; r + kTogether <= count; r += kTogether)
      body(r, std::integral_constant<int, kTogether>());
    for (; r < count; ++r) body(r, std::integral_constant<int, 1>());
  }

  /// Rows of one head lie apart, and processors do not foresee them: while a block is scored, its
  /// values and the keys of the next block are asked for. Beyond the last key that does no harm.
  void fetch(const S* row) const {
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(S));
    for (std::int64_t d = 0; d < width_; d += kLine) __builtin_prefetch(row + d);
  }

  void score(const S* k, const S* v, std::int64_t count) {
    over_keys(count, [&](std::int64_t r, auto keys) {
      of_each(keys, [&](int i) {
        fetch(k + (r + i + kKeyBlock) * a_.k.position_stride);
        fetch(v + (r + i) * a_.v.position_stride);
      });
      Vec<T> sums[keys()] = {};
      over_head([&](std::int64_t d, auto n) {
        const Vec<T> q = load(s_.q + d);
        of_each(keys, [&](int i) {
          sums[i] += q * load_some<T>(k + (r + i) * a_.k.position_stride + d, n);
        });
      });
      of_each(keys, [&](int i) { s_.scores[r + i] = sum_of_lanes<T>(sums[i]); });
    });
    for (std::int64_t r = count; r < round_up(count, kLanes<T>); ++r) s_.scores[r] = T(kNothing);
  }

  /// Scores become probabilities relative to the new maximum; the sum and what is there follow it.
  void soften(std::int64_t count) {
    const T most = std::max(most_, *std::max_element(s_.scores, s_.scores + count));
    const T shrink = simd::exp2<T>(broadcast(most_ - most))[0];
    Vec<T> sum{};
    for (std::int64_t r = 0; r < count; r += kLanes<T>) {
      const Vec<T> p = simd::exp2<T>(load(s_.scores + r) - most);
      sum += p;
      store(s_.scores + r, p);
    }
    sum_ = sum_ * shrink + sum_of_lanes<T>(sum);
    most_ = most;
    if (shrink != 1)
      over_head([&](std::int64_t d, auto) { store(s_.out + d, shrink * load(s_.out + d)); });
  }

  void add(const S* v, std::int64_t count) {
    over_keys(count, [&](std::int64_t r, auto keys) {
      over_head([&](std::int64_t d, auto n) {
        Vec<T> out = load(s_.out + d);
        of_each(keys, [&](int i) {
          out += s_.scores[r + i] * load_some<T>(v + (r + i) * a_.v.position_stride + d, n);
        });
        store(s_.out + d, out);
      });
    });
  }

  void finish() {
    const T inverse = sum_ > 0 ? 1 / sum_ : T(0);
    S* out = row_of<S>(a_.out, p_, b_, 0, h_);
    over_head(
        [&](std::int64_t d, auto n) { store_some<T>(out + d, inverse * load(s_.out + d), n); });
    if (a_.log_sum_exp.empty()) return;
    static_cast<T*>(a_.log_sum_exp.data)[b_ * p_.heads + h_] =
        sum_ > 0 ? most_ * T(kLn2) + std::log(sum_) : -std::numeric_limits<T>::infinity();
  }

  const ops::AttentionForward& a_;
  const ops::AttentionProblem& p_;
  const Scratch<T>& s_;
  std::int64_t b_, h_, width_;
  T most_ = T(kNothing), sum_ = 0;
};

template <class T>
std::int64_t bytes_per_thread(const ops::AttentionProblem& problem) {
  Carver carver(nullptr);
  Scratch<T>(carver, problem.head_width);
  return carver.used();
}

template <class T, class S>
void forward(const ops::AttentionForward& args, int threads) {
  const ops::AttentionProblem& p = args.problem;
  const std::int64_t bytes = bytes_per_thread<T>(p), heads = p.batch * p.heads;
  // Heads that share keys follow each other, so a thread finds them in its cache.
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < heads; ++i) {
    Carver carver(static_cast<std::byte*>(args.workspace.data) + omp_get_thread_num() * bytes);
    const Scratch<T> scratch(carver, p.head_width);
    OneQuery<T, S>(args, i / p.heads, i % p.heads, scratch).run();
  }
}

}  // namespace

bool attention_of_one_query(const ops::AttentionProblem& problem) {
  return problem.queries == 1 && !problem.biased;
}

std::int64_t attention_one_query_simd_bytes(const ops::AttentionProblem& problem, int threads) {
  return with_types(problem.dtype,
                    [&](auto t, auto) { return threads * bytes_per_thread<decltype(t)>(problem); });
}

void attention_one_query_simd(const ops::AttentionForward& args, int threads) {
  with_types(args.problem.dtype,
             [&](auto t, auto s) { forward<decltype(t), decltype(s)>(args, threads); });
}

}  // namespace choir
