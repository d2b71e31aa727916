#include <cmath>
#include <limits>

#include "kernels/cross_entropy.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector_math.hpp"

namespace choir::cpu {
namespace {

constexpr std::int64_t kBlock = 4096;

template <class T>
struct RowSum {
  Sum<T> max;
  double sum;  // of exp(z - max)
};

template <class T>
Sum<T> block_max(const T* z, std::int64_t first, std::int64_t last) {
  constexpr Sum<T> kLow = -std::numeric_limits<Sum<T>>::infinity();
  constexpr std::int64_t kStep = 4 * kLanes<T>;
  Vec<T> m0 = Vec<T>{} + kLow, m1 = m0, m2 = m0, m3 = m0;
  const auto larger = [](Vec<T> a, Vec<T> b) { return a > b ? a : b; };
  std::int64_t i = first;
  for (; i + kStep <= last; i += kStep) {
    m0 = larger(m0, load(z + i));
    m1 = larger(m1, load(z + i + kLanes<T>));
    m2 = larger(m2, load(z + i + 2 * kLanes<T>));
    m3 = larger(m3, load(z + i + 3 * kLanes<T>));
  }
  for_vectors<T>(i, last,
                 [&](std::int64_t c, auto access) { m0 = larger(m0, access.load(z + c, kLow)); });
  return max_of_lanes(larger(larger(m0, m1), larger(m2, m3)));
}

template <class T>
Sum<T> block_sum(const T* z, std::int64_t first, std::int64_t last, Sum<T> max) {
  constexpr Sum<T> kLow = -std::numeric_limits<Sum<T>>::infinity();
  constexpr std::int64_t kStep = 2 * kLanes<T>;
  Vec<T> s0{}, s1{};
  std::int64_t i = first;
  for (; i + kStep <= last; i += kStep) {
    s0 += exp(load(z + i) - max);
    s1 += exp(load(z + i + kLanes<T>) - max);
  }
  for_vectors<T>(i, last,
                 [&](std::int64_t c, auto access) { s0 += exp(access.load(z + c, kLow) - max); });
  return sum_of_lanes(s0 + s1);
}

template <class T>
RowSum<T> sum_row(const T* z, std::int64_t vocabulary) {
  RowSum<T> row{block_max(z, 0, vocabulary < kBlock ? vocabulary : kBlock), 0};
  for (std::int64_t first = 0; first < vocabulary; first += kBlock) {
    const std::int64_t last = first + kBlock < vocabulary ? first + kBlock : vocabulary;
    const Sum<T> max = block_max(z, first, last);
    if (max > row.max) {
      row.sum *= std::exp(static_cast<double>(row.max) - static_cast<double>(max));
      row.max = max;
    }
    // Nothing but -inf so far: shift by 0, so that these add 0 and a NaN still shows.
    const Sum<T> shift = std::isinf(row.max) && row.max < 0 ? Sum<T>(0) : row.max;
    row.sum += static_cast<double>(block_sum(z, first, last, shift));
  }
  return row;
}

/// z = exp(z - max) factor, which is softmax times scale.
template <class T>
void write_softmax(T* z, std::int64_t vocabulary, Sum<T> max, Sum<T> factor) {
  for_vectors<T>(0, vocabulary, [&](std::int64_t c, auto access) {
    access.store(z + c, exp(access.load(z + c) - max) * factor);
  });
}

template <class T>
Sum<T> finish_row(const ops::CrossEntropy& args, T* z, std::int64_t columns, std::int32_t target) {
  const std::int64_t vocabulary = args.vocabulary;
  if (target < 0) {
    if (args.write_gradient)
      std::memset(static_cast<void*>(z), 0, static_cast<std::size_t>(columns) * sizeof(T));
    return 0;
  }
  const RowSum<T> row = sum_row(z, vocabulary);
  const auto shifted =
      static_cast<double>(static_cast<Sum<T>>(z[target])) - static_cast<double>(row.max);
  if (args.write_gradient) {
    write_softmax(z, vocabulary, row.max, static_cast<Sum<T>>(args.scale / row.sum));
    const double p = std::exp(shifted) / row.sum;
    z[target] = static_cast<T>(static_cast<Sum<T>>((p - 1) * args.scale));
    if (columns > vocabulary)
      std::memset(static_cast<void*>(z + vocabulary), 0,
                  static_cast<std::size_t>(columns - vocabulary) * sizeof(T));
  }
  return static_cast<Sum<T>>(std::log(row.sum) - shifted);
}

}  // namespace

template <class T>
void cross_entropy(const ops::CrossEntropy& given) {
  ops::CrossEntropy args = given;
  if (given.device_scale) args.scale *= *given.device_scale;
  const std::int64_t rows = args.logits.shape.rows(), columns = args.logits.shape.back();
  const auto* targets = static_cast<const std::int32_t*>(args.targets.data);
  auto* losses = static_cast<Sum<T>*>(args.losses.data);
  parallel_ranges(rows, columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      losses[r] =
          finish_row(args, static_cast<T*>(args.logits.data) + r * columns, columns, targets[r]);
  });
}

template void cross_entropy<double>(const ops::CrossEntropy&);
template void cross_entropy<float>(const ops::CrossEntropy&);
template void cross_entropy<bf16>(const ops::CrossEntropy&);
template void cross_entropy<f16>(const ops::CrossEntropy&);

}  // namespace choir::cpu
