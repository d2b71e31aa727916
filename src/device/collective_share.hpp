#pragma once
// The share of a GPU that products and other work leave to collectives: multiprocessors for their
// kernels, and blocks of memory that the library of collectives has allocated. The library knows
// nothing of the device's work and the kernels nothing of the library: both meet here.
#include <cstddef>
#include <memory>

#include "choir/device/device.hpp"

namespace choir {

/// Multiprocessors that products leave free while a collective is in flight. A product whose thread
/// blocks fill the GPU keeps the kernel of a collective waiting until one of them ends, whatever
/// the priorities of their streams are. The communicator counts the operations that were started
/// and not waited for; a product that is queued in between gets the rest of the multiprocessors.
/// Work in a graph keeps the number that it was recorded with. All calls are made by one thread.
class CollectiveRoom {
 public:
  /// From now on so many multiprocessors stay free; 0: none.
  void reserve(int multiprocessors) { reserved_ = multiprocessors; }
  int reserved() const { return reserved_; }
  /// A collective was started, or is complete for the work that is queued from now on.
  void begin() { ++in_flight_; }
  void end() { --in_flight_; }
  int in_flight() const { return in_flight_; }
  /// The multiprocessors of `all` that a product may use which is queued now; 0: no limit.
  int left_of(int all) const {
    if (reserved_ == 0 || in_flight_ == 0) return 0;
    return reserved_ < all ? all - reserved_ : 1;
  }

 private:
  int reserved_ = 0, in_flight_ = 0;
};
inline CollectiveRoom& collective_room(Device& device) {
  return device.plans().get<CollectiveRoom>();
}

namespace cuda {

/// The next allocate() of a cuda device returns this block, whatever its size, and release() of its
/// address destroys the handle. Does nothing without a block. Local.
void provide_next(Device& device, std::shared_ptr<void> block);

}  // namespace cuda
}  // namespace choir
