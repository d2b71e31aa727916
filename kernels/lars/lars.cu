#include "kernels/lars/lars.cuh"

#include "kernels/cuda/types.cuh"

namespace choir::cuda {
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
