#pragma once
// Where memory lives and work runs. The cpu device computes, the null device only counts (it plans
// memory and work for any layout on any machine), the cuda device is a value of the same things.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

namespace choir {

enum class DeviceKind { cpu, cuda, null };
std::string_view name_of(DeviceKind kind);

/// Compiled plans that ops keep for one device (GEMM primitives, attention graphs), found by their
/// type.
class PlanCache {
 public:
  /// The cache of type T, made on first use; later calls do not allocate.
  template <class T>
  T& get() {
    for (const Slot& slot : slots_)
      if (slot.type == std::type_index(typeid(T))) return *static_cast<T*>(slot.plans.get());
    slots_.push_back({std::type_index(typeid(T)), std::make_shared<T>()});
    return *static_cast<T*>(slots_.back().plans.get());
  }

 private:
  struct Slot {
    std::type_index type;
    std::shared_ptr<void> plans;
  };
  std::vector<Slot> slots_;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// "AVX-512 AMX CPU, 2 threads"
  virtual std::string description() const = 0;
  /// 64-byte aligned (pages of 2 MiB where the system gives them). Not zeroed. Throws Error with
  /// the size when memory is short. The null device hands out distinct addresses backed by nothing.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* address, std::size_t bytes) noexcept = 0;
  virtual void zero(void* address, std::size_t bytes) = 0;
  /// Both inside this device.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_from_host(void* to, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* from, std::size_t bytes) = 0;

  PlanCache& plans() { return plans_; }

 private:
  PlanCache plans_;
};

/// `cuda` throws DeckError in a build or on a machine without it.
std::unique_ptr<Device> make_device(DeviceKind kind);

/// FLOPs and bytes, added up by every op on every device (two adds a call).
struct WorkCounter {
  double flops = 0;
  double bytes = 0;
  void add(double more_flops, double more_bytes) { flops += more_flops, bytes += more_bytes; }
};

/// An ordered queue of work on one device; on the cpu work is done when the call returns.
class Stream {
 public:
  explicit Stream(Device& device, WorkCounter* counter = nullptr)
      : device_(&device), counter_(counter) {}
  Device& device() const { return *device_; }
  DeviceKind kind() const { return device_->kind(); }
  void count(double flops, double bytes) const {
    if (counter_) counter_->add(flops, bytes);
  }
  void synchronize() const {}

 private:
  Device* device_;
  WorkCounter* counter_;
};

/// Owning block of device memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace choir
