#include "kernels/cross_entropy/cross_entropy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/softmax_row.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/embedding/embedding.hpp"

namespace choir::ops {
namespace {

void check_map(const LogitMap& map) {
  CHOIR_CHECK(map.scale > 0 && map.softcap >= 0, "logits times {} with a soft cap of {}", map.scale,
              map.softcap);
}

template <class Args>
void check_rows(const Args& args) {
  const DType dtype = args.logits.dtype;
  const std::int64_t rows = args.logits.shape.rows();
  check_tensor(args.logits, dtype, rows * args.logits.shape.back(), "logits");
  check_tensor(args.targets, DType::i32, rows, "targets");
  check_tensor(args.losses, sum_dtype_of(dtype), rows, "losses");
  if (!args.weights.empty()) check_tensor(args.weights, DType::f32, rows, "weights");
  CHOIR_CHECK(args.label_smoothing >= 0 && args.label_smoothing < 1, "label smoothing of {}",
              args.label_smoothing);
  CHOIR_CHECK(args.z_loss >= 0, "a z-loss of {}", args.z_loss);
  if (!args.z_losses.empty()) check_tensor(args.z_losses, sum_dtype_of(dtype), rows, "z_losses");
  check_map(args.map);
}

void check_targets(const TensorView& targets, std::int64_t vocabulary) {
  if (targets.count() == 0) return;
  const auto range = cpu::id_range(targets);
  CHOIR_CHECK(range.highest < vocabulary, "target {} for a vocabulary of {}", range.highest,
              vocabulary);
}

void check_parallel(const ParallelCrossEntropy& args) {
  check_rows(args);
  const DType sums = sum_dtype_of(args.logits.dtype);
  const std::int64_t rows = args.logits.shape.rows();
  check_tensor(args.local_maxima, sums, rows, "local_maxima");
  check_tensor(args.maxima, sums, rows, "maxima");
  check_tensor(args.sums, sums, rows * args.sums_per_row(), "sums");
  CHOIR_CHECK(args.vocabulary >= 1 && args.first_column >= 0,
              "columns from {} of a vocabulary of {}", args.first_column, args.vocabulary);
}

/// FLOPs of one pass over the logits: exp, difference, sum.
double pass_flops(const TensorView& logits) {
  return 20.0 * static_cast<double>(logits.count());
}

}  // namespace

void map_logits(const Stream& stream, const LogitMap& map, const TensorView& logits) {
  check_map(map);
  check_tensor(logits, logits.dtype, logits.count(), "logits");
  if (map.none()) return;
  stream.count(pass_flops(logits), 2 * as_bytes(logits));
  if (on_cuda(stream)) return cuda::map_logits(stream, map, logits);
  if (!computes(stream)) return;
  with_element(logits.dtype, [&](auto t) { cpu::map_logits<decltype(t)>(map, logits); });
}

void cross_entropy(const Stream& stream, const CrossEntropy& args) {
  check_rows(args);
  CHOIR_CHECK(args.vocabulary >= 1 && args.vocabulary <= args.logits.shape.back(),
              "vocabulary {} in rows of {}", args.vocabulary, args.logits.shape.back());
  const double passes = args.write_gradient ? 2 : 1;
  stream.count(passes * pass_flops(args.logits),
               passes * as_bytes(args.logits) + as_bytes(args.targets) + as_bytes(args.losses));
  if (on_cuda(stream)) return cuda::cross_entropy(stream, args);
  if (!computes(stream)) return;
  check_targets(args.targets, args.vocabulary);
  with_element(args.logits.dtype, [&](auto t) { cpu::cross_entropy<decltype(t)>(args); });
}

void cross_entropy_maxima(const Stream& stream, const ParallelCrossEntropy& args) {
  check_parallel(args);
  stream.count(pass_flops(args.logits), as_bytes(args.logits) + as_bytes(args.targets) +
                                            2 * as_bytes(args.maxima) + as_bytes(args.sums));
  if (on_cuda(stream)) return cuda::cross_entropy_maxima(stream, args);
  if (!computes(stream)) return;
  check_targets(args.targets, args.vocabulary);
  with_element(args.logits.dtype, [&](auto t) { cpu::cross_entropy_maxima<decltype(t)>(args); });
}

void cross_entropy_sums(const Stream& stream, const ParallelCrossEntropy& args) {
  check_parallel(args);
  stream.count(20.0 * static_cast<double>(args.maxima.count()),
               as_bytes(args.targets) + 2 * as_bytes(args.maxima) + 2 * as_bytes(args.sums));
  if (on_cuda(stream)) return cuda::cross_entropy_sums(stream, args);
  if (!computes(stream)) return;
  with_element(args.logits.dtype, [&](auto t) { cpu::cross_entropy_sums<decltype(t)>(args); });
}

void cross_entropy_finish(const Stream& stream, const ParallelCrossEntropy& args) {
  check_parallel(args);
  const double writes = args.write_gradient ? 1 : 0;
  stream.count(writes * pass_flops(args.logits),
               writes * 2 * as_bytes(args.logits) + as_bytes(args.targets) + as_bytes(args.losses) +
                   as_bytes(args.maxima) + as_bytes(args.sums));
  if (on_cuda(stream)) return cuda::cross_entropy_finish(stream, args);
  if (!computes(stream)) return;
  with_element(args.logits.dtype, [&](auto t) { cpu::cross_entropy_finish<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

/// ops::LogitMap for vectors and numbers of sums S.
template <class S>
struct SoftCap {
  S scale, cap;  ///< cap: 0 for none
  explicit SoftCap(const ops::LogitMap& map)
      : scale(static_cast<S>(map.scale)), cap(static_cast<S>(map.softcap)) {}
  template <class V>
  V operator()(V z) const {
    const V scaled = scale * z;
    if (cap == 0) return scaled;
    constexpr S kLow = -std::numeric_limits<S>::infinity();
    if constexpr (std::is_same_v<V, S>)
      return z == kLow ? z : cap * std::tanh(scaled / cap);
    else
      return z == kLow ? z : cap * tanh(scaled * (1 / cap));
  }
  /// `value` is that of the map.
  template <class V>
  V with_slope(V gradient, V value) const {
    if (cap == 0) return gradient * scale;
    const V share = value * (1 / cap), slope = scale * (1 - share * share);
    return slope < 0 ? V{} : gradient * slope;  // of -inf; NaN is preserved
  }
};

/// f(map), with the map of the arguments.
template <class S, class F>
void with_map(const ops::LogitMap& map, const F& f) {
  map.none() ? f(NoMap()) : f(SoftCap<S>(map));
}

/// Constants that the gradients and losses of all rows share.
struct Terms {
  double scale, smoothing;  ///< e
  double vocabulary;
  double z;  ///< weight of lse^2
  template <class Args>
  explicit Terms(const Args& args)
      : scale(args.scale * (args.device_scale ? *args.device_scale : 1.0)),
        smoothing(args.label_smoothing),
        vocabulary(static_cast<double>(args.vocabulary)),
        z(args.z_loss) {}
  /// `target` and `mean` are relative to the maximum.
  double loss(double exps, double target, double mean) const {
    const double loss = std::log(exps) - (1 - smoothing) * target;
    return smoothing > 0 ? loss - smoothing * mean : loss;
  }
  /// Factor of the softmax in the gradient, which the derivative of z lse^2 enlarges.
  double of_softmax(double lse) const { return z == 0 ? 1 : 1 + 2 * z * lse; }
  /// The constants of a row with this weight.
  Terms times(double weight) const {
    Terms terms = *this;
    terms.scale *= weight;
    return terms;
  }
};

/// The targets and weights of the rows; rows of weight 0 have no target.
struct RowTargets {
  const std::int32_t* targets;
  const float* weights;  ///< nullptr: 1 each
  template <class Args>
  explicit RowTargets(const Args& args)
      : targets(static_cast<const std::int32_t*>(args.targets.data)),
        weights(static_cast<const float*>(args.weights.data)) {}
  double weight(std::int64_t r) const { return weights == nullptr ? 1 : weights[r]; }
  std::int32_t target(std::int64_t r) const { return weight(r) == 0 ? -1 : targets[r]; }
};

/// The logarithm of the sum of exponentials of a row.
template <class S>
double log_sum(S max, double exps) {
  return static_cast<double>(max) + std::log(exps);
}

/// Writes w lse^2 of row r, if the caller asks for it.
template <class T, class Args>
void write_z_loss(const Args& args, std::int64_t r, double weighted_square) {
  if (!args.z_losses.empty())
    static_cast<Sum<T>*>(args.z_losses.data)[r] = static_cast<Sum<T>>(weighted_square);
}

/// Writes the gradient over `counted` of `columns` logits; `target` is one of them or negative.
template <class T, class Map>
void write_row(const Terms& terms, T* z, std::int64_t columns, std::int64_t counted,
               std::int64_t target, Sum<T> max, double exps, const Map& map) {
  const double smooth = terms.scale * terms.smoothing / terms.vocabulary;
  const Sum<T> of_target = target < 0 ? max : map(static_cast<Sum<T>>(z[target]));
  const double shifted = static_cast<double>(of_target) - static_cast<double>(max);
  const double more = terms.of_softmax(log_sum(max, exps));
  const auto factor = static_cast<Sum<T>>(terms.scale * more / exps);
  if (smooth != 0)
    write_softmax<T, true>(z, counted, max, factor, static_cast<Sum<T>>(smooth), map);
  else
    write_softmax<T, false>(z, counted, max, factor, 0, map);
  if (target >= 0) {
    const double p = std::exp(shifted) / exps;
    z[target] = static_cast<T>(map.with_slope(
        static_cast<Sum<T>>((p * more - 1 + terms.smoothing) * terms.scale - smooth), of_target));
  }
  clear(z, counted, columns);
}

template <class T, class Map>
Sum<T> finish_row(const ops::CrossEntropy& args, const Terms& terms, std::int64_t r, double weight,
                  std::int64_t columns, std::int32_t target, const Map& map) {
  T* const z = static_cast<T*>(args.logits.data) + r * columns;
  if (target < 0) {
    if (args.write_gradient) clear(z, 0, columns);
    write_z_loss<T>(args, r, 0);
    return 0;
  }
  const RowSum<T> row = sum_row(z, args.vocabulary, terms.smoothing > 0, map);
  const auto max = static_cast<double>(row.max);
  const double shifted = static_cast<double>(map(static_cast<Sum<T>>(z[target]))) - max;
  const double lse = log_sum(row.max, row.exps);
  write_z_loss<T>(args, r, weight * lse * lse);
  if (args.write_gradient)
    write_row(terms.times(weight), z, columns, args.vocabulary, target, row.max, row.exps, map);
  return static_cast<Sum<T>>(weight *
                             terms.loss(row.exps, shifted, row.logits / terms.vocabulary - max));
}

/// One rank's part of the vocabulary.
struct Columns {
  std::int64_t all, counted, first;
  explicit Columns(const ops::ParallelCrossEntropy& args)
      : all(args.logits.shape.back()), first(args.first_column) {
    const std::int64_t left = args.vocabulary - first;
    counted = left < 0 ? 0 : left < all ? left : all;
  }
  /// The column of a target on this rank; negative if another rank has it.
  std::int64_t local(std::int32_t target) const {
    const std::int64_t c = target - first;
    return c >= 0 && c < counted ? c : -1;
  }
};

/// Calls f(row, target) for all rows, which the threads share.
template <class F>
void for_rows(const ops::ParallelCrossEntropy& args, std::int64_t work, const F& f) {
  const RowTargets rows(args);
  parallel_ranges(args.logits.shape.rows(), work, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) f(r, rows.target(r));
  });
}

}  // namespace

template <class T>
void cross_entropy(const ops::CrossEntropy& args) {
  const Terms terms(args);
  const std::int64_t rows = args.logits.shape.rows(), columns = args.logits.shape.back();
  const RowTargets of_rows(args);
  auto* losses = static_cast<Sum<T>*>(args.losses.data);
  with_map<Sum<T>>(args.map, [&](const auto& map) {
    parallel_ranges(rows, columns * 4, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r)
        losses[r] =
            finish_row<T>(args, terms, r, of_rows.weight(r), columns, of_rows.target(r), map);
    });
  });
}

template <class T>
void cross_entropy_maxima(const ops::ParallelCrossEntropy& args) {
  const Columns columns(args);
  const std::int64_t per_row = args.sums_per_row();
  auto* local_maxima = static_cast<Sum<T>*>(args.local_maxima.data);
  auto* maxima = static_cast<Sum<T>*>(args.maxima.data);
  with_map<Sum<T>>(args.map, [&](const auto& map) {
    for_rows(args, columns.all * 2, [&](std::int64_t r, std::int32_t target) {
      const T* z = static_cast<const T*>(args.logits.data) + r * columns.all;
      Sum<T>* sums = static_cast<Sum<T>*>(args.sums.data) + r * per_row;
      RowSum<T> row;
      if (target >= 0)
        row = sum_row(z, columns.counted, per_row > 2, map);
      else
        row.max = 0;
      const std::int64_t local = target < 0 ? -1 : columns.local(target);
      local_maxima[r] = maxima[r] = row.max;
      sums[0] = static_cast<Sum<T>>(row.exps);
      sums[1] = local < 0 ? Sum<T>(0) : map(static_cast<Sum<T>>(z[local]));
      if (per_row > 2) sums[2] = static_cast<Sum<T>>(row.logits);
    });
  });
}

template <class T>
void cross_entropy_sums(const ops::ParallelCrossEntropy& args) {
  const Columns columns(args);
  const std::int64_t per_row = args.sums_per_row();
  const auto* local_maxima = static_cast<const Sum<T>*>(args.local_maxima.data);
  const auto* maxima = static_cast<const Sum<T>*>(args.maxima.data);
  for_rows(args, 16, [&](std::int64_t r, std::int32_t target) {
    if (target < 0) return;
    Sum<T>* sums = static_cast<Sum<T>*>(args.sums.data) + r * per_row;
    // If all logits are -inf the sum is 0, or NaN, for any scale.
    if (!(std::isinf(local_maxima[r]) && local_maxima[r] < 0))
      sums[0] *= std::exp(local_maxima[r] - maxima[r]);
    if (columns.local(target) >= 0) sums[1] -= maxima[r];
    if (per_row > 2) sums[2] -= static_cast<Sum<T>>(columns.counted) * maxima[r];
  });
}

template <class T>
void cross_entropy_finish(const ops::ParallelCrossEntropy& args) {
  const Columns columns(args);
  const Terms terms(args);
  const RowTargets of_rows(args);
  const std::int64_t per_row = args.sums_per_row();
  const auto* maxima = static_cast<const Sum<T>*>(args.maxima.data);
  auto* losses = static_cast<Sum<T>*>(args.losses.data);
  for_rows(args, columns.all * 2, [&](std::int64_t r, std::int32_t target) {
    T* z = static_cast<T*>(args.logits.data) + r * columns.all;
    losses[r] = 0;
    if (target < 0) {
      if (args.write_gradient) clear(z, 0, columns.all);
      write_z_loss<T>(args, r, 0);
      return;
    }
    const Sum<T>* sums = static_cast<const Sum<T>*>(args.sums.data) + r * per_row;
    const auto exps = static_cast<double>(sums[0]);
    const double mean = per_row > 2 ? static_cast<double>(sums[2]) / terms.vocabulary : 0;
    const double weight = of_rows.weight(r);
    losses[r] = static_cast<Sum<T>>(weight * terms.loss(exps, static_cast<double>(sums[1]), mean));
    const double lse = log_sum(maxima[r], exps);
    write_z_loss<T>(args, r, weight * lse * lse);
    if (!args.write_gradient) return;
    with_map<Sum<T>>(args.map, [&](const auto& map) {
      write_row(terms.times(weight), z, columns.all, columns.counted, columns.local(target),
                maxima[r], exps, map);
    });
  });
}

template <class T>
void map_logits(const ops::LogitMap& map, const TensorView& logits) {
  T* const z = static_cast<T*>(logits.data);
  const SoftCap<Sum<T>> value(map);
  parallel_flat(logits.count(), [&](std::int64_t first, std::int64_t last) {
    for_vectors<T>(first, last, [&](std::int64_t i, auto access) {
      access.store(z + i, value(access.load(z + i)));
    });
  });
}

#define CHOIR_INSTANTIATE(T)                                               \
  template void map_logits<T>(const ops::LogitMap&, const TensorView&);    \
  template void cross_entropy<T>(const ops::CrossEntropy&);                \
  template void cross_entropy_maxima<T>(const ops::ParallelCrossEntropy&); \
  template void cross_entropy_sums<T>(const ops::ParallelCrossEntropy&);   \
  template void cross_entropy_finish<T>(const ops::ParallelCrossEntropy&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

namespace choir::ref {

void map_logits(const ops::LogitMap& map, const TensorView& logits) {
  for (std::int64_t i = 0; i < logits.count(); ++i) {
    double& z = logits.as<double>()[i];
    z = map.softcap > 0 ? map.softcap * std::tanh(map.scale * z / map.softcap) : map.scale * z;
  }
}

void cross_entropy(const ops::CrossEntropy& args) {
  const double scale = args.scale * (args.device_scale ? *args.device_scale : 1.0);
  const std::int64_t rows = args.logits.shape.rows(), columns = args.logits.shape.back();
  for (std::int64_t r = 0; r < rows; ++r) {
    double* z = args.logits.as<double>() + r * columns;
    std::vector<double> value(z, z + args.vocabulary);
    map_logits(args.map, {value.data(), DType::f64, {args.vocabulary}});
    const double weight = args.weights.empty() ? 1.0 : args.weights.as<float>()[r];
    const std::int32_t target = weight == 0 ? -1 : args.targets.as<std::int32_t>()[r];
    args.losses.as<double>()[r] = 0;
    if (!args.z_losses.empty()) args.z_losses.as<double>()[r] = 0;
    if (target < 0) {
      if (args.write_gradient) std::fill(z, z + columns, 0.0);
      continue;
    }
    const double max = *std::max_element(value.begin(), value.end());
    double sum = 0;
    for (const double x : value) sum += std::exp(x - max);
    const double lse = max + std::log(sum);
    if (!args.z_losses.empty()) args.z_losses.as<double>()[r] = weight * lse * lse;
    double loss = 0;
    const auto v = static_cast<double>(args.vocabulary), e = args.label_smoothing;
    for (std::int64_t c = 0; c < args.vocabulary; ++c) {
      const double q = (c == target ? 1 - e : 0) + e / v;
      const double x = value[static_cast<std::size_t>(c)];
      if (q > 0) loss += q * (std::log(sum) + max - x);
      const double softmax = std::exp(x - max) / sum;
      const double share = args.map.softcap > 0 ? x / args.map.softcap : 0;
      if (args.write_gradient)
        z[c] = (softmax + 2 * args.z_loss * lse * softmax - q) * scale * weight * args.map.scale *
               (1 - share * share);
    }
    args.losses.as<double>()[r] = weight * loss;
    if (args.write_gradient) std::fill(z + args.vocabulary, z + columns, 0.0);
  }
}

}  // namespace choir::ref
