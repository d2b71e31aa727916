#pragma once
// A named range of work for profilers: an NVTX range on the cuda device, nothing on others.
#include "choir/device/device.hpp"

namespace choir {

/// The range lasts from construction to destruction, as the host queues the work; ranges nest.
class ProfileRange {
 public:
  ProfileRange(const Stream& stream, const char* name) : device_(&stream.device()) {
    device_->begin_range(name);
  }
  ~ProfileRange() { device_->end_range(); }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  Device* device_;
};

}  // namespace choir
