#include "choir/parallel/comm_memory.hpp"

namespace choir {

CommMemory::CommMemory(Device& device, Communicator& comm, std::size_t bytes) {
  const bool alone = comm.size() == 1 && !device.host_visible();
  if (device.kind() == DeviceKind::null || alone)
    own_ = Buffer(device, bytes);
  else
    shared_ = comm.allocate(bytes);
  device.zero(data(), bytes);
}

}  // namespace choir
