// Benches of sums over rows, flat maps and the optimizer, against their references.
#include <algorithm>
#include <cmath>

#include "kernels/bench/op_bench.hpp"
#include "kernels/copy/copy.hpp"
#include "kernels/fused_bias/fused_bias.hpp"
#include "kernels/sums/sums.hpp"
#include "kernels/update/adamw.hpp"

namespace choir::ops {
namespace {

constexpr std::int64_t kChunk = 4096;  // rows at a time, to limit the memory of the reference

void bias_gradients(OpBench& bench) {
  const std::int64_t rows = bench.shape.rows, width = bench.shape.width;
  BenchOperands data = bench.operands(static_cast<double>(rows * width));
  const Operand d_y = data.normal(bench.dtype, {rows, width}),
                d_bias = data.normal(bench.sums, {width});
  const Operand workspace = data.empty(
      DType::u8, {std::max<std::int64_t>(1, bias_gradient_workspace(bench.stream, rows, width))});
  const auto call = [&](const Stream& s, std::int64_t i) {
    bias_gradient(s, d_y[i], d_bias[i], workspace[i]);
  };
  call(bench.stream, 0);
  std::vector<double> sums = d_bias.exact(0, width);
  for (std::int64_t first = 0; first < rows; first += kChunk) {
    const std::int64_t count = std::min(kChunk, rows - first);
    std::vector<double> part = d_y.exact(first * width, count * width);
    ref::bias_gradient(view_of(part, {count, width}), view_of(sums, {width}));
  }
  Agreement agreement;
  agreement.add(data.read(d_bias[0]), sums, allowed_error(bench.sums, static_cast<double>(rows)));
  bench.row("bias_gradient", {rows, width}, agreement, call);
}

/// A gradient of rows with the sums of a bias, `gradient(stream, d_y, d_x, bias)`, and the name of
/// its row. The sums are checked against the gradient as it is stored.
template <class Gradient>
void gradient_with_bias(OpBench& bench, const char* name, const Gradient& gradient) {
  const std::int64_t rows = bench.shape.rows, width = bench.shape.width;
  BenchOperands data = bench.operands(3 * static_cast<double>(rows * width));
  const Operand x = data.normal(bench.dtype, {rows, width}),
                d_y = data.normal(bench.dtype, {rows, width}),
                d_x = data.empty(bench.dtype, {rows, width}),
                d_bias = data.normal(bench.sums, {width});
  const Operand workspace = data.empty(
      DType::u8, {std::max<std::int64_t>(1, bias_gradient_workspace(bench.stream, rows, width))});
  const auto call = [&](const Stream& s, std::int64_t i) {
    gradient(s, x[i], d_y[i], d_x[i], BiasSums{.d_bias = d_bias[i], .workspace = workspace[i]});
  };
  call(bench.stream, 0);
  std::vector<double> sums = d_bias.exact(0, width);
  for (std::int64_t first = 0; first < rows; first += kChunk) {
    const std::int64_t count = std::min(kChunk, rows - first);
    std::vector<double> part = data.read(d_x[0], first * width, count * width);
    ref::bias_gradient(view_of(part, {count, width}), view_of(sums, {width}));
  }
  Agreement agreement;
  agreement.add(data.read(d_bias[0]), sums, allowed_error(bench.sums, static_cast<double>(rows)));
  bench.row(name, {rows, width}, agreement, call);
}

void gradients_with_bias(OpBench& bench) {
  gradient_with_bias(
      bench, "silu_backward+bias",
      [](const Stream& s, const TensorView& x, const TensorView& d_y, const TensorView& d_x,
         const BiasSums& bias) { activation_backward(s, Activation::silu, x, d_y, d_x, bias); });
  const std::int64_t tokens = bench.shape.tokens;
  gradient_with_bias(
      bench, "dropout+bias",
      [tokens](const Stream& s, const TensorView&, const TensorView& d_y, const TensorView& d_x,
               const BiasSums& bias) {
        Dropout args{.in = d_y, .out = d_x, .probability = 0.1, .key = philox_key(1, "bench")};
        args.tokens = tokens;
        dropout(s, args, bias);
      });
}

void adds(OpBench& bench) {
  const std::int64_t n = bench.shape.rows * bench.shape.width;
  BenchOperands data = bench.operands(3.0 * static_cast<double>(n));
  const Operand a = data.normal(bench.dtype, {n}), b = data.normal(bench.dtype, {n}),
                out = data.empty(bench.dtype, {n});
  const auto call = [&](const Stream& s, std::int64_t i) { add(s, a[i], b[i], out[i]); };
  call(bench.stream, 0);
  Agreement agreement;
  for (const Window w : windows_of(n)) {
    std::vector<double> sum = a.exact(w.first, w.count);
    const std::vector<double> other = b.exact(w.first, w.count);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    agreement.add(data.read(out[0], w.first, w.count), sum, allowed_error(bench.dtype, 2));
  }
  bench.row("add", {n}, agreement, call);
}

/// Copies rows of `parts` blocks to a block of rows per part, as heads are redistributed over the
/// ranks of the context axis; with two terms, pairs of blocks are added during the copy.
void block_copies(OpBench& bench, std::int64_t terms, const char* name) {
  const std::int64_t rows = bench.shape.rows, width = bench.shape.width;
  const std::int64_t parts = width % 4 == 0 ? 4 : terms, block = width / parts;
  const std::int64_t targets = parts / terms;
  BenchOperands data = bench.operands(2.0 * static_cast<double>(rows * width));
  const Operand x = data.normal(bench.dtype, {rows, width}),
                out = data.empty(bench.dtype, {targets, rows, block});
  const auto call = [&](const Stream& s, std::int64_t i) {
    copy_blocks(s,
                {.dtype = bench.dtype,
                 .rows = rows,
                 .blocks = targets,
                 .width = block,
                 .terms = terms,
                 .from = {.data = x[i].data, .row_stride = width, .group_stride = block},
                 .to = {.data = out[i].data, .row_stride = block, .group_stride = rows * block}});
  };
  call(bench.stream, 0);
  Agreement agreement;
  for (const Window w : windows_of(rows, rows)) {
    const std::vector<double> from = x.exact(w.first * width, w.count * width);
    for (std::int64_t k = 0; k < targets; ++k) {
      std::vector<double> sums;
      for (std::int64_t e = 0; e < w.count * block; ++e) {
        double sum = 0;
        for (std::int64_t t = 0; t < terms; ++t)
          sum += from[static_cast<std::size_t>(e / block * width + (k * terms + t) * block +
                                               e % block)];
        sums.push_back(sum);
      }
      agreement.add(data.read(out[0], (k * rows + w.first) * block, w.count * block), sums,
                    allowed_error(bench.dtype, terms == 1 ? 0 : 2));
    }
  }
  bench.row(name, {rows, width}, agreement, call);
}

void casts(OpBench& bench, DType from, DType to, const char* name) {
  const std::int64_t n = bench.shape.rows * bench.shape.width;
  BenchOperands data = bench.operands(2.0 * static_cast<double>(n));
  const Operand x = data.normal(from, {n}), y = data.empty(to, {n});
  const auto call = [&](const Stream& s, std::int64_t i) { cast(s, x[i], y[i]); };
  call(bench.stream, 0);
  Agreement agreement;
  for (const Window w : windows_of(n))
    agreement.add(data.read(y[0], w.first, w.count), x.exact(w.first, w.count),
                  allowed_error(to, 0));
  bench.row(name, {n}, agreement, call);
}

void sums_of_squares(OpBench& bench) {
  const std::int64_t n = bench.shape.parameters, chunks = (n + kNormChunk - 1) / kNormChunk;
  BenchOperands data = bench.operands(static_cast<double>(n));
  const Operand x = data.normal(DType::f32, {n}), partials = data.empty(DType::f64, {chunks});
  const auto call = [&](const Stream& s, std::int64_t i) { sum_of_squares(s, x[i], partials[i]); };
  call(bench.stream, 0);
  Agreement agreement;
  for (const std::int64_t chunk : {std::int64_t{0}, chunks / 2, chunks - 1}) {
    const std::int64_t first = chunk * kNormChunk, count = std::min(kNormChunk, n - first);
    std::vector<double> part = x.exact(first, count), sum(1);
    ref::sum_of_squares(view_of(part, {count}), view_of(sum, {1}));
    // The reference adds one by one: each addition of positive numbers may be wrong by half a unit.
    agreement.add(data.read(partials[0], chunk, 1), sum, 0x1p-53 * static_cast<double>(count));
  }
  bench.row("sum_of_squares", {n}, agreement, call);
}

/// AdamW with masters of `type`, and with a copy in the bench's own type if that is different.
void adamws(OpBench& bench, DType type, const char* name) {
  const std::int64_t n = bench.shape.parameters;
  const bool copies = type != bench.dtype;
  BenchOperands data = bench.operands(7.0 * static_cast<double>(n));
  const Operand master = data.normal(type, {n}), gradient = data.normal(DType::f32, {n}),
                m = data.normal(DType::f32, {n}), v = data.positive(DType::f32, {n});
  const Operand copy = copies ? data.empty(bench.dtype, {n}) : Operand();
  AdamW settings{.decay = 0.1};
  const double steps = 3;
  const StepControl applied{.learning_rate = 1e-2,
                            .apply = 1,
                            .gradient_factor = 1,
                            .correction1 = 1 - std::pow(settings.beta1, steps),
                            .correction2 = 1 - std::pow(settings.beta2, steps),
                            .updates = 3};
  const Operand control = data.empty(DType::u8, {sizeof applied});
  for (std::int64_t s = 0; s < data.sets(); ++s)
    data.device().copy_from_host(control[s].data, &applied, sizeof applied);
  const auto call = [&](const Stream& s, std::int64_t i) {
    AdamW a = settings;
    a.master = master[i], a.gradient = gradient[i], a.m = m[i], a.v = v[i];
    if (copies) a.copy = copy[i];
    a.control = static_cast<const StepControl*>(control[i].data);
    adamw(s, a);
  };
  call(bench.stream, 0);
  Agreement agreement;
  for (const Window w : windows_of(n)) {
    std::vector<double> ew = master.exact(w.first, w.count), eg = gradient.exact(w.first, w.count),
                        em = m.exact(w.first, w.count), ev = v.exact(w.first, w.count);
    AdamW e = settings;
    e.master = view_of(ew, {w.count}), e.gradient = view_of(eg, {w.count});
    e.m = view_of(em, {w.count}), e.v = view_of(ev, {w.count}), e.control = &applied;
    ref::adamw(e);
    // Masters in bf16 are rounded at random: at most 0.41 of twice a unit in the mean square.
    agreement.add(data.read(master[0], w.first, w.count), ew, allowed_error(type, 0));
    agreement.add(data.read(m[0], w.first, w.count), em, allowed_error(DType::f32, 0));
    agreement.add(data.read(v[0], w.first, w.count), ev, allowed_error(DType::f32, 0));
    if (copies)
      agreement.add(data.read(copy[0], w.first, w.count), ew, allowed_error(bench.dtype, 0));
  }
  bench.row(name, {n}, agreement, call);
}

}  // namespace

void bench_flat(OpBench& bench) {
  bias_gradients(bench);
  gradients_with_bias(bench);
  adds(bench);
  block_copies(bench, 1, "copy_blocks");
  block_copies(bench, 2, "copy_blocks+add");
  if (bench.dtype != DType::f32) {
    casts(bench, DType::f32, bench.dtype, "cast from f32");
    casts(bench, bench.dtype, DType::f32, "cast to f32");
  }
  if (bench.shape.parameters == 0) return;
  if (bench.dtype == DType::f32) sums_of_squares(bench);
  adamws(bench, DType::f32, bench.dtype == DType::f32 ? "adamw" : "adamw+copy");
  if (bench.dtype == DType::bf16) adamws(bench, DType::bf16, "adamw bf16 masters");
}

}  // namespace choir::ops
