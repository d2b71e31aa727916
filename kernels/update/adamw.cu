// AdamW on flat memory in one pass. Every thread processes 8 neighbouring parameters at a time; all
// reads have 16 bytes and are issued before the first is used. One thread of each block reads the
// values that change from step to step from the step control, in double, while the first parameters
// are being loaded. Divisions and roots are correctly rounded; memory leaves time for them. bf16
// masters and bf16 moments take the 16 random bits of each element from Philox, the same as on the
// CPU. Floor: 28 bytes per parameter for f32, 30 with a 16-bit copy, 24 for bf16 masters, 8 less
// with bf16 moments; 14 FLOP.

#include "kernels/update/adamw.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/update/random_rounding.cuh"

namespace choir::cuda {

constexpr int kAdamWThreads = 256;
constexpr int kAdamWWide = 8;

/// The numbers of one step, computed as in cpu::adamw().
struct AdamWStep {
  float scale, beta1, beta2, rest1, rest2, rate, root_correction, epsilon, keep;
  bool apply;
  std::uint64_t update;
};

template <class Master, class Moment, class Copy>
struct AdamWMemory {
  Master* w;
  const float* gradient;
  Moment *m, *v;
  Copy* copy;  ///< nullptr: none
  std::int64_t n;
  bool packed;  ///< all pointers are aligned to 16 bytes
};

struct AdamWConstants {
  double beta1, beta2, epsilon, decay, scale;
  const ops::StepControl* control;
  PhiloxKey rounding, moment_rounding;
  ops::ElementNumbers elements;
};

__device__ inline AdamWStep adamw_step(const AdamWConstants& c) {
  const ops::StepControl& now = *c.control;
  const double learning_rate = now.learning_rate * c.scale;
  return {.scale = static_cast<float>(now.gradient_factor),
          .beta1 = static_cast<float>(c.beta1),
          .beta2 = static_cast<float>(c.beta2),
          .rest1 = static_cast<float>(1 - c.beta1),
          .rest2 = static_cast<float>(1 - c.beta2),
          .rate = static_cast<float>(learning_rate / now.correction1),
          .root_correction = static_cast<float>(1 / sqrt(now.correction2)),
          .epsilon = static_cast<float>(c.epsilon),
          .keep = static_cast<float>(1 - learning_rate * c.decay),
          .apply = now.apply != 0,
          .update = static_cast<std::uint64_t>(now.updates)};
}

/// m, v and w of one parameter after the step.
__device__ inline void update_parameter(const AdamWStep& s, float gradient, float& m, float& v,
                                        float& w) {
  const float g = gradient * s.scale;
  m = s.beta1 * m + s.rest1 * g;
  v = s.beta2 * v + s.rest2 * g * g;
  w = w * s.keep - s.rate * m / (sqrtf(v) * s.root_correction + s.epsilon);
}

/// kWide parameters from index i on.
template <int kWide>
struct AdamWValues {
  float w[kWide], gradient[kWide], m[kWide], v[kWide];
};

template <int kWide, class Master, class Moment, class Copy>
__device__ inline void load_values(const AdamWMemory<Master, Moment, Copy>& at, std::int64_t i,
                                   AdamWValues<kWide>& x) {
  load_many(at.w + i, x.w);
  load_many(at.gradient + i, x.gradient);
  load_many(at.m + i, x.m);
  load_many(at.v + i, x.v);
}

template <int kWide, class Master, class Moment, class Copy>
__device__ inline void update_values(const AdamWMemory<Master, Moment, Copy>& at,
                                     const AdamWStep& step, const AdamWConstants& c, std::int64_t i,
                                     AdamWValues<kWide>& x) {
#pragma unroll
  for (int k = 0; k < kWide; ++k) update_parameter(step, x.gradient[k], x.m[k], x.v[k], x.w[k]);
  if constexpr (sizeof(Master) == 2) {
    std::uint32_t words[kWide];
    draw_words(c.rounding, c.elements, step.update, i, words);
#pragma unroll
    for (int k = 0; k < kWide; ++k) x.w[k] = round_at_random(x.w[k], words[k]);
  }
  if constexpr (sizeof(Moment) == 2) {
    std::uint32_t words[kWide];
    draw_words(c.moment_rounding, c.elements, step.update, i, words);
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      x.m[k] = round_at_random(x.m[k], words[k]);
      x.v[k] = round_at_random(x.v[k], words[k] >> 16);
    }
  }
  store_many(at.w + i, x.w);
  store_many(at.m + i, x.m);
  store_many(at.v + i, x.v);
  if (at.copy != nullptr) store_many(at.copy + i, x.w);
}

template <class Master, class Moment, class Copy>
__global__ void __launch_bounds__(kAdamWThreads)
    adamw_kernel(AdamWMemory<Master, Moment, Copy> at, AdamWConstants constants) {
  wait_for_earlier();
  CHOIR_SHARED_ARRAY(AdamWStep, shared, 1);
  const std::int64_t packs = at.packed ? at.n / kAdamWWide : 0;
  std::int64_t p = global_thread();
  AdamWValues<kAdamWWide> values;
  if (p < packs) load_values(at, p * kAdamWWide, values);
  if (threadIdx.x == 0) *shared = adamw_step(constants);
  __syncthreads();
  const AdamWStep step = *shared;
  if (!step.apply) return;
  while (p < packs) {
    update_values(at, step, constants, p * kAdamWWide, values);
    p += global_threads();
    if (p < packs) load_values(at, p * kAdamWWide, values);
  }
  for (std::int64_t i = packs * kAdamWWide + global_thread(); i < at.n; i += global_threads()) {
    AdamWValues<1> value;
    load_values(at, i, value);
    update_values(at, step, constants, i, value);
  }
}

namespace {

template <class Master, class Moment, class Copy>
void run(const Stream& stream, const ops::AdamW& args) {
  constexpr bool kRandom = sizeof(Master) == 2 || sizeof(Moment) == 2;
  const AdamWMemory<Master, Moment, Copy> at{
      args.master.as<Master>(),
      args.gradient.as<float>(),
      args.m.as<Moment>(),
      args.v.as<Moment>(),
      args.copy.empty() ? nullptr : args.copy.as<Copy>(),
      args.master.count(),
      (!kRandom || has_packs(args.elements, kAdamWWide)) &&
          can_pack<float>(0, args.master.data, args.gradient.data, args.m.data, args.v.data,
                          args.copy.data)};
  const AdamWConstants constants{args.beta1,    args.beta2,           args.epsilon,
                                 args.decay,    args.scale,           args.control,
                                 args.rounding, args.moment_rounding, args.elements};
  launch(stream, "adamw", adamw_kernel<Master, Moment, Copy>,
         {elementwise_blocks(blocks_for(at.n, kAdamWWide)), kAdamWThreads}, at, constants);
}

template <class Moment>
void run_with(const Stream& stream, const ops::AdamW& args) {
  if (args.master.dtype == DType::bf16) return run<bf16, Moment, bf16>(stream, args);
  args.copy.dtype == DType::f16 ? run<float, Moment, f16>(stream, args)
                                : run<float, Moment, bf16>(stream, args);
}

}  // namespace

void adamw(const Stream& stream, const ops::AdamW& args) {
  if (args.master.count() == 0) return;
  if (args.master.dtype == DType::f64) refuse_element(DType::f64);
  args.m.dtype == DType::bf16 ? run_with<bf16>(stream, args) : run_with<float>(stream, args);
}

}  // namespace choir::cuda
