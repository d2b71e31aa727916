// The functions of nccl_communicator.hpp in a build without CUDA.
#include "choir/core/error.hpp"
#include "src/comm/nccl/nccl_communicator.hpp"

namespace choir {

NcclAvailability nccl_availability(const std::string&) {
  return {.version = {}, .soname = {}, .reason = "this program was built without CUDA"};
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator&, Device&,
                                                     const std::string& name, const NcclOptions&) {
  throw CommError("NCCL on " + name + ": this program was built without CUDA",
                  "rebuild where nvcc is found (CUDA_HOME=DIR)");
}

NcclBlock make_nccl_block(Device&, std::span<Communicator* const>, std::size_t) {
  return {};
}

}  // namespace choir
