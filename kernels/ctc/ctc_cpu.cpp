// Connectionist temporal classification on the CPU: the states of one utterance, the two recursions
// over its frames with label positions in vectors, and the loss of a batch.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/softmax_row.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/ctc/ctc.hpp"

namespace choir::cpu::lattice {

template <class S>
inline constexpr S kNever = -std::numeric_limits<S>::infinity();

template <class V>
inline V larger(V a, V b) {
  return a > b ? a : b;
}
/// ln(e^a + e^b). A NaN in either is preserved.
template <class S, class V>
inline V log_add(V a, V b) {
  const V high = larger(a, b), low = a > b ? b : a;
  return high == kNever<S> ? a + b : high + log(1 + exp(low - high));
}
template <class S, class V>
inline V log_add(V a, V b, V c) {
  const V two = larger(a, b), low = a > b ? b : a;
  const V high = larger(two, c), middle = two > c ? c : two;
  return high == kNever<S> ? a + b + c : high + log(1 + exp(middle - high) + exp(low - high));
}
template <class S>
inline double log_add_one(S a, S b) {
  const double x = std::max(static_cast<double>(a), static_cast<double>(b));
  if (std::isinf(x) && x < 0 && !std::isnan(a) && !std::isnan(b)) return x;
  return x + std::log(std::exp(static_cast<double>(a) - x) + std::exp(static_cast<double>(b) - x));
}

/// A row of alpha or beta: blanks 0..U and labels 0..U+1; the outermost are unreachable.
template <class S>
struct States {
  S *blanks, *labels;
  S largest(std::int64_t count) const {
    Vec<S> most = Vec<S>{} + kNever<S>;
    const auto of = [&](const S* x, std::int64_t first) {
      for_vectors<S>(first, count + 1, [&](std::int64_t i, auto access) {
        most = larger(most, access.load(x + i, kNever<S>));
      });
    };
    of(blanks, 0), of(labels, 1);
    return max_of_lanes(most);
  }
};

/// One utterance of a call in its workspace. S is the type of sums.
template <class S>
struct Utterance {
  S *stats, *emissions, *alphas, *betas, *skips;
  std::int32_t *chains, *last;
  const std::int32_t* labels;  ///< label u is labels[u - 1]
  std::int64_t frames, count, half;

  Utterance(const ops::Ctc& args, const CtcPlan& plan, std::int64_t b, std::int64_t all_frames)
      : labels(static_cast<const std::int32_t*>(args.labels.data) + b * (plan.half - 2)),
        frames(args.frame_lengths[b]),
        count(args.label_lengths[b]),
        half(plan.half) {
    auto* base = static_cast<std::byte*>(args.workspace.data);
    const auto at = [&](std::int64_t offset, std::int64_t of_utterance) {
      return reinterpret_cast<S*>(base + offset) + b * of_utterance;
    };
    stats = at(plan.stats, all_frames * 2);
    emissions = at(plan.emissions, all_frames * half);
    alphas = at(plan.alphas, all_frames * 2 * half);
    betas = at(plan.betas, all_frames * 2 * half);
    skips = at(plan.skips, half);
    chains = reinterpret_cast<std::int32_t*>(base + plan.chains) + b * half;
    last = reinterpret_cast<std::int32_t*>(base + plan.last) + b * args.vocabulary;
  }
  States<S> alpha(std::int64_t t) const { return row(alphas, t); }
  States<S> beta(std::int64_t t) const { return row(betas, t); }
  const S* emission(std::int64_t t) const { return emissions + t * half; }
  bool possible() const {
    std::int64_t needed = count;
    for (std::int64_t u = 1; u < count; ++u) needed += labels[u] == labels[u - 1];
    return frames >= needed;
  }

 private:
  States<S> row(S* base, std::int64_t t) const {
    S* blanks = base + t * 2 * half;
    return {blanks, blanks + half};
  }
};

template <class S>
inline void set_never(const States<S>& row, std::int64_t half) {
  std::fill(row.blanks, row.blanks + 2 * half, kNever<S>);
}

/// Finds the labels that may directly follow their neighbour, and the labels of the same symbol.
template <class S>
inline void link_labels(const Utterance<S>& u) {
  for (std::int64_t i = 1; i <= u.count; ++i) u.last[u.labels[i - 1]] = 0;
  std::fill(u.skips, u.skips + u.half, S(0));
  for (std::int64_t i = 1; i <= u.count; ++i) {
    if (i > 1 && u.labels[i - 1] == u.labels[i - 2]) u.skips[i] = kNever<S>;
    std::int32_t& last = u.last[u.labels[i - 1]];
    if (last > 0)
      u.chains[last] += static_cast<std::int32_t>(i), u.chains[i] = 0;
    else
      u.chains[i] = kCtcFirst;
    last = static_cast<std::int32_t>(i);
  }
}

/// The shift that is subtracted before the frame of `step` is computed from `from`; nonzero only
/// every kCtcRescale frames.
template <class S>
inline S shift_of(const States<S>& from, std::int64_t count, std::int64_t step) {
  if (step % kCtcRescale != 0) return 0;
  const S largest = from.largest(count);
  return std::isfinite(largest) ? largest : S(0);
}

/// Step 2, forward. Returns ln p(labels).
template <class S>
inline double forward(const Utterance<S>& u) {
  if (u.frames == 0) return u.count == 0 ? 0 : kNever<double>;
  if (!u.possible()) return kNever<double>;
  const S* y = u.emission(0);
  const States<S> first = u.alpha(0);
  set_never(first, u.half);
  first.blanks[0] = y[0];
  if (u.count > 0) first.labels[1] = y[1];
  double taken = 0;
  for (std::int64_t t = 1; t < u.frames; ++t) {
    const States<S> from = u.alpha(t - 1), to = u.alpha(t);
    y = u.emission(t);
    const S shift = shift_of(from, u.count, t), blank = y[0] - shift;
    taken += static_cast<double>(shift);
    to.labels[0] = to.labels[u.count + 1] = kNever<S>;
    for_vectors<S>(0, u.count + 1, [&](std::int64_t i, auto access) {
      const Vec<S> stay = access.load(from.blanks + i), come = access.load(from.labels + i);
      access.store(to.blanks + i, log_add<S>(stay, come) + blank);
    });
    for_vectors<S>(1, u.count + 1, [&](std::int64_t i, auto access) {
      const Vec<S> stay = access.load(from.labels + i), come = access.load(from.blanks + i - 1),
                   skip = access.load(from.labels + i - 1) + access.load(u.skips + i);
      access.store(to.labels + i, log_add<S>(stay, come, skip) + (access.load(y + i) - shift));
    });
  }
  const States<S> end = u.alpha(u.frames - 1);
  return taken + log_add_one(end.blanks[u.count], end.labels[u.count]);
}

/// Step 2, backward.
template <class S>
inline void backward(const Utterance<S>& u) {
  if (u.frames == 0 || !u.possible()) return;
  const States<S> last = u.beta(u.frames - 1);
  set_never(last, u.half);
  last.blanks[u.count] = 0;
  if (u.count > 0) last.labels[u.count] = 0;
  for (std::int64_t t = u.frames - 2; t >= 0; --t) {
    const States<S> from = u.beta(t + 1), to = u.beta(t);
    const S* y = u.emission(t + 1);
    const S shift = shift_of(from, u.count, t + 1), blank = y[0] - shift;
    to.labels[0] = to.labels[u.count + 1] = kNever<S>;
    for_vectors<S>(0, u.count + 1, [&](std::int64_t i, auto access) {
      const Vec<S> stay = access.load(from.blanks + i) + blank,
                   go = access.load(from.labels + i + 1) + (access.load(y + i + 1) - shift);
      access.store(to.blanks + i, log_add<S>(stay, go));
    });
    for_vectors<S>(1, u.count + 1, [&](std::int64_t i, auto access) {
      const Vec<S> stay = access.load(from.labels + i) + (access.load(y + i) - shift),
                   go = access.load(from.blanks + i) + blank,
                   skip = access.load(from.labels + i + 1) +
                          ((access.load(y + i + 1) - shift) + access.load(u.skips + i + 1));
      access.store(to.labels + i, log_add<S>(stay, go, skip));
    });
  }
}

}  // namespace choir::cpu::lattice

namespace choir::cpu {
namespace {

using namespace lattice;  // NOLINT: of this file

/// Step 1 for one row.
template <class T>
void emit_row(const Utterance<Sum<T>>& u, std::int64_t t, const T* z, std::int64_t vocabulary) {
  const RowSum<T> row = sum_row(z, vocabulary, false);
  const auto sum = static_cast<Sum<T>>(row.exps);
  u.stats[2 * t] = row.max, u.stats[2 * t + 1] = sum;
  const auto log_sum = static_cast<Sum<T>>(std::log(row.exps));
  Sum<T>* y = u.emissions + t * u.half;
  y[0] = (static_cast<Sum<T>>(z[vocabulary - 1]) - row.max) - log_sum;
  for (std::int64_t i = 1; i <= u.count; ++i)
    y[i] = (static_cast<Sum<T>>(z[u.labels[i - 1]]) - row.max) - log_sum;
  y[u.count + 1] = 0;  // read next to a state that is never reached
}

/// alpha = e^(alpha + beta - largest) for one half of the states; returns their sum.
template <class S>
S exponentials(S* alpha, const S* beta, std::int64_t first, std::int64_t last, S largest) {
  Vec<S> sum{};
  for_vectors<S>(first, last, [&](std::int64_t i, auto access) {
    const Vec<S> both = access.load(alpha + i, kNever<S>) + access.load(beta + i);
    const Vec<S> e = exp(both - largest);
    access.store(alpha + i, e);
    sum += e;
  });
  return sum_of_lanes(sum);
}

template <class S>
S largest_sum(const S* alpha, const S* beta, std::int64_t first, std::int64_t last) {
  Vec<S> most = Vec<S>{} + kNever<S>;
  for_vectors<S>(first, last, [&](std::int64_t i, auto access) {
    most = larger(most, access.load(alpha + i, kNever<S>) + access.load(beta + i));
  });
  return max_of_lanes(most);
}

/// Step 3 for a valid row. Overwrites its alpha, beta and emissions.
template <class T>
void write_row(const Utterance<Sum<T>>& u, std::int64_t t, T* z, const ops::Ctc& args,
               double scale) {
  using S = Sum<T>;
  const States<S> alpha = u.alpha(t), beta = u.beta(t);
  const std::int64_t n = u.count, v = args.vocabulary;
  const S largest = std::max(largest_sum(alpha.blanks, beta.blanks, 0, n + 1),
                             largest_sum(alpha.labels, beta.labels, 1, n + 1));
  const S blanks = exponentials(alpha.blanks, beta.blanks, 0, n + 1, largest),
          labels = exponentials(alpha.labels, beta.labels, 1, n + 1, largest);
  const S all = blanks + labels;
  S* p = u.emissions + t * u.half;
  for_vectors<S>(
      0, n + 1, [&](std::int64_t i, auto access) { access.store(p + i, exp(access.load(p + i))); });
  const double factor = scale / static_cast<double>(u.stats[2 * t + 1]);
  write_softmax<T, false>(z, v, u.stats[2 * t], static_cast<S>(factor), 0);
  clear(z, v, args.logits.shape.back());
  const auto put = [&](std::int64_t column, S probability, S occupied) {
    z[column] =
        static_cast<T>(static_cast<S>(static_cast<double>(probability - occupied / all) * scale));
  };
  put(v - 1, p[0], blanks);
  for (std::int64_t i = 1; i <= n; ++i) {
    if (u.chains[i] < kCtcFirst) continue;
    S occupied = alpha.labels[i];
    for (std::int64_t k = u.chains[i] - kCtcFirst; k > 0; k = u.chains[k])
      occupied += alpha.labels[k];
    put(u.labels[i - 1], p[i], occupied);
  }
}

/// The steps over a batch. Threads may take them in any order; the bits are the same.
template <class T>
class Loss {
 public:
  explicit Loss(const ops::Ctc& args)
      : args_(args),
        batch_(args.losses.count()),
        frames_(args.logits.shape.rows() / batch_),
        columns_(args.logits.shape.back()),
        scale_(args.scale * (args.device_scale ? *args.device_scale : 1.0)),
        plan_(batch_, frames_, args.labels.count() / batch_, args.vocabulary, sizeof(Sum<T>)) {}

  /// Processes whole utterances if there are many, so that their logits stay in a cache; otherwise
  /// step by step, with the rows of all utterances shared by the threads.
  void run() const {
    constexpr std::int64_t kManyPerThread = 4;
    if (batch_ >= kManyPerThread * omp_get_max_threads() && !omp_in_parallel()) {
      return parallel_tasks(batch_, [this](std::int64_t b) {
        link_labels(utterance(b));
        for (std::int64_t t = 0; t < frames_; ++t) emit(b, t);
        recur(b, false), recur(b, true);
        for (std::int64_t t = 0; t < frames_; ++t) write(b, t);
        finish(b);
      });
    }
    for (std::int64_t b = 0; b < batch_; ++b) link_labels(utterance(b));
    over_rows([this](std::int64_t b, std::int64_t t) { emit(b, t); });
    parallel_ranges(2 * batch_, frames_ * plan_.half * 8,
                    [this](std::int64_t first, std::int64_t last) {
                      for (std::int64_t i = first; i < last; ++i) recur(i / 2, i % 2 == 1);
                    });
    over_rows([this](std::int64_t b, std::int64_t t) { write(b, t); });
    for (std::int64_t b = 0; b < batch_; ++b) finish(b);
  }

 private:
  using S = Sum<T>;
  Utterance<S> utterance(std::int64_t b) const { return {args_, plan_, b, frames_}; }
  T* row(std::int64_t b, std::int64_t t) const {
    return static_cast<T*>(args_.logits.data) + (b * frames_ + t) * columns_;
  }
  template <class F>
  void over_rows(const F& f) const {
    parallel_ranges(batch_ * frames_, columns_ * 2, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) f(r / frames_, r % frames_);
    });
  }
  void emit(std::int64_t b, std::int64_t t) const {
    const Utterance<S> u = utterance(b);
    if (t < u.frames) emit_row(u, t, row(b, t), args_.vocabulary);
  }
  S& loss(std::int64_t b) const { return static_cast<S*>(args_.losses.data)[b]; }
  void recur(std::int64_t b, bool back) const {
    const Utterance<S> u = utterance(b);
    if (!back)
      loss(b) = static_cast<S>(0 - forward(u));
    else if (args_.write_gradient)
      backward(u);
  }
  bool infinite(std::int64_t b) const { return std::isinf(loss(b)) && loss(b) > 0; }
  void write(std::int64_t b, std::int64_t t) const {
    if (!args_.write_gradient) return;
    const Utterance<S> u = utterance(b);
    T* z = row(b, t);
    if (t >= u.frames || (infinite(b) && args_.zero_infinity)) return clear(z, 0, columns_);
    if (!infinite(b)) return write_row(u, t, z, args_, scale_);
    std::fill(z, z + args_.vocabulary, static_cast<T>(std::numeric_limits<S>::quiet_NaN()));
    clear(z, args_.vocabulary, columns_);
  }
  void finish(std::int64_t b) const {
    if (args_.zero_infinity && infinite(b)) loss(b) = 0;
  }

  const ops::Ctc& args_;
  std::int64_t batch_, frames_, columns_;
  double scale_;
  CtcPlan plan_;
};

}  // namespace

template <class T>
void ctc(const ops::Ctc& args) {
  Loss<T>(args).run();
}

template <class T>
void best_symbols(const TensorView& logits, std::int64_t vocabulary, const TensorView& best) {
  const std::int64_t columns = logits.shape.back();
  auto* symbols = static_cast<std::int32_t*>(best.data);
  parallel_ranges(logits.shape.rows(), columns, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* z = static_cast<const T*>(logits.data) + r * columns;
      const Sum<T> most = block_max(z, 0, vocabulary);
      std::int64_t c = 0;
      while (c < vocabulary && static_cast<Sum<T>>(z[c]) != most) ++c;
      symbols[r] = c < vocabulary ? static_cast<std::int32_t>(c) : 0;  // otherwise all logits are
                                                                       // NaN
    }
  });
}

template <class T>
void log_softmax(const TensorView& logits, std::int64_t vocabulary) {
  const std::int64_t columns = logits.shape.back();
  parallel_ranges(logits.shape.rows(), columns * 2, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      T* z = static_cast<T*>(logits.data) + r * columns;
      const RowSum<T> row = sum_row(z, vocabulary, false);
      const auto log_sum = static_cast<Sum<T>>(std::log(row.exps));
      for_vectors<T>(0, vocabulary, [&](std::int64_t c, auto access) {
        access.store(z + c, (access.load(z + c) - row.max) - log_sum);
      });
    }
  });
}

#define CHOIR_INSTANTIATE(T)                                                         \
  template void ctc<T>(const ops::Ctc&);                                             \
  template void best_symbols<T>(const TensorView&, std::int64_t, const TensorView&); \
  template void log_softmax<T>(const TensorView&, std::int64_t);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu
