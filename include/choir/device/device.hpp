#pragma once
// The devices: memory, and the work on it. The cpu device computes, the null device only counts (it
// plans memory and work for any layout on any machine), the cuda device queues work on streams. A
// ProfileRange names a range of work for profilers.

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

/// Compiled plans that ops keep for one device (GEMM primitives, attention graphs), indexed by
/// their type.
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

/// A stream or an event of the cuda device (cudaStream_t, cudaEvent_t); nullptr on the others.
using NativeStream = void*;
using NativeEvent = void*;
/// Recorded work, ready to be launched (cudaGraphExec_t).
using NativeGraph = void*;

enum class CopyKind { inside, from_host, to_host };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// "AVX-512 AMX CPU, 2 threads"
  virtual std::string description() const = 0;
  /// Memory aligned to 64 bytes (to pages of 2 MiB if the system provides them), not zeroed. Throws
  /// Error with the size if memory is short. The null device returns distinct addresses without
  /// memory.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* address, std::size_t bytes) noexcept = 0;

  // Synchronous operations: they are done when the call returns, after everything queued on the
  // main stream. They serve set-up, checkpoints and results, not the step.
  virtual void zero(void* address, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;  ///< within this device
  virtual void copy_from_host(void* to, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* from, std::size_t bytes) = 0;

  /// The kind of device for which workspaces are planned: this one, unless it is a null device.
  virtual DeviceKind plans_for() const { return kind(); }
  /// True if the host may read and write device memory directly.
  virtual bool host_visible() const { return kind() == DeviceKind::cpu; }

  // Primitives of Stream, Event, SideStream and HostBuffer. The defaults suit devices on which work
  // is done when the call returns.
  virtual NativeStream main_stream() const { return nullptr; }
  virtual NativeStream create_stream(bool /*urgent*/) { return nullptr; }
  virtual void destroy_stream(NativeStream) noexcept {}
  virtual void synchronize(NativeStream) {}
  virtual void queue_zero(void* address, std::size_t bytes, NativeStream) { zero(address, bytes); }
  virtual void queue_copy(void* to, const void* from, std::size_t bytes, CopyKind kind,
                          NativeStream stream);
  virtual NativeEvent create_event() { return nullptr; }
  virtual void destroy_event(NativeEvent) noexcept {}
  virtual void record(NativeEvent, NativeStream) {}
  virtual void record_time(NativeEvent event, NativeStream stream) { record(event, stream); }
  virtual void wait(NativeStream, NativeEvent) {}
  virtual void synchronize_event(NativeEvent) {}
  virtual bool complete(NativeEvent) { return true; }
  virtual double seconds_between(NativeEvent, NativeEvent) { return 0; }
  virtual void* allocate_host(std::size_t bytes);
  virtual void release_host(void* address) noexcept;

  /// Graphs: the work of one stream is recorded once and replayed as a whole. Between begin and end
  /// the calls on the stream queue nothing; streams that wait for its events join in. The defaults
  /// throw; call these functions only if records_graphs() is true.
  virtual bool records_graphs() const { return kind() == DeviceKind::cuda; }
  virtual void begin_capture(NativeStream);
  virtual NativeGraph end_capture(NativeStream);
  virtual void launch(NativeGraph, NativeStream);
  virtual void destroy(NativeGraph) noexcept {}

  /// Called by ProfileRange.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}
  /// Starts or stops a profiler that waits for this call (nsys --capture-range=cudaProfilerApi).
  virtual void let_profilers_look(bool /*on*/) {}

  /// Pins host memory that another object owns until unpin(), so that copies are as fast as with
  /// allocate_host(). Throws Error if the system refuses.
  virtual void pin(void* /*host*/, std::size_t /*bytes*/) {}
  virtual void unpin(void* /*host*/) noexcept {}
  /// Called by a thread that did not create the device, before its first call on it.
  virtual void enter_thread() {}

  PlanCache& plans() { return plans_; }

 private:
  PlanCache plans_;
};

/// Creates the cpu or null device, or the cuda device number `ordinal`. Throws DeckError if the
/// build or the machine lacks it.
std::unique_ptr<Device> make_device(DeviceKind kind, int ordinal = 0);

/// FLOPs and bytes, summed by every op on every device (two additions per call).
struct WorkCounter {
  double flops = 0;
  double bytes = 0;
  void add(double more_flops, double more_bytes) { flops += more_flops, bytes += more_bytes; }
};

class Event;

/// An ordered queue of work on one device. A Stream is a value that names the queue and does not
/// own it. On the cpu, work is done when the call returns.
class Stream {
 public:
  explicit Stream(Device& device, WorkCounter* counter = nullptr)
      : Stream(device, device.main_stream(), counter) {}
  Stream(Device& device, NativeStream native, WorkCounter* counter = nullptr)
      : device_(&device), native_(native), counter_(counter) {}

  Device& device() const { return *device_; }
  DeviceKind kind() const { return device_->kind(); }
  NativeStream native() const { return native_; }
  void count(double flops, double bytes) const {
    if (counter_) counter_->add(flops, bytes);
  }

  /// Blocks the host until everything queued so far is done.
  void synchronize() const { device_->synchronize(native_); }
  /// Copies and zeroing are ordered with the other work of this stream. A copy is asynchronous only
  /// if its host memory comes from HostBuffer; that memory must not change until the copy is done.
  void zero(void* address, std::size_t bytes) const {
    device_->queue_zero(address, bytes, native_);
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    device_->queue_copy(to, from, bytes, CopyKind::inside, native_);
  }
  void copy_from_host(void* to, const void* host, std::size_t bytes) const {
    device_->queue_copy(to, host, bytes, CopyKind::from_host, native_);
  }
  void copy_to_host(void* host, const void* from, std::size_t bytes) const {
    device_->queue_copy(host, from, bytes, CopyKind::to_host, native_);
  }
  /// Later work of this stream runs after the work before the event. The host does not wait.
  void wait(const Event& event) const;

 private:
  Device* device_;
  NativeStream native_;
  WorkCounter* counter_;
};

/// A stream beside the main one, for copies and communication. The blocks of an `urgent` stream are
/// scheduled before those of other streams.
class SideStream {
 public:
  explicit SideStream(Device& device, bool urgent = false);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  const Stream& stream() const { return stream_; }

 private:
  Stream stream_;
};

/// A point in the work of a stream and the time at which it was reached (on the cpu, the time of
/// the call).
class Event {
 public:
  explicit Event(Device& device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream);
  /// For measurements: in a recorded graph every replay takes the time again, but no stream can
  /// wait for the event.
  void record_time(const Stream& stream);
  /// Blocks the host until the point is reached.
  void synchronize() const { device_->synchronize_event(native_); }
  bool complete() const { return device_->complete(native_); }
  /// Seconds between two events that are recorded and reached.
  double seconds_since(const Event& earlier) const;
  NativeEvent native() const { return native_; }

 private:
  Device* device_;
  NativeEvent native_;
  double time_ = 0;  // for devices without events
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

/// Owning block of host memory for fast copies from and to the device that do not block the host
/// (pinned on cuda). 64-byte aligned, zeroed.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(Device& device, std::size_t bytes);
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

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
