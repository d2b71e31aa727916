// The functions of cuda.hpp in a build without CUDA.
#include "choir/core/error.hpp"
#include "src/device/cuda.hpp"

namespace choir::cuda {

Availability availability() {
  return {.cards = {},
          .reason = "this program was built without CUDA",
          .hint = "rebuild where nvcc is found (CUDA_HOME=DIR), or use device=cpu",
          .driver = {},
          .toolkit = {}};
}

std::unique_ptr<Device> make_device(int) {
  const Availability none = availability();
  throw DeckError("device 'cuda': " + none.reason, none.hint);
}

const Card* card_of(const Device&) {
  return nullptr;
}

void set_dependent_launch(Device&, bool) {}

bool has_dependent_launch(const Device&) {
  return false;
}

bool may_begin_early(const Stream&) {
  return false;
}

bool can_access(int, int) {
  return false;
}

std::size_t free_memory(const Device&) {
  return 0;
}

void provide_next(Device&, std::shared_ptr<void>) {}

}  // namespace choir::cuda
