// The element-wise parts of Muon on the GPU. Every thread processes 8 neighbouring elements at a
// time, all reads have 16 bytes; one thread of each block reads the values that change from step to
// step, in double. Floors as in muon.hpp.

#include "kernels/update/muon.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/update/random_rounding.cuh"

namespace choir::cuda {

constexpr int kMuonThreads = 256;
constexpr int kMuonWide = 8;

/// Calls f<kMuonWide>(i) for packs and f<1>(i) for the elements behind them.
template <class F>
__device__ inline void for_muon_packs(std::int64_t n, bool packed, const F& f) {
  const std::int64_t packs = packed ? n / kMuonWide : 0;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads())
    f.template at<kMuonWide>(p * kMuonWide);
  for (std::int64_t i = packs * kMuonWide + global_thread(); i < n; i += global_threads())
    f.template at<1>(i);
}

template <class Moment>
struct MomentumElements {
  const float* gradient;
  Moment* m;
  float* direction;  ///< nullptr: none
  float momentum, of_gradient;
  bool nesterov;
  PhiloxKey rounding;
  ops::ElementNumbers numbers;
  std::uint64_t update;

  template <int kWide>
  __device__ inline void at(std::int64_t i) const {
    float g[kWide], mean[kWide];
    load_many(gradient + i, g);
    load_many(m + i, mean);
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      g[k] *= of_gradient;
      mean[k] = momentum * mean[k] + g[k];
    }
    if (direction != nullptr) {
#pragma unroll
      for (int k = 0; k < kWide; ++k) g[k] = nesterov ? g[k] + momentum * mean[k] : mean[k];
      store_many(direction + i, g);
    }
    if constexpr (sizeof(Moment) == 2) {
      std::uint32_t words[kWide];
      draw_words(rounding, numbers, update, i, words);
#pragma unroll
      for (int k = 0; k < kWide; ++k) mean[k] = round_at_random(mean[k], words[k]);
    }
    store_many(m + i, mean);
  }
};

template <class Moment>
__global__ void __launch_bounds__(kMuonThreads)
    muon_momentum_kernel(MomentumElements<Moment> elements, std::int64_t n, bool packed,
                         double momentum, const ops::StepControl* control) {
  wait_for_earlier();
  CHOIR_SHARED_ARRAY(float, of_gradient, 1);
  if (control->apply == 0) return;
  if (threadIdx.x == 0)
    *of_gradient = static_cast<float>((1 - momentum) * control->gradient_factor);
  __syncthreads();
  elements.of_gradient = *of_gradient;
  elements.update = static_cast<std::uint64_t>(control->updates);
  for_muon_packs(n, packed, elements);
}

struct DividedElements {
  float* x;
  float divisor;

  template <int kWide>
  __device__ inline void at(std::int64_t i) const {
    float values[kWide];
    load_many(x + i, values);
#pragma unroll
    for (int k = 0; k < kWide; ++k) values[k] /= divisor;
    store_many(x + i, values);
  }
};

__global__ void __launch_bounds__(kMuonThreads)
    divide_by_norm_kernel(float* x, std::int64_t n, bool packed, const double* square_sum,
                          double epsilon) {
  wait_for_earlier();
  CHOIR_SHARED_ARRAY(float, divisor, 1);
  if (threadIdx.x == 0) {
    const double norm = sqrt(*square_sum);
    *divisor = static_cast<float>(norm > epsilon ? norm : epsilon);
  }
  __syncthreads();
  for_muon_packs(n, packed, DividedElements{x, *divisor});
}

struct WeightedElements {
  const float *x, *y;
  float* out;
  float a, b;

  template <int kWide>
  __device__ inline void at(std::int64_t i) const {
    float of_x[kWide], of_y[kWide];
    load_many(x + i, of_x);
    load_many(y + i, of_y);
#pragma unroll
    for (int k = 0; k < kWide; ++k) of_x[k] = a * of_x[k] + b * of_y[k];
    store_many(out + i, of_x);
  }
};

__global__ void __launch_bounds__(kMuonThreads)
    weighted_sum_kernel(WeightedElements elements, std::int64_t n, bool packed) {
  wait_for_earlier();
  for_muon_packs(n, packed, elements);
}

template <class Copy>
struct SteppedElements {
  float* w;
  const float* direction;
  Copy* copy;  ///< nullptr: none
  float keep, move;

  template <int kWide>
  __device__ inline void at(std::int64_t i) const {
    float weight[kWide], d[kWide];
    load_many(w + i, weight);
    load_many(direction + i, d);
#pragma unroll
    for (int k = 0; k < kWide; ++k) weight[k] = keep * weight[k] - move * d[k];
    store_many(w + i, weight);
    if (copy != nullptr) store_many(copy + i, weight);
  }
};

template <class Copy>
__global__ void __launch_bounds__(kMuonThreads)
    muon_step_kernel(SteppedElements<Copy> elements, std::int64_t n, bool packed, double scale,
                     double factor, double decay, const ops::StepControl* control) {
  wait_for_earlier();
  CHOIR_SHARED_ARRAY(float, factors, 2);
  if (control->apply == 0) return;
  if (threadIdx.x == 0) {
    const double rate = control->learning_rate * scale;
    factors[0] = static_cast<float>(1 - rate * decay);
    factors[1] = static_cast<float>(rate * factor);
  }
  __syncthreads();
  elements.keep = factors[0];
  elements.move = factors[1];
  for_muon_packs(n, packed, elements);
}

namespace {

dim3 muon_blocks(std::int64_t n) {
  return elementwise_blocks(blocks_for(n, kMuonWide));
}

/// The elements, which must be f32.
float* muon_floats(const TensorView& x) {
  if (x.dtype == DType::f64) refuse_element(DType::f64);
  return x.as<float>();
}

template <class Moment>
void momentum_with(const Stream& stream, const ops::MuonMomentum& args) {
  const std::int64_t n = args.m.count();
  const MomentumElements<Moment> elements{
      muon_floats(args.gradient),
      args.m.as<Moment>(),
      args.direction.empty() ? nullptr : args.direction.as<float>(),
      static_cast<float>(args.momentum),
      0,
      args.nesterov,
      args.rounding,
      args.elements,
      0};
  const bool packed = (sizeof(Moment) > 2 || has_packs(args.elements, kMuonWide)) &&
                      can_pack<float>(0, args.gradient.data, args.m.data, args.direction.data);
  launch(stream, "muon_momentum", muon_momentum_kernel<Moment>, {muon_blocks(n), kMuonThreads},
         elements, n, packed, args.momentum, args.control);
}

template <class Copy>
void step_with_copy(const Stream& stream, const ops::MuonStep& args) {
  const SteppedElements<Copy> elements{args.master.as<float>(), args.direction.as<float>(),
                                       args.copy.empty() ? nullptr : args.copy.as<Copy>(), 0, 0};
  const std::int64_t n = args.master.count();
  launch(stream, "muon_step", muon_step_kernel<Copy>, {muon_blocks(n), kMuonThreads}, elements, n,
         can_pack<float>(0, args.master.data, args.direction.data, args.copy.data), args.scale,
         args.factor, args.decay, args.control);
}

}  // namespace

void muon_momentum(const Stream& stream, const ops::MuonMomentum& args) {
  if (args.m.count() == 0) return;
  args.m.dtype == DType::bf16 ? momentum_with<bf16>(stream, args)
                              : momentum_with<float>(stream, args);
}

void divide_by_norm(const Stream& stream, const TensorView& x, const TensorView& square_sum,
                    double epsilon) {
  const std::int64_t n = x.count();
  if (n == 0) return;
  launch(stream, "divide_by_norm", divide_by_norm_kernel, {muon_blocks(n), kMuonThreads},
         muon_floats(x), n, can_pack<float>(0, x.data), square_sum.as<double>(), epsilon);
}

void weighted_sum(const Stream& stream, double a, const TensorView& x, double b,
                  const TensorView& y, const TensorView& out) {
  const std::int64_t n = x.count();
  if (n == 0) return;
  const WeightedElements elements{muon_floats(x), y.as<float>(), out.as<float>(),
                                  static_cast<float>(a), static_cast<float>(b)};
  launch(stream, "weighted_sum", weighted_sum_kernel, {muon_blocks(n), kMuonThreads}, elements, n,
         can_pack<float>(0, x.data, y.data, out.data));
}

void muon_step(const Stream& stream, const ops::MuonStep& args) {
  if (args.master.count() == 0) return;
  muon_floats(args.master);
  args.copy.dtype == DType::f16 ? step_with_copy<f16>(stream, args)
                                : step_with_copy<bf16>(stream, args);
}

}  // namespace choir::cuda
