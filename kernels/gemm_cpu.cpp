#include "kernels/gemm.hpp"

namespace choir {

void gemm_cpu(PlanCache& plans, const GemmArgs& args) {
  if (gemm_onednn(plans, args)) return;
  gemm_blas(plans, args);
}

}  // namespace choir
