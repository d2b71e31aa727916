#include "kernels/adamw/adamw.cuh"

#include "kernels/adamw/adamw.hpp"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {
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
