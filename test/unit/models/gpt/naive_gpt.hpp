#pragma once
// A GPT, its loss, AdamW and clipping in plain f64 loops over scalars that differentiate
// themselves. It shares nothing with the program except the names of the parameters: a reference
// for training curves.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/models/gpt/gpt_config.hpp"

namespace choir::naive {

/// A record of elementary operations, read backwards for derivatives.
class Tape {
 public:
  int put(double value, int a = -1, double da = 0, int b = -1, double db = 0) {
    values_.push_back(value);
    parents_.push_back({a, b});
    slopes_.push_back({da, db});
    return static_cast<int>(values_.size()) - 1;
  }
  double value(int i) const { return values_[static_cast<std::size_t>(i)]; }
  /// d(node)/d(each node before it)
  std::vector<double> derivatives(int node) const {
    std::vector<double> d(values_.size(), 0.0);
    d[static_cast<std::size_t>(node)] = 1;
    for (auto i = static_cast<std::size_t>(node) + 1; i-- > 0;)
      for (std::size_t k = 0; k < 2; ++k)
        if (parents_[i][k] >= 0)
          d[static_cast<std::size_t>(parents_[i][k])] += d[i] * slopes_[i][k];
    return d;
  }

 private:
  std::vector<double> values_;
  std::vector<std::array<int, 2>> parents_;
  std::vector<std::array<double, 2>> slopes_;
};

struct Real {
  Tape* tape = nullptr;
  int at = -1;
  double value() const { return tape->value(at); }
};
inline Real operator+(Real a, Real b) {
  return {a.tape, a.tape->put(a.value() + b.value(), a.at, 1, b.at, 1)};
}
inline Real operator-(Real a, Real b) {
  return {a.tape, a.tape->put(a.value() - b.value(), a.at, 1, b.at, -1)};
}
inline Real operator*(Real a, Real b) {
  return {a.tape, a.tape->put(a.value() * b.value(), a.at, b.value(), b.at, a.value())};
}
inline Real operator*(double c, Real a) {
  return {a.tape, a.tape->put(c * a.value(), a.at, c)};
}
inline Real operator/(Real a, Real b) {
  const double q = a.value() / b.value();
  return {a.tape, a.tape->put(q, a.at, 1 / b.value(), b.at, -q / b.value())};
}
/// f(a) with the given derivative.
inline Real apply(Real a, double f, double slope) {
  return {a.tape, a.tape->put(f, a.at, slope)};
}
inline Real exp(Real a) {
  return apply(a, std::exp(a.value()), std::exp(a.value()));
}
inline Real log(Real a) {
  return apply(a, std::log(a.value()), 1 / a.value());
}
inline Real inverse_root(Real a, double eps) {
  const double x = a.value() + eps;
  return apply(a, 1 / std::sqrt(x), -0.5 / (x * std::sqrt(x)));
}
inline Real gelu(Real a) {
  const double x = a.value(), cdf = 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
  return apply(a, x * cdf, cdf + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI));
}
inline Real silu(Real a) {
  const double s = 1 / (1 + std::exp(-a.value()));
  return apply(a, a.value() * s, s * (1 + a.value() * (1 - s)));
}

using Row = std::vector<Real>;
/// Flat row-major values by name.
using Values = std::map<std::string, std::vector<double>>;

/// Layernorm or rmsnorm, erf GELU or swiglu, learned or rotary positions, grouped queries, tied or
/// not; no dropout.
class Gpt {
 public:
  Gpt(const GptConfig& config, const Values& values) : c_(config) {
    for (const auto& [name, list] : values) {
      first_[name] = total_;
      total_ += static_cast<int>(list.size());
      for (const double v : list) tape_.put(v);
    }
  }

  /// Sum of the losses of one sequence: ids[t] predicts ids[t + 1].
  Real loss(const std::vector<std::int32_t>& ids) {
    const int tokens = static_cast<int>(ids.size()) - 1, width = static_cast<int>(c_.n_embd);
    std::vector<Row> x(static_cast<std::size_t>(tokens));
    for (int t = 0; t < tokens; ++t)
      for (int i = 0; i < width; ++i) {
        Real e = get("embedding.tokens.weight", ids[static_cast<std::size_t>(t)] * width + i);
        if (c_.position == Position::learned)
          e = e + get("embedding.positions.weight", t * width + i);
        x[static_cast<std::size_t>(t)].push_back(e);
      }
    for (int l = 0; l < c_.n_layer; ++l) block("blocks." + std::to_string(l), x);
    Real sum = constant(0);
    for (int t = 0; t < tokens; ++t) {
      const Row top = norm("final_norm", x[static_cast<std::size_t>(t)]);
      const Row logits = linear(c_.tied ? "embedding.tokens" : "head", top,
                                static_cast<int>(c_.vocab_size), false);
      Real total = constant(0);
      for (const Real& z : logits) total = total + exp(z);
      const auto target = static_cast<std::size_t>(ids[static_cast<std::size_t>(t) + 1]);
      sum = sum + (log(total) - logits[target]);
    }
    return sum;
  }
  Real constant(double v) { return {&tape_, tape_.put(v)}; }

  Values gradients(Real loss) const {
    const std::vector<double> d = tape_.derivatives(loss.at);
    Values result;
    std::vector<std::pair<int, std::string>> order;
    for (const auto& [name, at] : first_) order.push_back({at, name});
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i) {
      const int end = i + 1 < order.size() ? order[i + 1].first : total_;
      result[order[i].second].assign(d.begin() + order[i].first, d.begin() + end);
    }
    return result;
  }

 private:
  Real get(const std::string& name, int i) { return {&tape_, first_.at(name) + i}; }

  Row linear(const std::string& name, const Row& x, int outputs, bool bias) {
    const int weight = first_.at(name + ".weight"), inputs = static_cast<int>(x.size());
    Row y;
    for (int o = 0; o < outputs; ++o) {
      Real sum = bias ? get(name + ".bias", o) : constant(0);
      for (int i = 0; i < inputs; ++i)
        sum = sum + x[static_cast<std::size_t>(i)] * Real{&tape_, weight + o * inputs + i};
      y.push_back(sum);
    }
    return y;
  }

  Row norm(const std::string& name, const Row& x) {
    const double share = 1.0 / static_cast<double>(x.size());
    const bool centred = c_.norm == ops::Norm::layernorm;
    Real mean = constant(0), square = constant(0);
    for (const Real& v : x) mean = mean + share * v;
    if (!centred) mean = constant(0);
    for (const Real& v : x) square = square + share * ((v - mean) * (v - mean));
    const Real scale = inverse_root(square, c_.norm_eps);
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      Real v = (x[i] - mean) * scale * get(name + ".weight", static_cast<int>(i));
      if (centred && c_.bias) v = v + get(name + ".bias", static_cast<int>(i));
      y.push_back(v);
    }
    return y;
  }

  /// Rotates head `h` of a row by the angles of position t: pairs (d, d + D/2).
  void rotate(Row& row, std::size_t h, int t) {
    const auto half = static_cast<std::size_t>(c_.head_width() / 2);
    for (std::size_t d = 0; d < half; ++d) {
      const double angle =
          t * std::pow(c_.rope_theta, -static_cast<double>(d) / static_cast<double>(half));
      Real& a = row[h * 2 * half + d];
      Real& b = row[h * 2 * half + d + half];
      const Real a0 = a, b0 = b;
      a = std::cos(angle) * a0 - std::sin(angle) * b0;
      b = std::sin(angle) * a0 + std::cos(angle) * b0;
    }
  }

  Row attend(const std::vector<Row>& qkv, std::size_t t) {
    const auto heads = static_cast<std::size_t>(c_.n_head),
               groups = static_cast<std::size_t>(c_.n_kv_head);
    const auto width = static_cast<std::size_t>(c_.head_width());
    Row out;
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t kv = h / (heads / groups), k = (heads + kv) * width,
                        v = (heads + groups + kv) * width;
      Row weight;
      Real total = constant(0);
      for (std::size_t s = 0; s <= t; ++s) {
        Real score = constant(0);
        for (std::size_t d = 0; d < width; ++d)
          score = score + qkv[t][h * width + d] * qkv[s][k + d];
        weight.push_back(exp((1 / std::sqrt(static_cast<double>(width))) * score));
        total = total + weight.back();
      }
      for (std::size_t d = 0; d < width; ++d) {
        Real sum = constant(0);
        for (std::size_t s = 0; s <= t; ++s) sum = sum + weight[s] / total * qkv[s][v + d];
        out.push_back(sum);
      }
    }
    return out;
  }

  void block(const std::string& name, std::vector<Row>& x) {
    const auto add = [](Row& a, const Row& b) {
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = a[i] + b[i];
    };
    const int width = static_cast<int>(c_.n_embd), hidden = static_cast<int>(c_.ffn_width);
    const auto rotated = static_cast<std::size_t>(c_.n_head + c_.n_kv_head);
    std::vector<Row> qkv;
    for (std::size_t t = 0; t < x.size(); ++t) {
      qkv.push_back(linear(name + ".attention.qkv", norm(name + ".attention_norm", x[t]),
                           static_cast<int>((c_.n_head + 2 * c_.n_kv_head) * c_.head_width()),
                           c_.bias));
      for (std::size_t h = 0; c_.position == Position::rope && h < rotated; ++h)
        rotate(qkv.back(), h, static_cast<int>(t));
    }
    for (std::size_t t = 0; t < x.size(); ++t)
      add(x[t], linear(name + ".attention.output", attend(qkv, t), width, c_.bias));
    const bool gated = c_.activation == ops::Activation::swiglu;
    for (Row& row : x) {
      Row h = linear(name + ".feed_forward.input", norm(name + ".feed_forward_norm", row),
                     gated ? 2 * hidden : hidden, c_.bias);
      for (std::size_t i = 0; i < static_cast<std::size_t>(hidden); ++i)
        h[i] = gated ? silu(h[i]) * h[i + static_cast<std::size_t>(hidden)] : gelu(h[i]);
      h.resize(static_cast<std::size_t>(hidden));
      add(row, linear(name + ".feed_forward.output", h, width, c_.bias));
    }
  }

  GptConfig c_;
  Tape tape_;
  std::map<std::string, int> first_;
  int total_ = 0;
};

/// Loshchilov & Hutter with decoupled decay, after clipping to `max_norm`. Returns the norm.
struct AdamW {
  double beta1, beta2, epsilon, decay;
  Values m, v;

  double update(Values& weights, const Values& gradients,
                const std::map<std::string, bool>& decayed, double rate, double max_norm, int t) {
    double square = 0;
    for (const auto& [name, g] : gradients)
      for (const double x : g) square += x * x;
    const double norm = std::sqrt(square), factor = std::min(1.0, max_norm / (norm + 1e-6));
    for (auto& [name, w] : weights) {
      auto &m1 = m[name], &v1 = v[name];
      m1.resize(w.size()), v1.resize(w.size());
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double g = factor * gradients.at(name)[i];
        m1[i] = beta1 * m1[i] + (1 - beta1) * g;
        v1[i] = beta2 * v1[i] + (1 - beta2) * g * g;
        const double mean = m1[i] / (1 - std::pow(beta1, t)),
                     root = v1[i] / (1 - std::pow(beta2, t));
        if (decayed.at(name)) w[i] -= rate * decay * w[i];
        w[i] -= rate * mean / (std::sqrt(root) + epsilon);
      }
    }
    return norm;
  }
};

}  // namespace choir::naive
