// Connectionist temporal classification on the GPU: first the rows of logits over the symbols of a
// speech model, one warp per row. Lane l has the columns l + 32 i, so that no sum depends on the
// address of a row. Rows are short (up to some thousands).

#include "kernels/ctc/ctc.hpp"

#include "kernels/cross_entropy/cross_entropy.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kSymbolThreads = 256;

/// The OnlineSum of a row of `count` logits, computed by a warp.
template <class T>
__device__ inline OnlineSum sum_of_row(const T* z, int count, int lane) {
  constexpr int kAhead = 8;
  OnlineSum own;
  for (int first = lane; first < count; first += kAhead * kWarp) {
    float values[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int c = first + k * kWarp;
      values[k] = c < count ? to_float(z[c]) : -INFINITY;
    }
    own.add(values);
  }
  return join<kWarp>(own, false, nullptr);
}

constexpr int kRowWarps = kSymbolThreads / kWarp;
/// The row of this warp.
__device__ inline std::int64_t row_of_warp() {
  return std::int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
}

/// Floor: one read of the logits.
template <class T>
__global__ void __launch_bounds__(kSymbolThreads)
    best_symbols_kernel(const T* logits, std::int64_t rows, int columns, int vocabulary,
                        std::int32_t* best) {
  follow_earlier();
  const std::int64_t row = row_of_warp();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  const T* z = logits + row * columns;
  float most = -INFINITY;
  int at = vocabulary;  // no symbol yet
#pragma unroll 8
  for (int c = lane; c < vocabulary; c += kWarp) {
    const float value = to_float(z[c]);
    if (value > most || (value == most && at == vocabulary)) most = value, at = c;
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, most, offset);
    const int there = __shfl_xor_sync(kAllLanes, at, offset);
    if (other > most || (other == most && there < at)) most = other, at = there;
  }
  if (lane == 0) best[row] = at < vocabulary ? at : 0;
}

/// Floor: one read and one write of the logits.
template <class T>
__global__ void __launch_bounds__(kSymbolThreads)
    log_softmax_kernel(T* logits, std::int64_t rows, int columns, int vocabulary) {
  follow_earlier();
  const std::int64_t row = row_of_warp();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  T* z = logits + row * columns;
  const OnlineSum sum = sum_of_row(z, vocabulary, lane);
  const float log_sum = logf(sum.exps);
#pragma unroll 8
  for (int c = lane; c < vocabulary; c += kWarp)
    z[c] = from_float<T>((to_float(z[c]) - sum.max) - log_sum);
}

// Connectionist temporal classification on the GPU; the steps are described in kernels/ctc/ctc.hpp.
// 1. ctc_rows_kernel: one warp per row of logits; lane l has the columns l + 32 i, so that no sum
//   depends on the address of a row. Floor: one read of the logits.
// 2. ctc_lattice_kernel: one block per utterance and direction; thread u has blank u and label u.
//   One barrier per frame (plus those of a maximum every kCtcRescale frames); a row of states is in
//   shared memory, and emissions are fetched two frames ahead. Floor: frames x (latency of 3 exp
//   and a log, and of a barrier), about 0.2 us each.
// 3. ctc_gradient_kernel: one block per row; the occupation of a symbol is summed over its labels
//   by one thread in their order. Floor: one read and one write of the logits.

constexpr int kCtcThreads = kSymbolThreads;

/// The arguments of a call for its kernels.
template <class T>
struct CtcCall {
  T* logits;
  const std::int32_t *frame_lengths, *labels, *label_lengths;
  float *losses, *stats, *emissions, *alphas, *betas;
  std::int32_t *chains, *infinite;  ///< infinite[b * vocabulary]
  int batch, frames, columns, vocabulary, half;
  double scale;
  const double* device_scale;
  bool write_gradient, zero_infinity;

  __device__ bool valid(int b) const {
    return frame_lengths[b] >= 0 && frame_lengths[b] <= frames && label_lengths[b] >= 0 &&
           label_lengths[b] <= half - 2;
  }
  /// Number of valid frames; 0 if a length is out of range.
  __device__ int length(int b) const { return valid(b) ? frame_lengths[b] : 0; }
  /// Label u of utterance b, counted from 1; -1 if it is not a symbol.
  __device__ int label(int b, int u) const {
    const int symbol = labels[std::int64_t{b} * (half - 2) + u - 1];
    return symbol >= 0 && symbol < vocabulary - 1 ? symbol : -1;
  }
  __device__ float factor() const {
    return static_cast<float>(device_scale == nullptr ? scale : scale * *device_scale);
  }
};

template <class T>
__global__ void __launch_bounds__(kCtcThreads) ctc_rows_kernel(CtcCall<T> call) {
  follow_earlier();
  const std::int64_t row = row_of_warp();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= std::int64_t{call.batch} * call.frames) return;
  const int b = static_cast<int>(row / call.frames), t = static_cast<int>(row % call.frames);
  if (t >= call.length(b)) return;
  const T* z = call.logits + row * call.columns;
  const OnlineSum sum = sum_of_row(z, call.vocabulary, lane);
  if (lane == 0) call.stats[2 * row] = sum.max, call.stats[2 * row + 1] = sum.exps;
  const float log_sum = logf(sum.exps);
  float* y = call.emissions + row * call.half;
  for (int u = lane; u <= call.label_lengths[b]; u += kWarp) {
    const int symbol = u == 0 ? call.vocabulary - 1 : call.label(b, u);
    y[u] = symbol < 0 ? NAN : (to_float(z[symbol]) - sum.max) - log_sum;
  }
}

/// Finds the next label with the same symbol for each label, and whether it is the first. One block
/// per utterance.
template <class T>
__global__ void __launch_bounds__(kCtcThreads) ctc_chains_kernel(CtcCall<T> call) {
  follow_earlier();
  const int b = static_cast<int>(blockIdx.x);
  if (!call.valid(b)) return;
  const std::int32_t* labels = call.labels + std::int64_t{b} * (call.half - 2);
  const int count = call.label_lengths[b];
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kCtcThreads) {
    const std::int32_t symbol = labels[i];
    int next = i + 1, before = i - 1;
    while (next < count && labels[next] != symbol) ++next;
    while (before >= 0 && labels[before] != symbol) --before;
    call.chains[std::int64_t{b} * call.half + i + 1] =
        (next < count ? next + 1 : 0) + (before < 0 ? kCtcFirst : 0);
  }
}

/// ln(e^a + e^b), and the same for three arguments. A NaN in any of them is preserved.
__device__ inline float log_add(float a, float b) {
  const float high = a > b ? a : b, low = a > b ? b : a;
  return high == -INFINITY ? a + b : high + logf(1.0f + exp_approx(low - high));
}
__device__ inline float log_add(float a, float b, float c) {
  const float two = a > b ? a : b, high = two > c ? two : c;
  if (high == -INFINITY) return a + b + c;
  return high + logf(exp_approx(a - high) + exp_approx(b - high) + exp_approx(c - high));
}

/// The states of one utterance in shared memory: two rows of values that include the emission of
/// their frame, and the penalties that keep a label from directly following an equal one.
struct SharedStates {
  float *rows, *skips;
  int half;
  __device__ float* blanks(int step) const { return rows + (step & 1) * 2 * half; }
  __device__ float* labels(int step) const { return blanks(step) + half; }
};

/// Runs one direction over all frames. Returns the sum of the shifts. On return the last row is
/// visible.
template <bool kBack>
__device__ inline double run_lattice(const SharedStates& states, int count, int frames,
                                     const float* emissions, float* out, float* scratch) {
  const int thread = static_cast<int>(threadIdx.x), half = states.half;
  const auto frame = [&](int step) { return kBack ? frames - 1 - step : step; };
  const auto emission = [&](int step, int u) {
    return step < frames ? emissions[std::int64_t{frame(step)} * half + u] : 0.0f;
  };
  double taken = 0;
  float soon = thread <= count ? emission(0, thread) : 0,
        later = thread <= count ? emission(1, thread) : 0;
  float blank_soon = emission(0, 0), blank_later = emission(1, 0);
  float largest = -INFINITY;  // over the last row's states of this thread
  for (int step = 0; step < frames; ++step) {
    const float here = soon, blank = blank_soon;
    soon = later, blank_soon = blank_later;
    later = thread <= count ? emission(step + 2, thread) : 0;
    blank_later = emission(step + 2, 0);
    __syncthreads();  // the previous row is complete, and no thread still reads the row to be
                      // written
    float shift = 0;
    if (step > 0 && step % kCtcRescale == 0) {
      shift = block_reduce<Max, kCtcThreads>(largest, scratch);
      if (!(fabsf(shift) < INFINITY)) shift = 0;
      taken += static_cast<double>(shift);
    }
    const float *blanks = states.blanks(step - 1), *labels = states.labels(step - 1);
    float* row = out + std::int64_t{frame(step)} * 2 * half;
    largest = -INFINITY;
    for (int u = thread; u <= count; u += kCtcThreads) {
      const auto put = [&](float value, float y, float* shared, float* global) {
        const float with = value + y;
        shared[u] = with;
        global[u] = kBack ? value : with;
        if (with > largest) largest = with;
      };
      float value;
      if (step == 0)
        value = u == (kBack ? count : 0) ? 0.0f : -INFINITY;
      else
        value = log_add(blanks[u], kBack ? labels[u + 1] : labels[u]) - shift;
      put(value, blank, states.blanks(step), row);
      if (u == 0) continue;
      if (step == 0)
        value = u == (kBack ? count : 1) ? 0.0f : -INFINITY;
      else if (kBack)
        value = log_add(labels[u], blanks[u], labels[u + 1] + states.skips[u + 1]) - shift;
      else
        value = log_add(labels[u], blanks[u - 1], labels[u - 1] + states.skips[u]) - shift;
      put(value, u == thread ? here : emission(step, u), states.labels(step), row + half);
    }
  }
  __syncthreads();
  return taken;
}

/// Grid: utterances, 1 or 2 directions. Dynamic shared memory: 5 half floats.
template <class T>
__global__ void __launch_bounds__(kCtcThreads) ctc_lattice_kernel(CtcCall<T> call) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(float, scratch, kCtcThreads / kWarp);
  CHOIR_SHARED_ARRAY(int, counts, kCtcThreads / kWarp);
  const int b = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const bool back = blockIdx.y == 1;
  if (!call.valid(b)) {
    if (thread == 0 && !back)
      call.losses[b] = NAN, call.infinite[std::int64_t{b} * call.vocabulary] = 0;
    return;
  }
  const int count = call.label_lengths[b], frames = call.frame_lengths[b], half = call.half;
  const SharedStates states{dynamic_shared<float>(), dynamic_shared<float>() + 4 * half, half};
  int repeats = 0;
  for (int i = thread; i < 4 * half; i += kCtcThreads) states.rows[i] = -INFINITY;
  for (int u = thread; u < half; u += kCtcThreads) {
    const bool equal = u > 1 && u <= count && call.label(b, u) == call.label(b, u - 1);
    states.skips[u] = equal ? -INFINITY : 0.0f;
    repeats += equal ? 1 : 0;
  }
  repeats = block_reduce<Sum, kCtcThreads>(repeats, counts);
  const bool possible = frames >= count + repeats;
  const std::int64_t first = std::int64_t{b} * call.frames;
  const float* emissions = call.emissions + first * half;
  if (back) {
    if (possible)
      run_lattice<true>(states, count, frames, emissions, call.betas + first * 2 * half, scratch);
    return;
  }
  double taken = 0;
  if (possible)
    taken = run_lattice<false>(states, count, frames, emissions, call.alphas + first * 2 * half,
                               scratch);
  if (thread != 0) return;
  float log_p = frames == 0 && count == 0 ? 0.0f : -INFINITY;
  if (possible && frames > 0)
    log_p =
        static_cast<float>(taken + static_cast<double>(log_add(states.blanks(frames - 1)[count],
                                                               states.labels(frames - 1)[count])));
  const bool infinite = log_p == -INFINITY;
  call.infinite[std::int64_t{b} * call.vocabulary] = infinite ? 1 : 0;
  call.losses[b] = infinite && call.zero_infinity ? 0.0f : 0.0f - log_p;
}

/// Grid: rows. Dynamic shared memory: half floats.
template <class T>
__global__ void __launch_bounds__(kCtcThreads) ctc_gradient_kernel(CtcCall<T> call) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(float, scratch, kCtcThreads / kWarp);
  float* const occupied = dynamic_shared<float>();
  const std::int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), half = call.half;
  const int b = static_cast<int>(row / call.frames), t = static_cast<int>(row % call.frames);
  T* z = call.logits + row * call.columns;
  const bool counts = t < call.length(b),
             infinite = counts && call.infinite[std::int64_t{b} * call.vocabulary] != 0;
  if (!counts || infinite) {
    const float fill = infinite && !call.zero_infinity ? NAN : 0.0f;
    for (int c = thread; c < call.columns; c += kCtcThreads)
      z[c] = from_float<T>(c < call.vocabulary ? fill : 0.0f);
    return;
  }
  const int count = call.label_lengths[b];
  const float *alpha = call.alphas + row * 2 * half, *beta = call.betas + row * 2 * half;
  float largest = -INFINITY;
  for (int u = thread; u <= count; u += kCtcThreads) {
    largest = fmaxf(largest, alpha[u] + beta[u]);
    if (u > 0) largest = fmaxf(largest, alpha[half + u] + beta[half + u]);
  }
  largest = block_reduce<Max, kCtcThreads>(largest, scratch);
  float blanks = 0, labels = 0;
  for (int u = thread; u <= count; u += kCtcThreads) {
    blanks += exp_approx(alpha[u] + beta[u] - largest);
    if (u == 0) continue;
    occupied[u] = exp_approx(alpha[half + u] + beta[half + u] - largest);
    labels += occupied[u];
  }
  blanks = block_reduce<Sum, kCtcThreads>(blanks, scratch);
  labels = block_reduce<Sum, kCtcThreads>(labels, scratch);
  const float all = blanks + labels, scale = call.factor();
  const float max = call.stats[2 * row], factor = scale / call.stats[2 * row + 1];
  for (int c = thread; c < call.columns; c += kCtcThreads)
    z[c] = from_float<T>(c < call.vocabulary ? exp_approx(to_float(z[c]) - max) * factor : 0.0f);
  __syncthreads();  // the following code writes columns of other threads
  const float* y = call.emissions + row * half;
  const std::int32_t* chains = call.chains + std::int64_t{b} * half;
  for (int u = thread; u <= count; u += kCtcThreads) {
    float sum = blanks;
    if (u > 0) {
      if (chains[u] < kCtcFirst) continue;
      sum = occupied[u];
      for (int k = chains[u] - kCtcFirst; k > 0; k = chains[k]) sum += occupied[k];
    }
    const int symbol = u == 0 ? call.vocabulary - 1 : call.label(b, u);
    if (symbol >= 0) z[symbol] = from_float<T>((exp_approx(y[u]) - sum / all) * scale);
  }
}

namespace {

void check_limits(std::int64_t rows, std::int64_t columns) {
  CHOIR_CHECK(columns < std::int64_t{1} << 30 && rows < std::int64_t{1} << 31,
              "{} rows of {} logits", rows, columns);
}

LaunchShape warp_rows(std::int64_t rows) {
  return {static_cast<unsigned>(blocks_for(rows, kRowWarps)), kCtcThreads};
}

template <class T>
CtcCall<T> call_of(const ops::Ctc& args, const CtcPlan& plan, std::int64_t batch) {
  auto* base = args.workspace.as<std::uint8_t>();
  const auto floats = [&](std::int64_t at) { return reinterpret_cast<float*>(base + at); };
  const auto ints = [&](std::int64_t at) { return reinterpret_cast<std::int32_t*>(base + at); };
  return {.logits = args.logits.as<T>(),
          .frame_lengths = args.frame_lengths,
          .labels = static_cast<const std::int32_t*>(args.labels.data),
          .label_lengths = args.label_lengths,
          .losses = args.losses.as<float>(),
          .stats = floats(plan.stats),
          .emissions = floats(plan.emissions),
          .alphas = floats(plan.alphas),
          .betas = floats(plan.betas),
          .chains = ints(plan.chains),
          .infinite = ints(plan.last),
          .batch = static_cast<int>(batch),
          .frames = static_cast<int>(args.logits.shape.rows() / batch),
          .columns = static_cast<int>(args.logits.shape.back()),
          .vocabulary = static_cast<int>(args.vocabulary),
          .half = static_cast<int>(plan.half),
          .scale = args.scale,
          .device_scale = args.device_scale,
          .write_gradient = args.write_gradient,
          .zero_infinity = args.zero_infinity};
}

}  // namespace

void ctc(const Stream& stream, const ops::Ctc& args) {
  const std::int64_t batch = args.losses.count(), rows = args.logits.shape.rows(),
                     labels = args.labels.count() / batch;
  check_limits(rows, args.logits.shape.back());
  if (labels > kCtcMostLabels)
    throw Error(ExitCode::deck,
                fmt::format("ctc: {} labels in an utterance, the GPU kernel takes at most {}",
                            labels, kCtcMostLabels),
                "leave out or cut longer utterances, or use device=cpu");
  with_element(args.logits.dtype, [&](auto t) {
    using T = decltype(t);
    const CtcPlan plan(batch, rows / batch, labels, args.vocabulary, sizeof(float));
    const CtcCall<T> call = call_of<T>(args, plan, batch);
    const auto blocks = static_cast<unsigned>(batch);
    const std::size_t row_bytes = static_cast<std::size_t>(plan.half) * sizeof(float);
    if (rows > 0) launch(stream, "ctc_rows", ctc_rows_kernel<T>, warp_rows(rows), call);
    launch(stream, "ctc_lattice", ctc_lattice_kernel<T>,
           {dim3(blocks, args.write_gradient ? 2 : 1), kCtcThreads, 5 * row_bytes}, call);
    if (!args.write_gradient || rows == 0) return;
    launch(stream, "ctc_chains", ctc_chains_kernel<T>, {blocks, kCtcThreads}, call);
    launch(stream, "ctc_gradient", ctc_gradient_kernel<T>,
           {static_cast<unsigned>(rows), kCtcThreads, row_bytes}, call);
  });
}

void best_symbols(const Stream& stream, const TensorView& logits, std::int64_t vocabulary,
                  const TensorView& best) {
  const std::int64_t rows = logits.shape.rows(), columns = logits.shape.back();
  check_limits(rows, columns);
  if (rows == 0) return;
  with_element(logits.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "best_symbols", best_symbols_kernel<T>, warp_rows(rows),
           static_cast<const T*>(logits.as<T>()), rows, static_cast<int>(columns),
           static_cast<int>(vocabulary), best.as<std::int32_t>());
  });
}

void log_softmax(const Stream& stream, const TensorView& logits, std::int64_t vocabulary) {
  const std::int64_t rows = logits.shape.rows(), columns = logits.shape.back();
  check_limits(rows, columns);
  if (rows == 0) return;
  with_element(logits.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "log_softmax", log_softmax_kernel<T>, warp_rows(rows), logits.as<T>(), rows,
           static_cast<int>(columns), static_cast<int>(vocabulary));
  });
}

}  // namespace choir::cuda
