#include "choir/device/device.hpp"

#include <utility>

#include "choir/core/error.hpp"
#include "choir/device/cpu_device.hpp"
#include "choir/device/null_device.hpp"

namespace choir {

std::string_view name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda";
    case DeviceKind::null:
      return "null";
  }
  return "?";
}

std::unique_ptr<Device> make_device(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return std::make_unique<CpuDevice>();
    case DeviceKind::null:
      return std::make_unique<NullDevice>();
    case DeviceKind::cuda:
      break;
  }
  throw DeckError("device 'cuda' is not part of this build", "use device=cpu or device=auto");
}

Buffer::Buffer(Device& device, std::size_t bytes)
    : device_(&device), data_(bytes ? device.allocate(bytes) : nullptr), bytes_(bytes) {}

Buffer::~Buffer() {
  if (data_) device_->release(data_, bytes_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace choir
