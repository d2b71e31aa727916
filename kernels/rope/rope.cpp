#include "choir/ops/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/dispatch.hpp"
#include "kernels/rope/rope.hpp"

namespace choir::ops {
namespace {

/// Index, as a real number, of the pair that turns `rotations` times within the original positions.
double pair_of(double rotations, double theta, double original, std::int64_t width) {
  return static_cast<double>(width) * std::log(original / (2 * std::numbers::pi * rotations)) /
         (2 * std::log(theta));
}

double yarn_frequency(double f, double theta, const RopeScaling& s, std::int64_t width,
                      std::int64_t i) {
  double low = pair_of(s.beta_fast, theta, s.original, width);
  double high = pair_of(s.beta_slow, theta, s.original, width);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(width - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return f / s.factor * ramp + f * (1 - ramp);
}

double llama3_frequency(double f, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / f;
  if (wavelength < s.original / s.high) return f;
  if (wavelength > s.original / s.low) return f / s.factor;
  const double smooth = (s.original / wavelength - s.low) / (s.high - s.low);
  return (1 - smooth) * f / s.factor + smooth * f;
}

}  // namespace

double rope_frequency(double theta, const RopeScaling& scaling, std::int64_t head_width,
                      std::int64_t i) {
  const double f = std::pow(theta, -static_cast<double>(i) / static_cast<double>(head_width / 2));
  switch (scaling.kind) {
    case RopeScaling::Kind::linear:
      return f / scaling.factor;
    case RopeScaling::Kind::llama3:
      return llama3_frequency(f, scaling);
    case RopeScaling::Kind::yarn:
      return yarn_frequency(f, theta, scaling, head_width, i);
    default:
      return f;
  }
}

double rope_attention_factor(const RopeScaling& scaling) {
  if (scaling.kind != RopeScaling::Kind::yarn) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  return scaling.factor <= 1 ? 1 : 0.1 * std::log(scaling.factor) + 1;
}

void rope_table(const Stream& stream, double theta, const TensorView& table,
                const RopeScaling& scaling, std::int64_t first_position) {
  CHOIR_CHECK(table.shape.rank() == 2 && table.shape.back() % 2 == 0, "table is {}",
              to_string(table.shape));
  CHOIR_CHECK(table.dtype == DType::f32 || table.dtype == DType::f64, "table holds {}",
              name_of(table.dtype));
  CHOIR_CHECK(scaling.kind == RopeScaling::Kind::none || scaling.factor > 0, "rope factor {}",
              scaling.factor);
  stream.count(0, as_bytes(table));
  if (on_cuda(stream)) return cuda::rope_table(stream, theta, scaling, table, first_position);
  if (!computes(stream)) return;
  cpu::rope_table(theta, scaling, table, first_position);
}

void rope(const Stream& stream, const Rope& args) {
  const std::int64_t rotated = args.heads * args.head_width;
  CHOIR_CHECK(args.x.shape.rank() > 0 && rotated <= args.x.shape.back(),
              "{} heads of {} in rows of {}", args.heads, args.head_width, args.x.shape.back());
  CHOIR_CHECK(args.head_width % 2 == 0 && args.tokens >= 1, "head width {}, {} tokens",
              args.head_width, args.tokens);
  const std::int64_t rows = args.x.shape.rows();
  const std::int64_t tokens = rows < args.tokens ? rows : args.tokens;
  const std::int64_t positions = std::min(args.first_position + tokens, args.position_end);
  CHOIR_CHECK(!args.table.empty() && args.table.shape.back() == args.head_width &&
                  args.table.shape.rows() >= positions && args.first_position >= 0 &&
                  args.position_end >= 1,
              "table {} for positions below {} of width {}", to_string(args.table.shape), positions,
              args.head_width);
  check_tensor(args.table, sum_dtype_of(args.x.dtype), args.table.count(), "table");
  const double n = static_cast<double>(rows) * static_cast<double>(rotated);
  stream.count(3 * n, 2 * n * static_cast<double>(size_of(args.x.dtype)));
  if (on_cuda(stream)) return cuda::rope(stream, args);
  if (!computes(stream)) return;
  CHOIR_CHECK(!args.first_position_on_device, "a position in device memory, on the CPU");
  with_element(args.x.dtype, [&](auto t) { cpu::rope<decltype(t)>(args); });
}

}  // namespace choir::ops
