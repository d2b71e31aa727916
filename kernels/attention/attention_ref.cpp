#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "kernels/cpu/ref_element.hpp"

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
            const double d_score = d_biased * p.scale;
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
