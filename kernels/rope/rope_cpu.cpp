#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/rope/rope.hpp"

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
  const std::int64_t width = args.head_width, half = width / 2;
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
        rotate(x + h * width, cosines, cosines + half, sign, half);
    }
  });
}

template void rope<double>(const ops::Rope&);
template void rope<float>(const ops::Rope&);
template void rope<bf16>(const ops::Rope&);
template void rope<f16>(const ops::Rope&);

}  // namespace choir::cpu
