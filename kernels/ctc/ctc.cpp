#include "kernels/ctc/ctc.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

struct CtcSizes {
  std::int64_t batch, frames, labels;
};

void check_vocabulary(const TensorView& logits, std::int64_t vocabulary) {
  CHOIR_CHECK(vocabulary >= 1 && vocabulary <= logits.shape.back(), "vocabulary {} in rows of {}",
              vocabulary, logits.shape.back());
}

CtcSizes check_sizes(const Stream& stream, const Ctc& args) {
  const DType dtype = args.logits.dtype;
  CHOIR_CHECK(args.losses.shape.rank() == 1 && args.losses.count() >= 1, "losses are {}",
              to_string(args.losses.shape));
  const std::int64_t batch = args.losses.count(), rows = args.logits.shape.rows();
  CHOIR_CHECK(rows % batch == 0, "{} rows of logits for {} utterances", rows, batch);
  CHOIR_CHECK(args.labels.count() % batch == 0, "labels are {} for {} utterances",
              to_string(args.labels.shape), batch);
  const CtcSizes sizes{batch, rows / batch, args.labels.count() / batch};
  check_vocabulary(args.logits, args.vocabulary);
  check_tensor(args.logits, dtype, rows * args.logits.shape.back(), "logits");
  if (sizes.labels > 0) check_tensor(args.labels, DType::i32, batch * sizes.labels, "labels");
  check_tensor(args.losses, sum_dtype_of(dtype), batch, "losses");
  CHOIR_CHECK(args.frame_lengths != nullptr && args.label_lengths != nullptr,
              "frame_lengths or label_lengths is missing");
  check_workspace(args.workspace,
                  ctc_workspace(stream, batch, sizes.frames, sizes.labels, args.vocabulary, dtype));
  return sizes;
}

/// Checks of values that only a host can read.
void check_values(const Ctc& args, const CtcSizes& sizes) {
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const std::int32_t frames = args.frame_lengths[b], count = args.label_lengths[b];
    CHOIR_CHECK(frames >= 0 && frames <= sizes.frames, "utterance {}: {} frames of {}", b, frames,
                sizes.frames);
    CHOIR_CHECK(count >= 0 && count <= sizes.labels, "utterance {}: {} labels of {}", b, count,
                sizes.labels);
    const auto* labels = static_cast<const std::int32_t*>(args.labels.data) + b * sizes.labels;
    for (std::int32_t i = 0; i < count; ++i)
      CHOIR_CHECK(labels[i] >= 0 && labels[i] < args.vocabulary - 1,
                  "utterance {}: label {} is outside of {} symbols without the blank", b, labels[i],
                  args.vocabulary - 1);
  }
}

/// Cost of a logit (exp, difference, sum) and of a state (exp or log and the operations around it).
constexpr double kLogitFlops = 20, kStateFlops = 20;

}  // namespace

std::int64_t ctc_workspace(const Stream&, std::int64_t batch, std::int64_t frames,
                           std::int64_t labels, std::int64_t vocabulary, DType dtype) {
  return CtcPlan(batch, frames, labels, vocabulary, dtype == DType::f64 ? 8 : 4).bytes;
}

void ctc(const Stream& stream, const Ctc& args) {
  const CtcSizes sizes = check_sizes(stream, args);
  const double passes = args.write_gradient ? 2 : 1;
  // A recursion has 4 functions per label and 2 per blank; the occupation adds one of each.
  const double states = static_cast<double>(sizes.batch * sizes.frames * (sizes.labels + 1));
  stream.count(passes * kLogitFlops * static_cast<double>(args.logits.count()) +
                   kStateFlops * states * (args.write_gradient ? 2 * (4 + 2) + 2 : 4 + 2),
               passes * as_bytes(args.logits) + as_bytes(args.labels) + as_bytes(args.losses));
  if (on_cuda(stream)) return cuda::ctc(stream, args);
  if (!computes(stream)) return;
  check_values(args, sizes);
  with_element(args.logits.dtype, [&](auto t) { cpu::ctc<decltype(t)>(args); });
}

void best_symbols(const Stream& stream, const TensorView& logits, std::int64_t vocabulary,
                  const TensorView& best) {
  check_tensor(logits, logits.dtype, logits.count(), "logits");
  check_vocabulary(logits, vocabulary);
  check_tensor(best, DType::i32, logits.shape.rows(), "best");
  stream.count(static_cast<double>(logits.count()), as_bytes(logits) + as_bytes(best));
  if (on_cuda(stream)) return cuda::best_symbols(stream, logits, vocabulary, best);
  if (!computes(stream)) return;
  with_element(logits.dtype,
               [&](auto t) { cpu::best_symbols<decltype(t)>(logits, vocabulary, best); });
}

void log_softmax(const Stream& stream, const TensorView& logits, std::int64_t vocabulary) {
  check_tensor(logits, logits.dtype, logits.count(), "logits");
  check_vocabulary(logits, vocabulary);
  stream.count(kLogitFlops * static_cast<double>(logits.count()), 2 * as_bytes(logits));
  if (on_cuda(stream)) return cuda::log_softmax(stream, logits, vocabulary);
  if (!computes(stream)) return;
  with_element(logits.dtype, [&](auto t) { cpu::log_softmax<decltype(t)>(logits, vocabulary); });
}

}  // namespace choir::ops

namespace choir::ref {
namespace {

// The recursions of Graves et al. 2006, 4.1, over the 2 U + 1 symbols with blanks in between,
// implemented literally in log space.

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
