// LARS on the GPU. Update: every thread processes 8 neighbouring parameters at a time, all reads
// have 16 bytes; one thread of each block reads the values that change from step to step, in
// double. Ratios: one block per tensor, whose threads take its chunks in turn. Floor of the update:
// 20 bytes per parameter, 22 with a 16-bit copy; the ratios are bound by the launch alone.

#include "kernels/update/lars.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kLarsThreads = 256;
constexpr int kLarsWide = 8;
constexpr int kRatioThreads = 128;

struct LarsFactors {
  float momentum, of_gradient, of_weight;
  bool apply;
};

template <class Copy>
struct LarsMemory {
  float* w;
  const float* gradient;
  float* v;
  Copy* copy;  ///< nullptr: none
  std::int64_t n;
  bool packed;  ///< all pointers are aligned to 16 bytes
};

template <int kWide, class Copy>
__device__ inline void lars_update(const LarsMemory<Copy>& at, const LarsFactors& s,
                                   std::int64_t i) {
  float w[kWide], gradient[kWide], v[kWide];
  load_many(at.w + i, w);
  load_many(at.gradient + i, gradient);
  load_many(at.v + i, v);
#pragma unroll
  for (int k = 0; k < kWide; ++k) {
    v[k] = s.momentum * v[k] + (s.of_gradient * gradient[k] + s.of_weight * w[k]);
    w[k] -= v[k];
  }
  store_many(at.v + i, v);
  store_many(at.w + i, w);
  if (at.copy != nullptr) store_many(at.copy + i, w);
}

template <class Copy>
__global__ void __launch_bounds__(kLarsThreads)
    lars_kernel(LarsMemory<Copy> at, double momentum, double scale, const double* ratio,
                const ops::StepControl* control) {
  wait_for_earlier();
  CHOIR_SHARED_ARRAY(LarsFactors, shared, 1);
  if (threadIdx.x == 0) {
    const double rate = control->learning_rate * scale;
    const double of_gradient = ratio != nullptr ? ratio[0] : 1;
    const double of_weight = ratio != nullptr ? ratio[1] : 0;
    *shared = {static_cast<float>(momentum),
               static_cast<float>(rate * of_gradient * control->gradient_factor),
               static_cast<float>(rate * of_weight), control->apply != 0};
  }
  __syncthreads();
  const LarsFactors factors = *shared;
  if (!factors.apply) return;
  const std::int64_t packs = at.packed ? at.n / kLarsWide : 0;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads())
    lars_update<kLarsWide>(at, factors, p * kLarsWide);
  for (std::int64_t i = packs * kLarsWide + global_thread(); i < at.n; i += global_threads())
    lars_update<1>(at, factors, i);
}

/// Grid: one block per tensor.
__global__ void __launch_bounds__(kRatioThreads)
    trust_ratio_kernel(const double* weight_sums, const double* gradient_sums,
                       const std::int64_t* begins, double* ratios, double coefficient, double decay,
                       double epsilon, const ops::StepControl* control) {
  wait_for_earlier();
  CHOIR_SHARED_ARRAY(double, scratch, kRatioThreads / kWarp);
  const std::int64_t end = begins[blockIdx.x + 1];
  double weights = 0, gradients = 0;
  for (std::int64_t i = begins[blockIdx.x] + threadIdx.x; i < end; i += kRatioThreads) {
    weights += weight_sums[i];
    gradients += gradient_sums[i];
  }
  weights = block_reduce<Sum, kRatioThreads>(weights, scratch);
  gradients = block_reduce<Sum, kRatioThreads>(gradients, scratch);
  if (threadIdx.x == 0)
    set_trust_ratio(weights, gradients, control->gradient_factor, coefficient, decay, epsilon,
                    ratios + 2 * std::int64_t{blockIdx.x});
}

namespace {

template <class Copy>
void lars_with_copy(const Stream& stream, const ops::Lars& args) {
  const LarsMemory<Copy> at{
      args.master.as<float>(),
      args.gradient.as<float>(),
      args.velocity.as<float>(),
      args.copy.empty() ? nullptr : args.copy.as<Copy>(),
      args.master.count(),
      can_pack<float>(0, args.master.data, args.gradient.data, args.velocity.data, args.copy.data)};
  launch(stream, "lars", lars_kernel<Copy>,
         {elementwise_blocks(blocks_for(at.n, kLarsWide)), kLarsThreads}, at, args.momentum,
         args.scale, args.ratio, args.control);
}

}  // namespace

void trust_ratios(const Stream& stream, const ops::TrustRatios& args) {
  const std::int64_t tensors = args.begins.count() - 1;
  if (tensors == 0) return;
  launch(stream, "trust_ratios", trust_ratio_kernel,
         {static_cast<unsigned>(tensors), kRatioThreads}, args.weight_sums.as<double>(),
         args.gradient_sums.as<double>(), args.begins.as<std::int64_t>(), args.ratios.as<double>(),
         args.coefficient, args.decay, args.epsilon, args.control);
}

void lars(const Stream& stream, const ops::Lars& args) {
  if (args.master.count() == 0) return;
  if (args.master.dtype == DType::f64) refuse_element(DType::f64);
  args.copy.dtype == DType::f16 ? lars_with_copy<f16>(stream, args)
                                : lars_with_copy<bf16>(stream, args);
}

}  // namespace choir::cuda
