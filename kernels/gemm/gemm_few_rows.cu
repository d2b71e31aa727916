#include "kernels/gemm/gemm_few_rows.cuh"

#include "kernels/cuda/types.cuh"
#include "kernels/gemm/gemm.hpp"

namespace choir::cuda {
namespace {

template <class T>
bool multiply(const Stream& stream, const GemmArgs& args) {
  const auto* x = static_cast<const T*>(args.a);
  const auto* w = static_cast<const T*>(args.b);
  if (!can_pack<T>(args.k, x, w) || args.k > kMostItems / 2) return false;
  const bool wide = args.out == DType::f32 && sizeof(T) == 2;
  FewRowsArguments<T> a{x,
                        w,
                        static_cast<const T*>(args.bias),
                        wide ? nullptr : static_cast<T*>(args.c),
                        static_cast<float*>(args.c),
                        static_cast<int>(args.m),
                        args.n,
                        static_cast<int>(args.k),
                        1,
                        args.accumulate};
  while (a.share < kFewRowsWarps && a.share * args.n < kFewRowsEnough &&
         args.k > kFewRowsAhead * a.share * kWarp * kPack<T>)
    a.share *= 2;
  const auto run = [&](auto kernel) {
    launch_early(
        stream, "few_rows", kernel,
        {static_cast<unsigned>(blocks_for(args.n * a.share, kFewRowsWarps)), kFewRowsThreads}, a);
  };
  if (args.m == 1)
    run(few_rows_kernel<T, 1>);
  else
    run(few_rows_kernel<T, kFewRowsMost>);
  return true;
}

}  // namespace

bool gemm_few_rows(const Stream& stream, const GemmArgs& args) {
  const bool plain = args.batch == 1 && args.epilogue == ops::GemmEpilogue::none;
  if (!plain || args.m > kFewRowsMost || args.transpose_a || !args.transpose_b) return false;
  bool done = false;
  with_element(args.in, [&](auto t) { done = multiply<decltype(t)>(stream, args); });
  return done;
}

}  // namespace choir::cuda
