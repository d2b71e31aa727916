// The recursions of Graves et al. 2006, 4.1, over the 2 U + 1 symbols with blanks in between,
// implemented literally in log space.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ctc/ctc.hpp"

namespace choir::ref {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return std::isinf(b) && b < 0 ? a : a + std::log1p(std::exp(b - a));
}

double log_sum(const double* z, std::int64_t count) {
  double sum = kNever;
  for (std::int64_t c = 0; c < count; ++c) sum = log_add(sum, z[c]);
  return sum;
}

/// One utterance with its log-probabilities y [frames, vocabulary].
struct Utterance {
  std::vector<double> y;
  std::vector<std::int64_t> states;  ///< symbol of each state
  std::int64_t frames, vocabulary;

  double emission(std::int64_t t, std::size_t s) const {
    return y[static_cast<std::size_t>(t * vocabulary + states[s])];
  }
  /// True if a path may reach s from s - 2.
  bool skips(std::size_t s) const {
    return s >= 2 && s < states.size() && s % 2 == 1 && states[s] != states[s - 2];
  }
};

using Lattice = std::vector<std::vector<double>>;

Lattice forward(const Utterance& u) {
  const std::size_t states = u.states.size();
  Lattice alpha(static_cast<std::size_t>(u.frames), std::vector<double>(states, kNever));
  alpha[0][0] = u.emission(0, 0);
  if (states > 1) alpha[0][1] = u.emission(0, 1);
  for (std::size_t t = 1; t < alpha.size(); ++t)
    for (std::size_t s = 0; s < states; ++s) {
      double sum = alpha[t - 1][s];
      if (s >= 1) sum = log_add(sum, alpha[t - 1][s - 1]);
      if (u.skips(s)) sum = log_add(sum, alpha[t - 1][s - 2]);
      alpha[t][s] = sum + u.emission(static_cast<std::int64_t>(t), s);
    }
  return alpha;
}

/// The lattice of continuations after frame t.
Lattice backward(const Utterance& u) {
  const std::size_t states = u.states.size();
  Lattice beta(static_cast<std::size_t>(u.frames), std::vector<double>(states, kNever));
  beta.back()[states - 1] = 0;
  if (states > 1) beta.back()[states - 2] = 0;
  for (std::size_t t = beta.size() - 1; t-- > 0;)
    for (std::size_t s = 0; s < states; ++s) {
      const auto next = [&](std::size_t to) {
        return beta[t + 1][to] + u.emission(static_cast<std::int64_t>(t) + 1, to);
      };
      double sum = next(s);
      if (s + 1 < states) sum = log_add(sum, next(s + 1));
      if (u.skips(s + 2)) sum = log_add(sum, next(s + 2));
      beta[t][s] = sum;
    }
  return beta;
}

}  // namespace

void ctc(const ops::Ctc& args) {
  const double scale = args.scale * (args.device_scale ? *args.device_scale : 1.0);
  const std::int64_t batch = args.losses.count(), columns = args.logits.shape.back(),
                     frames = args.logits.shape.rows() / batch, v = args.vocabulary,
                     most = args.labels.count() / batch;
  for (std::int64_t b = 0; b < batch; ++b) {
    double* z = args.logits.as<double>() + b * frames * columns;
    const std::int32_t* labels = args.labels.as<std::int32_t>() + b * most;
    Utterance u{{}, {v - 1}, args.frame_lengths[b], v};
    for (std::int64_t i = 0; i < args.label_lengths[b]; ++i) {
      u.states.push_back(labels[i]);
      u.states.push_back(v - 1);
    }
    for (std::int64_t t = 0; t < u.frames; ++t) {
      const double sum = log_sum(z + t * columns, v);
      for (std::int64_t c = 0; c < v; ++c) u.y.push_back(z[t * columns + c] - sum);
    }
    double log_p = u.states.size() == 1 ? 0 : kNever;
    Lattice alpha, beta;
    if (u.frames > 0) {
      alpha = forward(u), beta = backward(u);
      log_p = alpha.back().back();
      if (u.states.size() > 1) log_p = log_add(log_p, alpha.back()[u.states.size() - 2]);
    }
    const bool ignored = args.zero_infinity && std::isinf(log_p);
    args.losses.as<double>()[b] = ignored ? 0 : -log_p;
    if (!args.write_gradient) continue;
    std::fill(z, z + frames * columns, 0.0);
    for (std::int64_t t = 0; t < (ignored ? 0 : u.frames); ++t) {
      for (std::int64_t c = 0; c < v; ++c)
        z[t * columns + c] = scale * std::exp(u.y[static_cast<std::size_t>(t * v + c)]);
      const auto at = static_cast<std::size_t>(t);
      for (std::size_t s = 0; s < u.states.size(); ++s)
        z[t * columns + u.states[s]] -= scale * std::exp(alpha[at][s] + beta[at][s] - log_p);
    }
  }
}

void best_symbols(const TensorView& logits, std::int64_t vocabulary, const TensorView& best) {
  for (std::int64_t r = 0; r < logits.shape.rows(); ++r) {
    const double* z = logits.as<double>() + r * logits.shape.back();
    best.as<std::int32_t>()[r] = static_cast<std::int32_t>(std::max_element(z, z + vocabulary) - z);
  }
}

void log_softmax(const TensorView& logits, std::int64_t vocabulary) {
  for (std::int64_t r = 0; r < logits.shape.rows(); ++r) {
    double* z = logits.as<double>() + r * logits.shape.back();
    const double sum = log_sum(z, vocabulary);
    for (std::int64_t c = 0; c < vocabulary; ++c) z[c] -= sum;
  }
}

}  // namespace choir::ref
