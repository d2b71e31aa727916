// AdamW on flat memory in one pass. Every thread processes 8 neighbouring parameters at a time; all
// reads have 16 bytes and are issued before the first is used. One thread of each block reads the
// values that change from step to step from the step control, in double, while the first parameters
// are being loaded. Divisions and roots are correctly rounded; memory leaves time for them. bf16
// masters take the 16 random bits of each element from Philox, the same as on the CPU.
// Floor: 28 bytes per parameter for f32, 30 with a 16-bit copy, 24 for bf16 masters; 14 FLOP.

#include "kernels/update/adamw.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kAdamWThreads = 256;
constexpr int kAdamWWide = 8;

/// The numbers of one step, computed as in cpu::adamw().
struct AdamWStep {
  float scale, beta1, beta2, rest1, rest2, rate, root_correction, epsilon, keep;
  bool apply;
  std::uint64_t update;
};

template <class Master, class Copy>
struct AdamWMemory {
  Master* w;
  const float* gradient;
  float *m, *v;
  Copy* copy;  ///< nullptr: none
  std::int64_t n;
  bool packed;  ///< all pointers are aligned to 16 bytes
};

struct AdamWConstants {
  double beta1, beta2, epsilon, decay, scale;
  const ops::StepControl* control;
  PhiloxKey rounding;
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

/// Rounds to one of the two bf16 neighbours, as f32; NaN is preserved.
__device__ inline float round_at_random(float w, std::uint32_t random) {
  if (w != w) return w;
  return __uint_as_float((__float_as_uint(w) + (random & 0xffffu)) & 0xffff0000u);
}

/// kWide parameters from index i on.
template <int kWide>
struct AdamWValues {
  float w[kWide], gradient[kWide], m[kWide], v[kWide];
};

template <int kWide, class Master, class Copy>
__device__ inline void load_values(const AdamWMemory<Master, Copy>& at, std::int64_t i,
                                   AdamWValues<kWide>& x) {
  load_many(at.w + i, x.w);
  load_many(at.gradient + i, x.gradient);
  load_many(at.m + i, x.m);
  load_many(at.v + i, x.v);
}

template <int kWide, class Master, class Copy>
__device__ inline void update_values(const AdamWMemory<Master, Copy>& at, const AdamWStep& step,
                                     const AdamWConstants& c, std::int64_t i,
                                     AdamWValues<kWide>& x) {
#pragma unroll
  for (int k = 0; k < kWide; ++k) update_parameter(step, x.gradient[k], x.m[k], x.v[k], x.w[k]);
  if constexpr (sizeof(Master) == 2) {
    const auto element = static_cast<std::uint64_t>(c.elements.at(i));
    if constexpr (kWide == 1) {
      const PhiloxBlock words = philox_at(c.rounding, element / 4, step.update);
      std::uint32_t word = words[0];  // avoids an array in memory, which a variable index would
                                      // need
#pragma unroll
      for (unsigned j = 1; j < 4; ++j)
        if (element % 4 == j) word = words[j];
      x.w[0] = round_at_random(x.w[0], word);
    } else {
#pragma unroll
      for (int k = 0; k < kWide; k += 4) {
        const PhiloxBlock words = philox_at(c.rounding, element / 4 + k / 4, step.update);
#pragma unroll
        for (int j = 0; j < 4; ++j) x.w[k + j] = round_at_random(x.w[k + j], words[j]);
      }
    }
  }
  store_many(at.w + i, x.w);
  store_many(at.m + i, x.m);
  store_many(at.v + i, x.v);
  if (at.copy != nullptr) store_many(at.copy + i, x.w);
}

template <class Master, class Copy>
__global__ void __launch_bounds__(kAdamWThreads)
    adamw_kernel(AdamWMemory<Master, Copy> at, AdamWConstants constants) {
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

/// True if packs have consecutive numbers and use whole Philox calls.
bool has_packs(const ops::ElementNumbers& e) {
  const std::int64_t first = e.width == 0 ? e.first + e.column : e.first;
  return first % 4 == 0 && e.stride % 4 == 0 && e.width % kAdamWWide == 0 &&
         (e.width == 0 || e.column % kAdamWWide == 0);
}

template <class Master, class Copy>
void run(const Stream& stream, const ops::AdamW& args) {
  const AdamWMemory<Master, Copy> at{args.master.as<Master>(),
                                     args.gradient.as<float>(),
                                     args.m.as<float>(),
                                     args.v.as<float>(),
                                     args.copy.empty() ? nullptr : args.copy.as<Copy>(),
                                     args.master.count(),
                                     (sizeof(Master) > 2 || has_packs(args.elements)) &&
                                         can_pack<float>(0, args.master.data, args.gradient.data,
                                                         args.m.data, args.v.data, args.copy.data)};
  const AdamWConstants constants{args.beta1, args.beta2,   args.epsilon,  args.decay,
                                 args.scale, args.control, args.rounding, args.elements};
  launch(stream, "adamw", adamw_kernel<Master, Copy>,
         {elementwise_blocks(blocks_for(at.n, kAdamWWide)), kAdamWThreads}, at, constants);
}

}  // namespace

void adamw(const Stream& stream, const ops::AdamW& args) {
  if (args.master.count() == 0) return;
  if (args.master.dtype == DType::f64) refuse_element(DType::f64);
  if (args.master.dtype == DType::bf16) return run<bf16, bf16>(stream, args);
  args.copy.dtype == DType::f16 ? run<float, f16>(stream, args) : run<float, bf16>(stream, args);
}

}  // namespace choir::cuda
