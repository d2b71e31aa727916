// Gradients of the ops between a FastConformer's products, compared with differences: the ops are
// joined until they form one function.
#include "kernels/attention/attention.hpp"
#include "kernels/norm/norm.hpp"
#include "kernels/relative_attention/relative_attention.hpp"
#include "kernels/stochastic_depth/stochastic_depth.hpp"
#include "test/support/gradcheck.hpp"

namespace choir::test {
namespace {

HostTensor zeros(const Shape& shape) {
  return HostTensor::filled(DType::f64, shape, 0);
}
HostTensor normal(const Shape& shape, std::uint64_t seed) {
  return HostTensor::normal(DType::f64, shape, seed);
}

/// softmax((q + u) k scale + shifted((q + v) r scale)) v of packed rows, and its backward; the two
/// products with r are written out.
class RelativeLayer {
 public:
  RelativeLayer(std::int64_t heads, std::int64_t tokens, std::int64_t width,
                const ops::AttentionContext& context)
      : heads_(heads),
        tokens_(tokens),
        width_(width),
        context_(context),
        lengths_{static_cast<std::int32_t>(tokens), static_cast<std::int32_t>(tokens - 1)},
        shifted_(zeros({heads, rows(), width})),
        scores_(zeros({heads, rows(), distances()})),
        out_(zeros({rows(), heads * width})),
        sums_(zeros({kBatch, heads, tokens})) {
    const std::int64_t all = heads * width;
    qkv = normal({rows(), 3 * all}, 1), u = normal({heads, width}, 2);
    v = normal({heads, width}, 3), r = normal({heads, distances(), width}, 4);
    d_out_ = normal({rows(), all}, 5);
    d_qkv = zeros(qkv.shape()), d_u = zeros(u.shape()), d_v = d_u, d_r = zeros(r.shape());
  }

  double loss() {
    packed_ = qkv;  // relative_queries() adds u in place
    ops::relative_queries(cpu_.stream, {packed_, u, v, shifted_, scale()});
    each_score([&](std::int64_t h, std::int64_t n, std::int64_t k, std::int64_t at) {
      double sum = 0;
      for (std::int64_t d = 0; d < width_; ++d)
        sum += shifted_[(h * rows() + n) * width_ + d] * r[(h * distances() + k) * width_ + d];
      scores_.set(at, sum);
    });
    ops::mask_scores(cpu_.stream, context_,
                     TensorView(scores_).reshaped({heads_ * kBatch, tokens_, distances()}));
    HostTensor space = workspace(false);
    ops::AttentionForward f{.problem = problem(), .q = heads_of(packed_, 0)};
    f.k = heads_of(packed_, 1), f.v = heads_of(packed_, 2), f.out = heads_of(out_, 0);
    f.log_sum_exp = sums_, f.workspace = space, f.bias = bias();
    ops::attention_forward(cpu_.stream, f);
    return dot(out_, d_out_);
  }

  /// Must be called after loss().
  void gradients() {
    HostTensor d_bias(DType::f64, {kBatch, heads_, tokens_, tokens_}),
        d_scores(DType::f64, {heads_, kBatch, tokens_, distances()}), space = workspace(true);
    ops::AttentionBackward b{.problem = problem(), .q = heads_of(packed_, 0)};
    b.k = heads_of(packed_, 1), b.v = heads_of(packed_, 2), b.out = heads_of(out_, 0);
    b.d_out = heads_of(d_out_, 0), b.log_sum_exp = sums_, b.d_q = heads_of(d_qkv, 0);
    b.d_k = heads_of(d_qkv, 1), b.d_v = heads_of(d_qkv, 2);
    b.workspace = space, b.bias = bias(), b.d_bias = d_bias;
    ops::attention_backward(cpu_.stream, b);
    ops::unshift_scores(cpu_.stream, d_bias, d_scores);
    HostTensor d_shifted = zeros(shifted_.shape());
    each_score([&](std::int64_t h, std::int64_t n, std::int64_t k, std::int64_t at) {
      for (std::int64_t d = 0; d < width_; ++d) {
        const std::int64_t q = (h * rows() + n) * width_ + d,
                           p = (h * distances() + k) * width_ + d;
        d_shifted.set(q, d_shifted[q] + d_scores[at] * r[p]);
        d_r.set(p, d_r[p] + d_scores[at] * shifted_[q]);
      }
    });
    const std::int64_t bytes =
        ops::relative_queries_workspace(cpu_.stream, rows(), heads_ * width_);
    HostTensor sums(DType::u8, {std::max<std::int64_t>(1, bytes)});
    ops::relative_queries_backward(cpu_.stream, {d_qkv, d_shifted, d_u, d_v, sums, scale()});
  }

  HostTensor qkv, u, v, r, d_qkv, d_u, d_v, d_r;

 private:
  static constexpr std::int64_t kBatch = 2;
  std::int64_t rows() const { return kBatch * tokens_; }
  std::int64_t distances() const { return 2 * tokens_ - 1; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(width_)); }
  template <class Score>
  void each_score(const Score& score) const {
    for (std::int64_t h = 0; h < heads_; ++h)
      for (std::int64_t n = 0; n < rows(); ++n)
        for (std::int64_t k = 0; k < distances(); ++k)
          score(h, n, k, (h * rows() + n) * distances() + k);
  }
  ops::AttentionProblem problem() const {
    return {.batch = kBatch,
            .heads = heads_,
            .kv_heads = heads_,
            .head_width = width_,
            .queries = tokens_,
            .keys = tokens_,
            .causal = false,
            .scale = scale(),
            .dtype = DType::f64,
            .lengths = lengths_,
            .biased = true};
  }
  ops::AttentionOperand heads_of(const TensorView& packed, std::int64_t third) const {
    const std::int64_t row = packed.shape.back();
    return {.data = packed.as<double>() + third * heads_ * width_,
            .batch_stride = tokens_ * row,
            .position_stride = row};
  }
  ops::AttentionBias bias() const {
    const std::int64_t matrix = tokens_ * distances();
    return {.data = TensorView(scores_).as<double>() + tokens_ - 1,
            .batch_stride = matrix,
            .head_stride = kBatch * matrix,
            .query_stride = distances() - 1};
  }
  HostTensor workspace(bool backward) const {
    return {
        DType::u8,
        {std::max<std::int64_t>(1, ops::attention_workspace(cpu_.stream, problem(), backward))}};
  }

  CpuBench cpu_;
  std::int64_t heads_, tokens_, width_;
  ops::AttentionContext context_;
  std::int32_t lengths_[kBatch];
  HostTensor packed_, shifted_, scores_, out_, sums_, d_out_;
};

TEST(RelativeAttention, GradientsAgreeWithFiniteDifferences) {
  for (const ops::AttentionContext& context :
       {ops::AttentionContext{}, ops::AttentionContext{.left = 2, .right = 1},
        ops::AttentionContext{.left = 1, .chunk = 2}}) {
    SCOPED_TRACE(fmt::format("context {} {} {}", context.left, context.right, context.chunk));
    RelativeLayer layer(2, 5, 3, context);
    const auto loss = [&] { return layer.loss(); };
    loss();
    layer.gradients();
    expect_gradient(layer.d_qkv, layer.qkv, loss, "relative attention to q, k, v");
    expect_gradient(layer.d_u, layer.u, loss, "relative attention to u");
    expect_gradient(layer.d_v, layer.v, loss, "relative attention to v");
    expect_gradient(layer.d_r, layer.r, loss, "relative attention to positions");
  }
}

TEST(RelativeAttention, GradientsAlongRandomDirections) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    RelativeLayer layer(3, 40, 20, {.left = 17, .right = 9});
    const auto loss = [&] { return layer.loss(); };
    loss();
    layer.gradients();
    expect_directional(layer.d_qkv, layer.qkv, seed, loss, "relative attention to q, k, v");
    expect_directional(layer.d_u, layer.u, seed, loss, "relative attention to u");
    expect_directional(layer.d_v, layer.v, seed, loss, "relative attention to v");
    expect_directional(layer.d_r, layer.r, seed, loss, "relative attention to positions");
  }
}

// Softmax does not depend on a constant that is added for all keys, so gradients add up to 0 over
// distances, and over the keys of an utterance; the rest is the rounding of their terms, 2 T for
// each.
TEST(RelativeAttention, AConstantOverDistancesOrKeysHasNoGradient) {
  constexpr std::int64_t kHeads = 2, kTokens = 30, kWidth = 8, kDistances = 2 * kTokens - 1;
  RelativeLayer layer(kHeads, kTokens, kWidth, {.left = 11});
  layer.loss();
  layer.gradients();
  const auto expect_none = [](std::int64_t count, const auto& element) {
    double sum = 0, size = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += element(i), size += std::abs(element(i));
    EXPECT_GT(size, 0.1);
    EXPECT_LE(std::abs(sum), 2 * kDistances * 0x1p-53 * size);
  };
  for (std::int64_t c = 0; c < kHeads * kWidth; ++c) {
    expect_none(kDistances, [&](std::int64_t k) {
      return layer.d_r[(c / kWidth * kDistances + k) * kWidth + c % kWidth];
    });
    for (const std::int64_t first : {std::int64_t{0}, kTokens})  // of both utterances
      expect_none(kTokens, [&](std::int64_t t) {
        return layer.d_qkv[(3 * (first + t) + 1) * kHeads * kWidth + c];
      });
  }
}

/// The norm over channels of two ranks, and each rank's share of its backward.
class SplitLayer {
 public:
  SplitLayer(std::int64_t rows, std::int64_t width, ops::Norm kind = ops::Norm::layernorm)
      : rows_(rows), width_(width), kind_(kind) {
    for (std::uint64_t k = 0; k < kRanks; ++k) {
      x.push_back(normal({rows, width}, 10 * k + 1));
      weight.push_back(normal({width}, 10 * k + 2)), bias.push_back(normal({width}, 10 * k + 3));
      d_out_.push_back(normal({rows, width}, 10 * k + 4));
      d_x.push_back(zeros({rows, width}));
      d_weight.push_back(zeros({width})), d_bias.push_back(zeros({width}));
    }
  }

  double loss() {
    double sum = 0;
    const TensorView moments = moments_of();
    for (std::size_t k = 0; k < kRanks; ++k) {
      HostTensor out(DType::f64, x[k].shape());
      ops::split_norm_forward(cpu_.stream, {x[k], moments, weight[k], bias[k], out, mean_, rstd_});
      sum += dot(out, d_out_[k]);
    }
    return sum;
  }

  /// Must be called after loss().
  void gradients() {
    HostTensor total = zeros({rows_, 2});
    for (std::size_t k = 0; k < kRanks; ++k) {
      HostTensor own(DType::f64, {rows_, 2});
      ops::split_norm_sums(cpu_.stream, arguments(k, own));
      for (std::int64_t i = 0; i < 2 * rows_; ++i) total.set(i, total[i] + own[i]);
    }
    for (std::size_t k = 0; k < kRanks; ++k)
      ops::split_norm_backward(cpu_.stream, arguments(k, total));
  }

  static constexpr std::size_t kRanks = 2;
  std::vector<HostTensor> x, weight, bias, d_x, d_weight, d_bias;

 private:
  TensorView moments_of() {
    moments_ = zeros({kRanks, rows_, 2});
    for (std::size_t k = 0; k < kRanks; ++k)
      ops::split_norm_moments(
          cpu_.stream, x[k],
          TensorView(moments_).slice(static_cast<std::int64_t>(k), 1).reshaped({rows_, 2}), kind_);
    return moments_;
  }
  ops::SplitNormBackward arguments(std::size_t k, const HostTensor& sums) {
    space_ = HostTensor(DType::u8, {std::max<std::int64_t>(
                                       1, ops::split_norm_workspace(cpu_.stream, rows_, width_))});
    return {d_out_[k],
            x[k],
            weight[k],
            mean_,
            rstd_,
            sums,
            static_cast<std::int64_t>(kRanks) * width_,
            d_x[k],
            d_weight[k],
            d_bias[k],
            space_,
            kind_};
  }

  CpuBench cpu_;
  std::int64_t rows_, width_;
  ops::Norm kind_;
  std::vector<HostTensor> d_out_;
  HostTensor moments_, mean_ = zeros({rows_}), rstd_ = zeros({rows_}), space_;
};

TEST(SplitNorm, GradientsAgreeWithFiniteDifferences) {
  for (const auto& [width, kind] : {std::pair<std::int64_t, ops::Norm>{3, ops::Norm::layernorm},
                                    {17, ops::Norm::layernorm},
                                    {5, ops::Norm::rmsnorm}}) {
    SplitLayer layer(4, width, kind);
    const auto loss = [&] { return layer.loss(); };
    loss();
    layer.gradients();
    for (std::size_t k = 0; k < SplitLayer::kRanks; ++k) {
      SCOPED_TRACE(fmt::format("rank {}, {} channels", k, width));
      expect_gradient(layer.d_x[k], layer.x[k], loss, "split norm to x");
      expect_gradient(layer.d_weight[k], layer.weight[k], loss, "split norm to weight");
      expect_gradient(layer.d_bias[k], layer.bias[k], loss, "split norm to bias");
    }
  }
}

TEST(SplitNorm, GradientsAlongRandomDirections) {
  SplitLayer layer(60, 65);
  const auto loss = [&] { return layer.loss(); };
  loss();
  layer.gradients();
  for (const std::uint64_t seed : {11, 12})
    for (std::size_t k = 0; k < SplitLayer::kRanks; ++k) {
      expect_directional(layer.d_x[k], layer.x[k], seed, loss, "split norm to x");
      expect_directional(layer.d_weight[k], layer.weight[k], seed, loss, "split norm to weight");
    }
}

TEST(StochasticDepth, GradientsAgreeWithDifferences) {
  CpuBench cpu;
  constexpr std::int64_t kTokens = 3, kRows = 8 * kTokens, kWidth = 7;
  const ops::StochasticDepth args{
      .probability = 0.4, .key = philox_key(5, "depth"), .tokens = kTokens};
  HostTensor x = normal({kRows, kWidth}, 1), f = normal({kRows, kWidth}, 2),
             out(DType::f64, x.shape()), d_x(DType::f64, x.shape()), d_f(DType::f64, x.shape());
  const HostTensor d_out = normal({kRows, kWidth}, 3);
  const auto loss = [&] {
    ops::stochastic_depth_forward(cpu.stream, args, x, f, out);
    return dot(out, d_out);
  };
  ops::stochastic_depth_backward(cpu.stream, args, d_out, d_f, d_x);
  expect_gradient(d_x, x, loss, "stochastic depth to x");
  expect_gradient(d_f, f, loss, "stochastic depth to the layer");
  for (const std::uint64_t seed : {11, 12}) {
    expect_directional(d_x, x, seed, loss, "stochastic depth to x");
    expect_directional(d_f, f, seed, loss, "stochastic depth to the layer");
  }
}

}  // namespace
}  // namespace choir::test
