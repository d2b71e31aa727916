#pragma once
// Softmax cross-entropy over rows of V logits on the GPU. A row belongs to a warp (short rows) or
// to a block. First pass: every thread keeps the maximum of its logits so far and their sum of
// exponentials, which is rescaled when the maximum rises (online softmax, Milakov & Gimelshein
// 2018); the pairs of the threads are joined in a fixed order. Second pass: the gradient replaces
// the logits. The part of a row that fits is loaded into shared memory by asynchronous copies and
// read from there both times; each thread reads its own packs. The second read of the rest hits L2,
// since few rows are in flight. Floor per logit: one read and one write, 2 exp; a divided
// vocabulary reads twice, because nothing of a row survives the reduction over the ranks. Columns
// may start anywhere: a head up to the first 16-byte boundary and a tail are processed one by one.
// exp(x) is 2^(x log2 e) by ex2.approx: relative error below 2^-22 + 2^-23 |x| for the difference x
// = z - max <= 0, itself rounded once; results below 2^-126 count as 0.
#include <type_traits>

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"

namespace choir::cuda {

/// The counted columns of one row, distributed over its team.
template <class T>
struct LogitRow {
  T* z;
  int columns, counted;  ///< columns in memory; those without padding
  int head, packs;       ///< single columns before the packs; the tail follows them

  __device__ LogitRow(T* row, int all, int valid) : z(row), columns(all), counted(valid) {
    const auto misplaced = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16);
    head = misplaced == 0 ? 0 : (16 - misplaced) / static_cast<int>(sizeof(T));
    if (head > counted) head = counted;
    packs = (counted - head) / kPack<T>;
  }
  __device__ int tail() const { return head + packs * kPack<T>; }
  __device__ T* pack(int p) const { return z + head + p * kPack<T>; }
  /// The thread of the team that reads and writes column c.
  template <int kThreads>
  __device__ int owner(int c) const {
    if (c < head) return c;
    return c < tail() ? (c - head) / kPack<T> % kThreads : c - tail();
  }
};

constexpr float kLog2E = 1.44269504f;

/// The function of every logit before the softmax (ops::LogitMap); this one leaves it as it is.
struct NoMap {
  __device__ float operator()(float z) const { return z; }
  __device__ float with_slope(float gradient, float) const { return gradient; }
};
struct SoftCap {
  float scale, cap, inverse;  ///< cap: 0 for none; inverse: 1 / cap

  __device__ float operator()(float z) const {
    const float scaled = scale * z;
    if (cap == 0.0f || z == -INFINITY) return scaled;
    return cap * tanhf(scaled * inverse);
  }
  __device__ float with_slope(float gradient, float value) const {
    if (cap == 0.0f) return gradient * scale;
    const float share = value * inverse, slope = scale * (1.0f - share * share);
    return slope < 0.0f ? 0.0f : gradient * slope;  // of -inf; NaN is preserved
  }
};

__device__ inline float exp_approx(float x) {
  return ptx::exp2_approx(x * kLog2E);
}

/// The logits seen so far: their maximum, the sum of exp(z - max), the sum of z.
struct OnlineSum {
  float max = -INFINITY, exps = 0, logits = 0;

  /// If all logits so far are -inf the shift is 0, so that they add 0 and a NaN is still visible.
  __device__ float shift() const { return max == -INFINITY ? 0.0f : max; }
  template <int kCount>
  __device__ void add(const float (&z)[kCount]) {
    float highest = z[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) highest = fmaxf(highest, z[i]);
    if (highest > max) {
      exps *= exp_approx(max - highest);
      max = highest;
    }
    const float by = shift();
    float more = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) more += exp_approx(z[i] - by), sum += z[i];
    exps += more;
    logits += sum;
  }
  template <class T, class Map>
  __device__ void add(const Pack<T>& pack, const Map& map) {
    float z[kPack<T>];
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) z[i] = map(pack.x[i]);
    add(z);
  }
};

/// A reduction over the team of a row: one warp of a block, or the whole block.
template <class Op, int kThreads, class V>
__device__ inline V team_reduce(V value, V* scratch) {
  if constexpr (kThreads == kWarp)
    return warp_reduce<Op>(value);
  else
    return block_reduce<Op, kThreads>(value, scratch);
}

/// The joined OnlineSum of all threads; every thread gets the same result.
template <int kThreads>
__device__ inline OnlineSum join(OnlineSum own, bool with_logits, float* scratch) {
  OnlineSum all;
  all.max = team_reduce<Max, kThreads>(own.max, scratch);
  // A thread that saw only -inf has a sum of 0, or NaN, for any scale.
  if (own.max != -INFINITY) own.exps *= exp_approx(own.max - all.max);
  all.exps = team_reduce<Sum, kThreads>(own.exps, scratch);
  if (with_logits) all.logits = team_reduce<Sum, kThreads>(own.logits, scratch);
  return all;
}

/// Calls f(p, pack) for this thread's packs of the row in turn: packs p = thread, thread + kThreads
/// ... from the first one at or after `from`. Four reads are in flight at a time; f may write the
/// pack.
template <int kThreads, class T, class F>
__device__ inline void for_packs(const LogitRow<T>& row, int thread, int from, const F& f) {
  constexpr int kAhead = 4;
  int p = from + (thread + kThreads - from % kThreads) % kThreads;
  for (; p + (kAhead - 1) * kThreads < row.packs; p += kAhead * kThreads) {
    uint4 raw[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      raw[k] = *reinterpret_cast<const uint4*>(row.pack(p + k * kThreads));
#pragma unroll
    for (int k = 0; k < kAhead; ++k) f(p + k * kThreads, unpacked<T>(raw[k]));
  }
  for (; p < row.packs; p += kThreads) f(p, load_pack(row.pack(p)));
}

/// First pass of one thread over the packs from `kept` on and the columns outside of packs.
template <int kThreads, class T, class Map>
__device__ inline void sum_rest(const LogitRow<T>& row, int thread, int kept, const Map& map,
                                OnlineSum& sum) {
  for (int i = thread; i < row.head; i += kThreads) sum.add<1>({map(to_float(row.z[i]))});
  for (int i = row.tail() + thread; i < row.counted; i += kThreads)
    sum.add<1>({map(to_float(row.z[i]))});
  for_packs<kThreads>(row, thread, kept, [&](int, const Pack<T>& pack) { sum.add(pack, map); });
}

/// First pass of one thread over the first `kept` packs, which are copied to `shared` and stay
/// there.
template <int kThreads, class T, class Map>
__device__ inline void sum_kept(const LogitRow<T>& row, int thread, int kept, uint4* shared,
                                const Map& map, OnlineSum& sum) {
  constexpr int kAhead = 8;  // copies in flight
  const auto copy = [&](int p) {
    if (p < kept) ptx::cp_async_16(shared + p, row.pack(p));
    ptx::cp_async_commit();
  };
  for (int k = 0; k < kAhead; ++k) copy(thread + k * kThreads);
  for (int p = thread; p < kept; p += kThreads) {
    ptx::cp_async_wait<kAhead - 1>();
    sum.add(unpacked<T>(shared[p]), map);
    copy(p + kAhead * kThreads);
  }
}

/// Constants of the gradient of a row: exp(z - max) factor - smooth, plus `at_target` at the target
/// (a column of this row, or negative).
struct RowGradient {
  float max, factor, smooth, at_target;
  int target;
};

/// Second pass of one thread. Every element is read and written by the thread that read it first.
template <class T, int kThreads, class Map>
__device__ inline void write_gradient(const LogitRow<T>& row, int thread, int kept,
                                      const uint4* shared, const Map& map, const RowGradient& g) {
  const auto gradient = [&](float value) {
    return exp_approx(value - g.max) * g.factor - g.smooth;
  };
  // Writes a single column; where p - 1 cancels, there is only one rounding to the element's type.
  const auto single = [&](int c) {
    const float value = map(to_float(row.z[c])), d = gradient(value);
    row.z[c] = from_float<T>(map.with_slope(c == g.target ? d + g.at_target : d, value));
  };
  const auto whole = [&](int p, Pack<T> z) {
    Pack<T> d;
    const int first = row.head + p * kPack<T>;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) z.x[i] = map(z.x[i]), d.x[i] = gradient(z.x[i]);
    if (g.target >= first && g.target < first + kPack<T>) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i)
        if (g.target == first + i) d.x[i] += g.at_target;
    }
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) d.x[i] = map.with_slope(d.x[i], z.x[i]);
    store_pack_streaming(row.pack(p), d);
  };
  for (int p = thread; p < kept; p += kThreads) whole(p, unpacked<T>(shared[p]));
  for_packs<kThreads>(row, thread, kept, whole);
  for (int c = thread; c < row.head; c += kThreads) single(c);
  for (int c = row.tail() + thread; c < row.counted; c += kThreads) single(c);
  for (int c = row.counted + thread; c < row.columns; c += kThreads) row.z[c] = from_float<T>(0);
}

template <class T, int kThreads>
__device__ inline void clear_row(T* z, int columns, int thread) {
  for (int c = thread; c < columns; c += kThreads) z[c] = from_float<T>(0);
}

/// Logits and other arguments of the kernels below. Columns count from `first_column`.
template <class T>
struct LogitRows {
  T* logits;
  const std::int32_t* targets;
  const float* weights;  ///< weights of the rows; nullptr: 1 each
  std::int64_t rows;
  int columns, counted;
  std::int64_t first_column, vocabulary;

  __device__ LogitRow<T> row(std::int64_t r) const {
    return {logits + r * columns, columns, counted};
  }
  __device__ float weight(std::int64_t r) const { return weights == nullptr ? 1.0f : weights[r]; }
  /// Negative also if the row has weight 0.
  __device__ std::int32_t target(std::int64_t r) const { return weight(r) == 0 ? -1 : targets[r]; }
  /// The target's column on this rank; negative if another rank has it.
  __device__ int local(std::int32_t target) const {
    const std::int64_t c = target - first_column;
    return c >= 0 && c < counted ? static_cast<int>(c) : -1;
  }
};

struct LossTerms {
  double scale;
  const double* device_scale;
  float smoothing;  ///< e of the loss
  float z;          ///< weight of lse^2
  float* z_losses;  ///< w lse^2 of the rows; nullptr: not written
  bool write_gradient;

  __device__ float factor() const {
    return static_cast<float>(device_scale == nullptr ? scale : scale * *device_scale);
  }
  /// Factor of the softmax in the gradient, which the derivative of z lse^2 enlarges.
  __device__ float of_softmax(float lse) const { return z == 0 ? 1.0f : 1 + 2 * z * lse; }
  __device__ void write_z_loss(std::int64_t row, float weighted_square) const {
    if (z_losses != nullptr) z_losses[row] = weighted_square;
  }
};

/// loss = log(sum exp s) - (1 - e) s[target] - e mean(s)
__device__ inline float loss_of(float exps, float target, float mean, float smoothing) {
  const float loss = logf(exps) - (1 - smoothing) * target;
  return smoothing > 0 ? loss - smoothing * mean : loss;
}

/// Threads of a block that is shared by teams of kThreads.
template <int kThreads>
constexpr int kRowBlock = kThreads < 256 ? 256 : kThreads;

/// The row of this thread, and its index in the team.
template <int kThreads>
struct Team {
  static constexpr int kTeams = kRowBlock<kThreads> / kThreads;
  int thread = static_cast<int>(threadIdx.x) % kThreads;
  int number = static_cast<int>(threadIdx.x) / kThreads;
  std::int64_t row = std::int64_t{blockIdx.x} * kTeams + number;
};

/// Blocks of a multiprocessor. On sm_120 ptxas spills with a soft cap unless they are fewer.
template <int kThreads, class Map>
constexpr int kRowBlocks = (kThreads > 256 ? 2 : 4) -
                           (kBlackwell && std::is_same_v<Map, SoftCap> ? 1 : 0);

/// The whole vocabulary. Dynamic shared memory: `kept` packs for every team of the block.
template <class T, int kThreads, class Map>
__global__ void __launch_bounds__(kRowBlock<kThreads>, kRowBlocks<kThreads, Map>)
    cross_entropy_kernel(LogitRows<T> all, LossTerms terms, Map map, float* losses,
                         int kept_per_row) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(float, scratch, kWarp);
  const Team<kThreads> team;
  if (team.row >= all.rows) return;
  const std::int32_t target = all.target(team.row);
  const LogitRow<T> row = all.row(team.row);
  if (target < 0) {
    if (team.thread == 0) losses[team.row] = 0, terms.write_z_loss(team.row, 0);
    if (terms.write_gradient) clear_row<T, kThreads>(row.z, row.columns, team.thread);
    return;
  }
  uint4* const shared = dynamic_shared<uint4>() + std::int64_t{team.number} * kept_per_row;
  const int kept = kept_per_row < row.packs ? kept_per_row : row.packs;
  const int local = all.local(target);
  const bool owner = local >= 0 && row.template owner<kThreads>(local) == team.thread;
  const float at_target = owner ? map(to_float(row.z[local])) : 0.0f;
  OnlineSum own;
  sum_kept<kThreads>(row, team.thread, kept, shared, map, own);
  sum_rest<kThreads>(row, team.thread, kept, map, own);
  const OnlineSum sum = join<kThreads>(own, terms.smoothing > 0, scratch);
  const auto vocabulary = static_cast<float>(all.vocabulary);
  const float weight = all.weight(team.row);
  const float lse = sum.max + logf(sum.exps);
  if (team.thread == 0) terms.write_z_loss(team.row, weight * lse * lse);
  if (owner)
    losses[team.row] = weight * loss_of(sum.exps, at_target - sum.max,
                                        sum.logits / vocabulary - sum.max, terms.smoothing);
  if (local < 0 && team.thread == 0) losses[team.row] = NAN;  // the target does not exist
  if (!terms.write_gradient) return;
  const float scale = terms.factor() * weight;
  write_gradient<T, kThreads>(row, team.thread, kept, shared, map,
                              {.max = sum.max,
                               .factor = scale * terms.of_softmax(lse) / sum.exps,
                               .smooth = scale * (terms.smoothing / vocabulary),
                               .at_target = -scale * (1 - terms.smoothing),
                               .target = local});
}

/// A divided vocabulary, first call: this rank's maximum, sum of exponentials, target, sum of
/// logits.
template <class T, int kThreads, class Map>
__global__ void __launch_bounds__(kRowBlock<kThreads>, kThreads > 256 ? 2 : 4)
    cross_entropy_maxima_kernel(LogitRows<T> all, Map map, int sums_per_row, float* local_maxima,
                                float* maxima, float* sums) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(float, scratch, kWarp);
  const Team<kThreads> team;
  if (team.row >= all.rows) return;
  const std::int32_t target = all.target(team.row);
  OnlineSum sum;
  if (target >= 0) {
    sum_rest<kThreads>(all.row(team.row), team.thread, 0, map, sum);
    sum = join<kThreads>(sum, sums_per_row > 2, scratch);
  } else {
    sum.max = 0;
  }
  if (team.thread != 0) return;
  local_maxima[team.row] = maxima[team.row] = sum.max;
  float* out = sums + team.row * sums_per_row;
  out[0] = sum.exps;
  const int local = target < 0 ? -1 : all.local(target);
  out[1] = local < 0 ? 0.0f : map(to_float(all.row(team.row).z[local]));
  if (sums_per_row > 2) out[2] = sum.logits;
}

/// Second call, with the maxima over all ranks: the sums relative to them. One thread per row.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    cross_entropy_sums_kernel(LogitRows<T> all, int sums_per_row, const float* local_maxima,
                              const float* maxima, float* sums) {
  follow_earlier();
  const std::int64_t r = global_thread();
  if (r >= all.rows || all.target(r) < 0) return;
  float* row = sums + r * sums_per_row;
  if (local_maxima[r] != -INFINITY) row[0] *= exp_approx(local_maxima[r] - maxima[r]);
  if (all.local(all.targets[r]) >= 0) row[1] -= maxima[r];
  if (sums_per_row > 2) row[2] -= static_cast<float>(all.counted) * maxima[r];
}

/// Third call, with the sums over all ranks: loss and gradient.
template <class T, int kThreads, class Map>
__global__ void __launch_bounds__(kRowBlock<kThreads>, kThreads > 256 ? 2 : 4)
    cross_entropy_finish_kernel(LogitRows<T> all, LossTerms terms, Map map, float* losses,
                                int sums_per_row, const float* maxima, const float* sums) {
  follow_earlier();
  const Team<kThreads> team;
  if (team.row >= all.rows) return;
  const std::int32_t target = all.target(team.row);
  const LogitRow<T> row = all.row(team.row);
  if (target < 0) {
    if (team.thread == 0) losses[team.row] = 0, terms.write_z_loss(team.row, 0);
    if (terms.write_gradient) clear_row<T, kThreads>(row.z, row.columns, team.thread);
    return;
  }
  const float* sum = sums + team.row * sums_per_row;
  const float weight = all.weight(team.row);
  const auto vocabulary = static_cast<float>(all.vocabulary);
  const float lse = maxima[team.row] + logf(sum[0]);
  if (team.thread == 0) {
    terms.write_z_loss(team.row, weight * lse * lse);
    const float mean = sums_per_row > 2 ? sum[2] / vocabulary : 0.0f;
    losses[team.row] =
        target < all.vocabulary ? weight * loss_of(sum[0], sum[1], mean, terms.smoothing) : NAN;
  }
  if (!terms.write_gradient) return;
  const float scale = terms.factor() * weight;
  write_gradient<T, kThreads>(row, team.thread, 0, nullptr, map,
                              {.max = maxima[team.row],
                               .factor = scale * terms.of_softmax(lse) / sum[0],
                               .smooth = scale * (terms.smoothing / vocabulary),
                               .at_target = -scale * (1 - terms.smoothing),
                               .target = all.local(target)});
}

/// Replaces logits by the values of the map.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    map_logits_kernel(std::int64_t n, SoftCap map, T* logits) {
  follow_earlier();
  map_flat<T, kPacked, 1>(n, {logits}, logits, [map](float z) { return map(z); });
}

}  // namespace choir::cuda
