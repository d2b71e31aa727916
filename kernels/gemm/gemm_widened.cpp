#include <vector>

#include "kernels/gemm/gemm.hpp"
#include "kernels/reduce/reduce.hpp"

namespace choir {
namespace {

/// f32 copies of 16-bit operands; they grow to the largest product seen.
struct WideOperands {
  std::vector<float> a, b, c, bias;
};

float* room_for(std::int64_t count, std::vector<float>& scratch) {
  if (static_cast<std::int64_t>(scratch.size()) < count)
    scratch.resize(static_cast<std::size_t>(count));
  return scratch.data();
}

template <class T>
const float* widen(const void* from, std::int64_t count, std::vector<float>& scratch) {
  float* to = room_for(count, scratch);
  cpu::cast<T, float>({const_cast<void*>(from), DTypeOf<T>::value, Shape{count}},
                      {to, DType::f32, Shape{count}});
  return to;
}

template <class T>
void multiply(PlanCache& plans, const GemmArgs& args, GemmFunction* product) {
  auto& scratch = plans.get<WideOperands>();
  const std::int64_t count = args.m * args.n;
  GemmArgs wide = args;
  wide.in = wide.out = DType::f32;
  wide.a = widen<T>(args.a, args.m * args.k, scratch.a);
  wide.b = widen<T>(args.b, args.k * args.n, scratch.b);
  if (args.bias) wide.bias = widen<T>(args.bias, args.n, scratch.bias);
  if (args.out == DType::f32) return product(plans, wide);
  wide.c = room_for(count, scratch.c);
  if (args.accumulate) widen<T>(args.c, count, scratch.c);
  product(plans, wide);
  cpu::cast<float, T>({wide.c, DType::f32, Shape{count}}, {args.c, args.out, Shape{count}});
}

}  // namespace

void gemm_widened(PlanCache& plans, const GemmArgs& args, GemmFunction* product) {
  args.in == DType::bf16 ? multiply<bf16>(plans, args, product)
                         : multiply<f16>(plans, args, product);
}

}  // namespace choir
