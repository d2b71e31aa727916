#include "choir/ops/bench_ops.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/core/clock.hpp"
#include "choir/core/philox.hpp"
#include "choir/ops/reduce.hpp"
#include "kernels/activation.hpp"
#include "kernels/adamw.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/dropout.hpp"
#include "kernels/embedding.hpp"
#include "kernels/norm.hpp"
#include "kernels/reduce.hpp"
#include "kernels/rope.hpp"
#include "src/ops/dispatch.hpp"

namespace choir::ops {
namespace {

/// Owns the tensors of one row and measures it.
class Bench {
 public:
  Bench(const Bench&) = delete;  // the stream points into it
  Bench(Device& device, double seconds, std::vector<BenchRow>& rows)
      : device_(&device), stream_(device, &work_), seconds_(seconds), rows_(&rows) {}

  const Stream& stream() const { return stream_; }
  TensorView empty(DType dtype, const Shape& shape) {
    TensorView x{nullptr, dtype, shape};
    buffers_.emplace_back(*device_, std::max<std::size_t>(x.bytes(), 64));
    x.data = buffers_.back().data();
    return x;
  }
  /// Uniform in [-1.7, 1.7): variance one.
  TensorView random(DType dtype, const Shape& shape) {
    const TensorView noise = empty(DType::f32, shape), x = empty(dtype, shape);
    const PhiloxKey key = philox_key(1, "bench");
    const std::uint64_t offset = ++seed_ << 40;
    const std::int64_t n = shape.count();
    auto* values = noise.as<float>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < n; i += 4) {
      const PhiloxBlock words = philox_at(key, offset + static_cast<std::uint64_t>(i));
      for (std::int64_t j = 0; j < 4 && i + j < n; ++j)
        values[i + j] =
            static_cast<float>(3.4 * uniform01(words[static_cast<std::size_t>(j)]) - 1.7);
    }
    cast(stream_, noise, x);
    return x;
  }
  TensorView integers(std::int64_t n, std::int64_t limit) {
    const TensorView x = empty(DType::i32, {n});
    const PhiloxKey key = philox_key(2, "bench");
    for (std::int64_t i = 0; i < n; ++i)
      x.as<std::int32_t>()[i] = static_cast<std::int32_t>(
          uniform01(philox_at(key, static_cast<std::uint64_t>(i))[0]) * static_cast<double>(limit));
    return x;
  }
  TensorView noise_bytes(std::int64_t n) {
    TensorView x = random(DType::f32, {n / 4 + 1});
    x.dtype = DType::u8, x.shape = Shape{n};
    return x;
  }
  TensorView exact(const TensorView& x) {
    const TensorView y = empty(DType::f64, x.shape);
    cast(stream_, x, y);
    return y;
  }
  /// Root mean square error against the root mean square: rounding is below 2^-8 (bf16), 1e-5 (f32
  /// sums).
  bool agrees(const TensorView& x, const TensorView& reference) {
    const TensorView y = exact(x);
    double error = 0, size = 0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double e = reference.as<double>()[i];
      error += (y.as<double>()[i] - e) * (y.as<double>()[i] - e), size += e * e;
    }
    return std::sqrt(error) <= (x.dtype == DType::bf16 ? 0x1p-8 : 1e-5) * std::sqrt(size);
  }

  template <class Call>
  void row(const char* op, const Shape& shape, DType dtype, bool valid, const Call& call) {
    work_ = {};
    call();
    const double bytes = work_.bytes;
    const double seconds = median(call);
    const std::int64_t half = static_cast<std::int64_t>(bytes) / 2 + 1;
    if (half != copied_) {
      copied_ = half;
      const TensorView from = noise_bytes(half), to = empty(DType::u8, {half});
      copy_seconds_ = median([&] { copy(stream_, from, to); });
    }
    rows_->push_back({op, shape, dtype, seconds, bytes / seconds, copy_seconds_ / seconds, valid});
  }

 private:
  template <class Call>
  double median(const Call& call) {
    std::vector<double> times;
    for (const double start = now_seconds();
         times.size() < 5 || now_seconds() - start < seconds_;) {
      const double before = now_seconds();
      call();
      times.push_back(now_seconds() - before);
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    return times[times.size() / 2];
  }

  Device* device_;
  WorkCounter work_;
  Stream stream_;
  double seconds_;
  std::vector<BenchRow>* rows_;
  std::vector<Buffer> buffers_;
  std::uint64_t seed_ = 0;
  std::int64_t copied_ = 0;
  double copy_seconds_ = 0;
};

void bench_norm(Bench&& b, DType dtype, std::int64_t rows, std::int64_t width) {
  const Shape shape{rows, width};
  const DType stats = sum_dtype_of(dtype);
  NormForward f;
  f.residual = b.random(dtype, shape), f.delta = b.random(dtype, shape),
  f.weight = b.random(dtype, {width});
  f.bias = b.random(dtype, {width}), f.sum = b.empty(dtype, shape), f.out = b.empty(dtype, shape);
  f.mean = b.empty(stats, {rows}), f.rstd = b.empty(stats, {rows});
  norm_forward(b.stream(), f);
  NormForward e;
  e.residual = b.exact(f.sum), e.weight = b.exact(f.weight), e.bias = b.exact(f.bias);
  e.out = b.empty(DType::f64, shape), e.mean = b.empty(DType::f64, {rows}),
  e.rstd = b.empty(DType::f64, {rows});
  ref::norm_forward(e);
  b.row("norm_forward+add", shape, dtype, b.agrees(f.out, e.out),
        [&] { norm_forward(b.stream(), f); });

  NormBackward d;
  d.d_out = b.random(dtype, shape), d.sum = f.sum, d.weight = f.weight, d.mean = f.mean,
  d.rstd = f.rstd;
  d.d_sum = b.random(dtype, shape), d.d_weight = b.random(stats, {width}),
  d.d_bias = b.random(stats, {width});
  d.workspace = b.empty(DType::u8, {norm_workspace(b.stream(), rows, width)});
  NormBackward x = d;
  x.d_out = b.exact(d.d_out), x.sum = e.residual, x.weight = e.weight, x.mean = e.mean,
  x.rstd = e.rstd;
  x.d_sum = b.exact(d.d_sum), x.d_weight = b.exact(d.d_weight), x.d_bias = b.exact(d.d_bias);
  norm_backward(b.stream(), d), ref::norm_backward(x);
  const bool valid = b.agrees(d.d_sum, x.d_sum) && b.agrees(d.d_weight, x.d_weight) &&
                     b.agrees(d.d_bias, x.d_bias);
  b.row("norm_backward", shape, dtype, valid, [&] { norm_backward(b.stream(), d); });
}

void bench_activation(Bench&& b, DType dtype, std::int64_t rows, std::int64_t width,
                      Activation kind, const char* forward, const char* backward) {
  const Shape in{rows, width * activation_inputs(kind)}, out{rows, width};
  const TensorView x = b.random(dtype, in), d_y = b.random(dtype, out);
  const TensorView y = b.empty(dtype, out), d_x = b.empty(dtype, in);
  const TensorView ey = b.empty(DType::f64, out), ed_x = b.empty(DType::f64, in);
  const auto run_forward = [&] { activation_forward(b.stream(), kind, x, y); };
  const auto run_backward = [&] { activation_backward(b.stream(), kind, x, d_y, d_x); };
  run_forward(), run_backward();
  ref::activation_forward(kind, b.exact(x), ey),
      ref::activation_backward(kind, b.exact(x), b.exact(d_y), ed_x);
  b.row(forward, out, dtype, b.agrees(y, ey), run_forward);
  b.row(backward, out, dtype, b.agrees(d_x, ed_x), run_backward);
}

void bench_rope(Bench&& b, DType dtype, std::int64_t rows, std::int64_t width) {
  Rope r;
  r.x = b.random(dtype, {rows, 3 * width}), r.head_width = 32, r.heads = 2 * width / 32,
  r.tokens = 64;
  r.table = b.empty(sum_dtype_of(dtype), {64, 32});
  rope_table(b.stream(), 10000.0, r.table);
  Rope e = r;
  e.x = b.exact(r.x);
  rope(b.stream(), r), ref::rope(e, 10000.0);
  b.row("rope", r.x.shape, dtype, b.agrees(r.x, e.x), [&] { rope(b.stream(), r); });
}

void bench_embedding(Bench&& b, DType dtype, std::int64_t rows, std::int64_t width,
                     std::int64_t vocabulary) {
  const DType sums = sum_dtype_of(dtype);
  const EmbeddingForward f{b.integers(rows, vocabulary),
                           b.random(dtype, {vocabulary, width}),
                           b.random(dtype, {64, width}),
                           64,
                           0,
                           b.empty(dtype, {rows, width})};
  const EmbeddingForward e{
      f.ids, b.exact(f.table), b.exact(f.positions), 64, 0, b.empty(DType::f64, {rows, width})};
  embedding_forward(b.stream(), f), ref::embedding_forward(e);
  b.row("embedding_forward", f.out.shape, dtype, b.agrees(f.out, e.out),
        [&] { embedding_forward(b.stream(), f); });
  const EmbeddingBackward d{f.ids, f.out, b.random(sums, {vocabulary, width}),
                            b.random(sums, {64, width}), 64};
  const EmbeddingBackward x{f.ids, b.exact(d.d_out), b.exact(d.d_table), b.exact(d.d_positions),
                            64};
  embedding_backward(b.stream(), d), ref::embedding_backward(x);
  b.row("embedding_backward", f.out.shape, dtype, b.agrees(d.d_table, x.d_table),
        [&] { embedding_backward(b.stream(), d); });
}

void bench_cross_entropy(Bench&& b, DType dtype, std::int64_t rows, std::int64_t vocabulary) {
  CrossEntropy c;
  c.logits = b.random(dtype, {rows, vocabulary}), c.targets = b.integers(rows, vocabulary);
  c.losses = b.empty(sum_dtype_of(dtype), {rows}), c.vocabulary = vocabulary;
  CrossEntropy e = c;
  e.logits = b.exact(c.logits), e.losses = b.empty(DType::f64, {rows});
  cross_entropy(b.stream(), c), ref::cross_entropy(e);
  const bool valid = b.agrees(c.losses, e.losses) && b.agrees(c.logits, e.logits);
  b.row("cross_entropy", c.logits.shape, dtype, valid, [&] { cross_entropy(b.stream(), c); });
}

void bench_flat(Bench&& b, DType dtype, std::int64_t rows, std::int64_t width) {
  Dropout d;
  d.in = b.random(dtype, {rows, width}), d.out = b.empty(dtype, {rows, width});
  d.probability = 0.1, d.key = philox_key(1, "bench"), d.tokens = 64;
  Dropout e = d;
  e.in = b.exact(d.in), e.out = b.empty(DType::f64, d.in.shape);
  dropout(b.stream(), d), ref::dropout(e);
  b.row("dropout", d.in.shape, dtype, b.agrees(d.out, e.out), [&] { dropout(b.stream(), d); });

  const TensorView sums = b.empty(sum_dtype_of(dtype), {width});
  const TensorView workspace =
      b.empty(DType::u8, {bias_gradient_workspace(b.stream(), rows, width)});
  zero(b.stream(), sums);
  const TensorView exact_sums = b.exact(sums);
  bias_gradient(b.stream(), d.in, sums, workspace), ref::bias_gradient(e.in, exact_sums);
  b.row("bias_gradient", d.in.shape, dtype, b.agrees(sums, exact_sums),
        [&] { bias_gradient(b.stream(), d.in, sums, workspace); });
}

void bench_optimizer(Bench&& b, bool with_copy, std::int64_t n) {
  AdamW a;
  a.master = b.random(DType::f32, {n}), a.gradient = b.random(DType::f32, {n});
  a.m = b.random(DType::f32, {n}), a.v = b.random(DType::f32, {n});
  if (with_copy) a.copy = b.empty(DType::bf16, {n});
  a.decay = 0.1;
  const StepControl applied{.learning_rate = 1e-4,
                            .apply = 1,
                            .gradient_factor = 1,
                            .correction1 = 1 - a.beta1,
                            .correction2 = 1 - a.beta2,
                            .updates = 1};
  const TensorView control = b.empty(DType::u8, {sizeof applied});
  b.stream().device().copy_from_host(control.data, &applied, sizeof applied);
  a.control = static_cast<const StepControl*>(control.data);
#pragma omp parallel for
  for (std::int64_t i = 0; i < n; ++i) a.v.as<float>()[i] = std::fabs(a.v.as<float>()[i]);
  const std::int64_t part = std::min<std::int64_t>(n, 100000);
  AdamW e = a;
  e.master = b.exact(a.master.slice(0, part)), e.gradient = b.exact(a.gradient.slice(0, part));
  e.m = b.exact(a.m.slice(0, part)), e.v = b.exact(a.v.slice(0, part)), e.copy = {};
  e.control = &applied;
  adamw(b.stream(), a), ref::adamw(e);
  const bool valid =
      b.agrees(a.master.slice(0, part), e.master) && b.agrees(a.v.slice(0, part), e.v);
  b.row(with_copy ? "adamw+bf16 copy" : "adamw", {n}, DType::f32, valid,
        [&] { adamw(b.stream(), a); });
  if (with_copy) return;
  const TensorView partials = b.empty(DType::f64, {(n + kNormChunk - 1) / kNormChunk});
  sum_of_squares(b.stream(), a.gradient, partials);
  const TensorView whole = a.gradient.slice(0, std::min(n, kNormChunk)),
                   first = b.empty(DType::f64, {1});
  ref::sum_of_squares(b.exact(whole), first);
  b.row("sum_of_squares", {n}, DType::f32, b.agrees(partials.slice(0, 1), first),
        [&] { sum_of_squares(b.stream(), a.gradient, partials); });
}

}  // namespace

std::vector<BenchRow> bench_ops(Device& device, const BenchShape& shape, double seconds) {
  CHOIR_CHECK(device.kind() == DeviceKind::cpu, "the op bench runs on the cpu device, not on {}",
              name_of(device.kind()));
  std::vector<BenchRow> rows;
  const auto bench = [&] { return Bench(device, seconds, rows); };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    bench_norm(bench(), dtype, shape.rows, shape.width);
    bench_activation(bench(), dtype, shape.rows, shape.hidden, Activation::gelu, "gelu_forward",
                     "gelu_backward");
    bench_activation(bench(), dtype, shape.rows, shape.hidden, Activation::gelu_tanh,
                     "gelu_tanh_forward", "gelu_tanh_backward");
    bench_activation(bench(), dtype, shape.rows, shape.hidden, Activation::swiglu, "swiglu_forward",
                     "swiglu_backward");
    bench_rope(bench(), dtype, shape.rows, shape.width);
    bench_embedding(bench(), dtype, shape.rows, shape.width, shape.vocabulary);
    bench_cross_entropy(bench(), dtype, shape.rows, shape.vocabulary);
    bench_flat(bench(), dtype, shape.rows, shape.width);
  }
  if (shape.parameters > 0) bench_optimizer(bench(), false, shape.parameters);
  if (shape.parameters > 0) bench_optimizer(bench(), true, shape.parameters);
  return rows;
}

std::string to_string(const BenchRow& row) {
  return fmt::format("{:<19} {:<14} {:<5} {:>10.1f} us {:>7.1f} GB/s {:>5.0f} % of copy  {}",
                     row.op, choir::to_string(row.shape), name_of(row.dtype), row.seconds * 1e6,
                     row.bytes_per_second * 1e-9, row.copy_fraction * 100,
                     row.valid ? "VALID" : "INVALID");
}

}  // namespace choir::ops
