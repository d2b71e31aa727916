#include "kernels/gemm/gemm.hpp"

namespace choir {

void gemm_cpu(PlanCache& plans, const GemmArgs& args) {
  if (args.reads_b_once && gemm_few_rows(plans, args)) return;
  if (gemm_onednn(plans, args)) return;
  // oneDNN has no f16 product on most processors, but the fastest f32 one.
  if (args.in == DType::f16) return gemm_widened(plans, args, gemm_cpu);
  gemm_blas(plans, args);
}

}  // namespace choir
