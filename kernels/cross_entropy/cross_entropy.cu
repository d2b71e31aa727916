#include "kernels/cross_entropy/cross_entropy.cuh"

#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {
namespace {

/// Bytes of a row that a block keeps in shared memory. With this value three blocks share a
/// multiprocessor, and the remainder of their rows is small enough to stay in L2.
constexpr std::int64_t kKeptBytes = 72 * 1024;

/// Bytes of a row of `bytes` that are kept. Results do not depend on it. A row much longer than
/// kKeptBytes gets a whole multiprocessor.
std::int64_t kept_bytes(std::int64_t bytes) {
  if (bytes <= 2 * kKeptBytes) return bytes < kKeptBytes ? bytes : kKeptBytes;
  int device = 0, most = 0;
  CHOIR_CUDA(cudaGetDevice(&device));
  CHOIR_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const std::int64_t room = most - 1024;  // shared memory that the kernel uses otherwise
  return bytes < room ? bytes : room;
}

/// Calls f(std::integral_constant) with the number of threads of a team: more than a warp only if
/// every thread gets several packs of a row.
template <class F>
void with_team(int columns, const F& f) {
  if (columns <= 2048) return f(std::integral_constant<int, kWarp>{});
  if (columns <= 16384) return f(std::integral_constant<int, 256>{});
  f(std::integral_constant<int, 512>{});
}

template <int kThreads>
LaunchShape team_shape(std::int64_t rows, std::int64_t shared_bytes_per_row = 0) {
  constexpr int kTeams = kRowBlock<kThreads> / kThreads;
  return {static_cast<unsigned>(blocks_for(rows, kTeams)), kRowBlock<kThreads>,
          static_cast<std::size_t>(kTeams * shared_bytes_per_row)};
}

template <class T, class Args>
LogitRows<T> rows_of(const Args& args, std::int64_t first_column) {
  const std::int64_t rows = args.logits.shape.rows(), columns = args.logits.shape.back();
  const std::int64_t left = args.vocabulary - first_column;
  CHOIR_CHECK(columns < std::int64_t{1} << 30 && rows < std::int64_t{1} << 31,
              "cross-entropy of {} rows of {}", rows, columns);
  return {args.logits.template as<T>(),
          args.targets.template as<std::int32_t>(),
          args.weights.empty() ? nullptr : args.weights.template as<float>(),
          rows,
          static_cast<int>(columns),
          static_cast<int>(left < 0         ? 0
                           : left < columns ? left
                                            : columns),
          first_column,
          args.vocabulary};
}

/// Calls f(map), with the map of the arguments.
template <class F>
void with_map(const ops::LogitMap& map, const F& f) {
  if (map.none()) return f(NoMap());
  const auto cap = static_cast<float>(map.softcap);
  f(SoftCap{static_cast<float>(map.scale), cap,
            cap == 0 ? 0.0f : static_cast<float>(1 / map.softcap)});
}

template <class Args>
LossTerms terms_of(const Args& args) {
  return {args.scale,
          args.device_scale,
          static_cast<float>(args.label_smoothing),
          static_cast<float>(args.z_loss),
          args.z_losses.empty() ? nullptr : args.z_losses.template as<float>(),
          args.write_gradient};
}

}  // namespace

void cross_entropy(const Stream& stream, const ops::CrossEntropy& args) {
  with_element(args.logits.dtype, [&](auto t) {
    using T = decltype(t);
    const LogitRows<T> rows = rows_of<T>(args, 0);
    if (rows.rows == 0) return;
    with_team(rows.counted, [&](auto team) {
      constexpr int kThreads = decltype(team)::value;
      const std::int64_t kept =
          args.write_gradient ? kept_bytes(std::int64_t{rows.counted} * sizeof(T)) / 16 : 0;
      with_map(args.map, [&](auto map) {
        launch(stream, "cross_entropy", cross_entropy_kernel<T, kThreads, decltype(map)>,
               team_shape<kThreads>(rows.rows, 16 * kept), rows, terms_of(args), map,
               args.losses.as<float>(), static_cast<int>(kept));
      });
    });
  });
}

void cross_entropy_maxima(const Stream& stream, const ops::ParallelCrossEntropy& args) {
  with_element(args.logits.dtype, [&](auto t) {
    using T = decltype(t);
    const LogitRows<T> rows = rows_of<T>(args, args.first_column);
    if (rows.rows == 0) return;
    with_team(rows.counted, [&](auto team) {
      constexpr int kThreads = decltype(team)::value;
      with_map(args.map, [&](auto map) {
        launch(stream, "cross_entropy_maxima",
               cross_entropy_maxima_kernel<T, kThreads, decltype(map)>,
               team_shape<kThreads>(rows.rows), rows, map, static_cast<int>(args.sums_per_row()),
               args.local_maxima.as<float>(), args.maxima.as<float>(), args.sums.as<float>());
      });
    });
  });
}

void cross_entropy_sums(const Stream& stream, const ops::ParallelCrossEntropy& args) {
  // No logit is read, so one instance serves all types.
  LogitRows<float> rows{};
  rows.targets = args.targets.as<std::int32_t>();
  rows.weights = args.weights.empty() ? nullptr : args.weights.as<float>();
  with_element(args.logits.dtype, [&](auto t) {
    const auto typed = rows_of<decltype(t)>(args, args.first_column);
    rows.rows = typed.rows, rows.columns = typed.columns, rows.counted = typed.counted;
    rows.first_column = typed.first_column, rows.vocabulary = typed.vocabulary;
  });
  if (rows.rows == 0) return;
  launch(stream, "cross_entropy_sums", cross_entropy_sums_kernel<float>,
         {static_cast<unsigned>(blocks_for(rows.rows, kElementwiseThreads)), kElementwiseThreads},
         rows, static_cast<int>(args.sums_per_row()), args.local_maxima.as<float>(),
         args.maxima.as<float>(), args.sums.as<float>());
}

void cross_entropy_finish(const Stream& stream, const ops::ParallelCrossEntropy& args) {
  with_element(args.logits.dtype, [&](auto t) {
    using T = decltype(t);
    const LogitRows<T> rows = rows_of<T>(args, args.first_column);
    if (rows.rows == 0) return;
    with_team(rows.columns, [&](auto team) {
      constexpr int kThreads = decltype(team)::value;
      with_map(args.map, [&](auto map) {
        launch(
            stream, "cross_entropy_finish", cross_entropy_finish_kernel<T, kThreads, decltype(map)>,
            team_shape<kThreads>(rows.rows), rows, terms_of(args), map, args.losses.as<float>(),
            static_cast<int>(args.sums_per_row()), args.maxima.as<float>(), args.sums.as<float>());
      });
    });
  });
}

void map_logits(const Stream& stream, const ops::LogitMap& map, const TensorView& logits) {
  const std::int64_t n = logits.count();
  if (n == 0) return;
  with_element(logits.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(0, logits.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      const float cap = static_cast<float>(map.softcap);
      launch(stream, "map_logits", map_logits_kernel<T, kPacked>,
             {map_blocks<T, kPacked, 1>(n), kElementwiseThreads}, n,
             SoftCap{static_cast<float>(map.scale), cap,
                     cap == 0 ? 0.0f : static_cast<float>(1 / map.softcap)},
             logits.as<T>());
    });
  });
}

}  // namespace choir::cuda
