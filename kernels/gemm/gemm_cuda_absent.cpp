// Stubs for builds without CUDA: no stream of that kind can exist, so they are never called.
#include "choir/core/error.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {

void gemm_cuda(const Stream&, const GemmArgs&) {
  throw Error(ExitCode::other, "gemm: this program was built without CUDA");
}

bool gemm_cuda_offers(const Stream&, const GemmArgs&) {
  return false;
}

std::vector<double> time_cuda_proposals(const Stream&, const ops::Product&) {
  return {};
}

void choose_cuda_products(Device&, const ops::ProductChoices&) {}

std::string cuda_product_library() {
  return {};
}

}  // namespace choir
