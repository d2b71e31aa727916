#include "kernels/gemm.hpp"
#include "kernels/ref_element.hpp"

namespace choir::ref {

void gemm(const GemmArgs& args) {
  for (std::int64_t i = 0; i < args.m; ++i)
    for (std::int64_t j = 0; j < args.n; ++j) {
      double sum = args.accumulate ? load(args.c, args.out, i * args.n + j) : 0;
      if (args.bias) sum += load(args.bias, args.in, j);
      for (std::int64_t p = 0; p < args.k; ++p) {
        const std::int64_t at_a = args.transpose_a ? p * args.m + i : i * args.k + p;
        const std::int64_t at_b = args.transpose_b ? j * args.k + p : p * args.n + j;
        sum += load(args.a, args.in, at_a) * load(args.b, args.in, at_b);
      }
      store(args.c, args.out, i * args.n + j, sum);
    }
}

}  // namespace choir::ref
