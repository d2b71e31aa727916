#include "choir/train/bench_shapes.hpp"

#include <fmt/core.h>

#include <cmath>
#include <functional>

#include "choir/core/clock.hpp"
#include "choir/core/philox.hpp"
#include "choir/ops/attention.hpp"
#include "choir/ops/gemm.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/train/bench_step.hpp"

namespace choir {
namespace {

/// Tensors of random numbers, as many as a row needs.
class Tensors {
 public:
  explicit Tensors(Device& device) : device_(&device), stream_(device) {}
  const Stream& stream() const { return stream_; }
  TensorView empty(DType dtype, const Shape& shape) {
    TensorView view{nullptr, dtype, shape};
    buffers_.emplace_back(*device_, std::max<std::size_t>(view.bytes(), 64));
    view.data = buffers_.back().data();
    return view;
  }
  /// Uniform in [-1, 1): zeros would run faster than any real data.
  TensorView random(DType dtype, const Shape& shape) {
    const std::int64_t n = shape.count();
    const TensorView noise = empty(DType::f32, {n}), result = empty(dtype, shape);
    const PhiloxKey key = philox_key(++seed_, "bench shapes");
    auto* values = noise.as<float>();
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < n; i += 4) {
      const PhiloxBlock block = philox_at(key, static_cast<std::uint64_t>(i));
      for (std::int64_t j = 0; j < 4 && i + j < n; ++j)
        values[i + j] = static_cast<float>(2 * uniform01(block[static_cast<std::size_t>(j)]) - 1);
    }
    ops::cast(stream_, noise, result.reshaped({n}));
    return result;
  }

 private:
  Device* device_;
  Stream stream_;
  std::vector<Buffer> buffers_;
  std::uint64_t seed_ = 0;
};

double median_seconds(double budget, const std::function<void()>& call) {
  call();
  std::vector<double> times;
  for (double spent = 0; times.size() < 5 || (spent < budget && times.size() < 10000);) {
    const double start = now_seconds();
    call();
    times.push_back(now_seconds() - start);
    spent += times.back();
  }
  return median_of(std::move(times));
}

void add_linear(std::vector<StepGemm>& list, const std::string& name, std::int64_t rows,
                std::int64_t in, std::int64_t out, std::int64_t calls) {
  list.push_back({.name = name + " forward",
                  .m = rows,
                  .n = out,
                  .k = in,
                  .transpose_b = true,
                  .calls = calls});
  list.push_back({.name = name + " d_input", .m = rows, .n = in, .k = out, .calls = calls});
  list.push_back({.name = name + " d_weight",
                  .m = out,
                  .n = in,
                  .k = rows,
                  .transpose_a = true,
                  .to_master = true,
                  .calls = calls});
}

ops::AttentionOperand heads_of(const TensorView& packed, std::int64_t tokens, std::int64_t width,
                               std::int64_t first) {
  auto* data = static_cast<std::byte*>(packed.data) +
               static_cast<std::size_t>(first) * size_of(packed.dtype);
  return {.data = data, .batch_stride = tokens * width, .position_stride = width};
}

}  // namespace

std::vector<StepGemm> gemms_of(const GptConfig& c, std::int64_t rows) {
  std::vector<StepGemm> list;
  add_linear(list, "qkv", rows, c.n_embd, c.head_width() * (c.n_head + 2 * c.n_kv_head), c.n_layer);
  add_linear(list, "attention output", rows, c.n_embd, c.n_embd, c.n_layer);
  add_linear(list, "feed-forward up", rows, c.n_embd,
             c.ffn_width * ops::activation_inputs(c.activation), c.n_layer);
  add_linear(list, "feed-forward down", rows, c.ffn_width, c.n_embd, c.n_layer);
  add_linear(list, "head", rows, c.n_embd, c.vocab_size, 1);
  return list;
}

std::vector<ShapeRow> bench_gemms(Device& device, const GptConfig& config,
                                  const Precision& precision, std::int64_t sequences,
                                  double seconds) {
  std::vector<ShapeRow> rows;
  for (const StepGemm& g : gemms_of(config, sequences * config.block_size)) {
    Tensors tensors(device);
    const Shape a = g.transpose_a ? Shape{g.k, g.m} : Shape{g.m, g.k};
    const Shape b = g.transpose_b ? Shape{g.n, g.k} : Shape{g.k, g.n};
    const TensorView left = tensors.random(precision.compute, a),
                     right = tensors.random(precision.compute, b);
    const TensorView out =
        tensors.empty(g.to_master ? precision.gradient : precision.compute, {g.m, g.n});
    const double each = median_seconds(seconds, [&] {
      ops::gemm(tensors.stream(), left, right, out,
                {.transpose_a = g.transpose_a, .transpose_b = g.transpose_b});
    });
    rows.push_back({.name = g.name,
                    .shape = fmt::format("{} x {} x {}", g.m, g.n, g.k),
                    .calls = g.calls,
                    .seconds = each,
                    .flops = g.flops()});
  }
  return rows;
}

std::vector<ShapeRow> bench_attention(Device& device, const GptConfig& c,
                                      const Precision& precision, std::int64_t sequences,
                                      double seconds) {
  Tensors tensors(device);
  const Stream& stream = tensors.stream();
  const std::int64_t t = c.block_size, d = c.head_width();
  const std::int64_t width = (c.n_head + 2 * c.n_kv_head) * d,
                     value_at = (c.n_head + c.n_kv_head) * d;
  const ops::AttentionProblem problem{.batch = sequences,
                                      .heads = c.n_head,
                                      .kv_heads = c.n_kv_head,
                                      .head_width = d,
                                      .queries = t,
                                      .keys = t,
                                      .scale = 1 / std::sqrt(static_cast<double>(d)),
                                      .dtype = precision.compute};
  const TensorView qkv = tensors.random(precision.compute, {sequences * t, width});
  const TensorView d_qkv = tensors.empty(precision.compute, {sequences * t, width});
  const TensorView out = tensors.empty(precision.compute, {sequences * t, c.n_embd});
  const TensorView d_out = tensors.random(precision.compute, {sequences * t, c.n_embd});
  const TensorView sums = tensors.empty(precision.statistic, {sequences, c.n_head, t});
  const auto scratch = [&](bool backward) {
    return tensors.empty(DType::u8, {std::max<std::int64_t>(
                                        1, ops::attention_workspace(stream, problem, backward))});
  };
  const ops::AttentionForward forward{.problem = problem,
                                      .q = heads_of(qkv, t, width, 0),
                                      .k = heads_of(qkv, t, width, c.n_head * d),
                                      .v = heads_of(qkv, t, width, value_at),
                                      .out = heads_of(out, t, c.n_embd, 0),
                                      .log_sum_exp = sums,
                                      .workspace = scratch(false)};
  const ops::AttentionBackward backward{.problem = problem,
                                        .q = forward.q,
                                        .k = forward.k,
                                        .v = forward.v,
                                        .out = forward.out,
                                        .d_out = heads_of(d_out, t, c.n_embd, 0),
                                        .log_sum_exp = sums,
                                        .d_q = heads_of(d_qkv, t, width, 0),
                                        .d_k = heads_of(d_qkv, t, width, c.n_head * d),
                                        .d_v = heads_of(d_qkv, t, width, value_at),
                                        .workspace = scratch(true)};
  const double pairs =
      static_cast<double>(sequences * c.n_head) * static_cast<double>(t * (t + 1) / 2);
  const std::string shape =
      fmt::format("B {} H {}/{} T {} D {}", sequences, c.n_head, c.n_kv_head, t, d);
  const auto row = [&](const char* name, double flops, const std::function<void()>& call) {
    return ShapeRow{name, shape, c.n_layer, median_seconds(seconds, call),
                    flops * static_cast<double>(d) * pairs};
  };
  return {row("attention forward", 4, [&] { ops::attention_forward(stream, forward); }),
          row("attention backward", 10, [&] { ops::attention_backward(stream, backward); })};
}

}  // namespace choir
