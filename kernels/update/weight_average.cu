// Averages of weights on the GPU. Every thread processes 8 neighbouring weights at a time, all
// reads have 16 bytes; one thread of each block reads the decision of the step. Floor: 12 bytes per
// f32 weight, 10 for bf16 weights.

#include "kernels/update/weight_average.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kAverageThreads = 256;
constexpr int kAverageWide = 8;

struct AverageFactors {
  float keep, take;
  bool apply, begins;
};

template <int kWide, class Weight>
__device__ inline void average_weights(float* average, const Weight* weight,
                                       const AverageFactors& s, std::int64_t i) {
  float e[kWide], w[kWide];
  load_many(average + i, e);
  load_many(weight + i, w);
#pragma unroll
  for (int k = 0; k < kWide; ++k) e[k] = s.begins ? w[k] : s.keep * e[k] + s.take * w[k];
  store_many(average + i, e);
}

template <class Weight>
__global__ void __launch_bounds__(kAverageThreads)
    weight_average_kernel(float* average, const Weight* weight, std::int64_t n, bool packed,
                          double decay, double first, const ops::StepControl* control) {
  wait_for_earlier();
  CHOIR_SHARED_ARRAY(AverageFactors, shared, 1);
  if (threadIdx.x == 0)
    *shared = {static_cast<float>(decay), static_cast<float>(1 - decay), control->apply != 0,
               control->updates == first};
  __syncthreads();
  const AverageFactors factors = *shared;
  if (!factors.apply) return;
  const std::int64_t packs = packed ? n / kAverageWide : 0;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads())
    average_weights<kAverageWide>(average, weight, factors, p * kAverageWide);
  for (std::int64_t i = packs * kAverageWide + global_thread(); i < n; i += global_threads())
    average_weights<1>(average, weight, factors, i);
}

namespace {

template <class Weight>
void average_of(const Stream& stream, const ops::WeightAverage& args) {
  const std::int64_t n = args.weight.count();
  launch(stream, "weight_average", weight_average_kernel<Weight>,
         {elementwise_blocks(blocks_for(n, kAverageWide)), kAverageThreads},
         args.average.as<float>(), static_cast<const Weight*>(args.weight.as<Weight>()), n,
         can_pack<float>(0, args.average.data, args.weight.data), args.decay,
         static_cast<double>(args.first), args.control);
}

}  // namespace

void weight_average(const Stream& stream, const ops::WeightAverage& args) {
  if (args.weight.count() == 0) return;
  if (args.weight.dtype == DType::f64) refuse_element(DType::f64);
  args.weight.dtype == DType::bf16 ? average_of<bf16>(stream, args)
                                   : average_of<float>(stream, args);
}

}  // namespace choir::cuda
