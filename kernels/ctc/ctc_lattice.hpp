#pragma once
// The states of one utterance on the CPU and the two recursions over its frames (step 2 of
// kernels/ctc/ctc.hpp), with label positions in vectors.
#include <algorithm>
#include <cmath>
#include <limits>

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
