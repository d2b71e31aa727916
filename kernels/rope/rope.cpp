// Rotary positions: frequencies, checks and dispatch, the CPU twin, and the fp64 reference.

#include "kernels/rope/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"

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

double rope_frequency(double theta, const RopeScaling& scaling, std::int64_t width,
                      std::int64_t i) {
  const double f = std::pow(theta, -static_cast<double>(i) / static_cast<double>(width / 2));
  switch (scaling.kind) {
    case RopeScaling::Kind::linear:
      return f / scaling.factor;
    case RopeScaling::Kind::llama3:
      return llama3_frequency(f, scaling);
    case RopeScaling::Kind::yarn:
      return yarn_frequency(f, theta, scaling, width, i);
    case RopeScaling::Kind::longrope:
      CHOIR_CHECK(std::ssize(scaling.divisors) == width / 2, "{} divisors of {} pairs",
                  scaling.divisors.size(), width / 2);
      return f / scaling.divisors[static_cast<std::size_t>(i)];
    default:
      return f;
  }
}

double rope_attention_factor(const RopeScaling& scaling) {
  const bool yarn = scaling.kind == RopeScaling::Kind::yarn;
  if (!yarn && scaling.kind != RopeScaling::Kind::longrope) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  if (scaling.factor <= 1) return 1;
  const double grown = std::log(scaling.factor);
  return yarn ? 0.1 * grown + 1 : std::sqrt(1 + grown / std::log(scaling.original));
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
  CHOIR_CHECK(args.x.shape.rank() > 0 && args.heads * args.head_width <= args.x.shape.back(),
              "{} heads of {} in rows of {}", args.heads, args.head_width, args.x.shape.back());
  CHOIR_CHECK(args.tokens >= 1, "{} tokens", args.tokens);
  const std::int64_t rows = args.x.shape.rows();
  const std::int64_t tokens = rows < args.tokens ? rows : args.tokens;
  const std::int64_t positions = std::min(args.first_position + tokens, args.position_end);
  CHOIR_CHECK(!args.table.empty() && args.rotated() <= args.head_width && args.rotated() % 2 == 0 &&
                  args.table.shape.rows() >= positions && args.first_position >= 0 &&
                  args.position_end >= 1,
              "table {} for positions below {} of width {}", to_string(args.table.shape), positions,
              args.head_width);
  check_tensor(args.table, sum_dtype_of(args.x.dtype), args.table.count(), "table");
  const double n = static_cast<double>(rows * args.heads * args.rotated());
  stream.count(3 * n, 2 * n * static_cast<double>(size_of(args.x.dtype)));
  if (on_cuda(stream)) return cuda::rope(stream, args);
  if (!computes(stream)) return;
  CHOIR_CHECK(!args.first_position_on_device, "a position in device memory, on the CPU");
  with_element(args.x.dtype, [&](auto t) { cpu::rope<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

template <class T>
void rotate_halves(T* x, const Sum<T>* cosines, const Sum<T>* sines, Sum<T> sign,
                   std::int64_t half) {
  for_vectors<T>(0, half, [&](std::int64_t i, auto access) {
    const Vec<T> a = access.load(x + i), b = access.load(x + half + i);
    const Vec<T> c = access.load(cosines + i), s = access.load(sines + i) * sign;
    access.store(x + i, a * c - b * s);
    access.store(x + half + i, b * c + a * s);
  });
}

template <class T>
void rotate_neighbours(T* x, const Sum<T>* cosines, const Sum<T>* sines, Sum<T> sign,
                       std::int64_t half) {
  using A = Sum<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const A a = static_cast<A>(x[2 * i]), b = static_cast<A>(x[2 * i + 1]);
    const A c = cosines[i], s = sines[i] * sign;
    x[2 * i] = static_cast<T>(a * c - b * s);
    x[2 * i + 1] = static_cast<T>(b * c + a * s);
  }
}

}  // namespace

void rope_table(double theta, const ops::RopeScaling& scaling, const TensorView& table,
                std::int64_t first_position) {
  const std::int64_t positions = table.shape[0], half = table.shape.back() / 2;
  const auto put = [&](std::int64_t i, double value) {
    if (table.dtype == DType::f64)
      static_cast<double*>(table.data)[i] = value;
    else
      static_cast<float*>(table.data)[i] = static_cast<float>(value);
  };
  const double magnitude = ops::rope_attention_factor(scaling);
  parallel_ranges(positions, half * 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency = ops::rope_frequency(theta, scaling, 2 * half, i);
      for (std::int64_t p = first; p < last; ++p) {
        const double angle = static_cast<double>(first_position + p) * frequency;
        put(p * 2 * half + i, magnitude * std::cos(angle));
        put((p * 2 + 1) * half + i, magnitude * std::sin(angle));
      }
    }
  });
}

template <class T>
void rope(const ops::Rope& args) {
  const std::int64_t rows = args.x.shape.rows(), row_width = args.x.shape.back();
  const std::int64_t width = args.rotated(), half = width / 2;
  const auto* table = static_cast<const Sum<T>*>(args.table.data);
  const Sum<T> sign = args.inverse ? -1 : 1;
  const auto rotate =
      args.pairing == ops::RopePairing::half_split ? rotate_halves<T> : rotate_neighbours<T>;
  parallel_ranges(rows, args.heads * width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t position = args.first_position + r % args.tokens;
      const Sum<T>* cosines = table + ops::table_row(position, args.position_end) * width;
      T* x = static_cast<T*>(args.x.data) + r * row_width;
      for (std::int64_t h = 0; h < args.heads; ++h)
        rotate(x + h * args.head_width, cosines, cosines + half, sign, half);
    }
  });
}

template void rope<double>(const ops::Rope&);
template void rope<float>(const ops::Rope&);
template void rope<bf16>(const ops::Rope&);
template void rope<f16>(const ops::Rope&);

}  // namespace choir::cpu

namespace choir::ref {

void rope(const ops::Rope& args, double theta) {
  const std::int64_t rows = args.x.shape.rows(), row_width = args.x.shape.back();
  const std::int64_t width = args.rotated(), half = width / 2;
  const bool neighbours = args.pairing == ops::RopePairing::interleaved;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t h = 0; h < args.heads; ++h)
      for (std::int64_t i = 0; i < half; ++i) {
        std::int64_t row = args.first_position + r % args.tokens;
        if (row >= args.position_end) row = args.position_end - 1;
        const auto position = static_cast<double>(row);
        const double angle =
            (args.inverse ? -1 : 1) * position *
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(width));
        double* head = args.x.as<double>() + r * row_width + h * args.head_width;
        double& first = head[neighbours ? 2 * i : i];
        double& second = head[neighbours ? 2 * i + 1 : i + half];
        const double a = first, b = second;
        first = a * std::cos(angle) - b * std::sin(angle);
        second = a * std::sin(angle) + b * std::cos(angle);
      }
}

}  // namespace choir::ref
