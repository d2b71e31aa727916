#include "choir/device/null_device.hpp"

namespace choir {

void* NullDevice::allocate(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  void* address = reinterpret_cast<void*>(next_);
  // A block of size 0 (an arena whose size is not known yet) receives a range in which it can grow.
  next_ += bytes == 0 ? std::uintptr_t{1} << 44 : (bytes + kPage - 1) / kPage * kPage;
  live_ += bytes;
  return address;
}

}  // namespace choir
