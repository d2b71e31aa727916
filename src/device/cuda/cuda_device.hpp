#pragma once
// One GPU as a device: memory, a main stream, further streams and events.
#include <cuda_runtime.h>

#include "choir/device/cuda.hpp"

namespace choir::cuda {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const Card& card);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override;
  void* allocate(std::size_t bytes) override;
  void release(void* address, std::size_t bytes) noexcept override;
  void zero(void* address, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void copy_from_host(void* to, const void* host, std::size_t bytes) override;
  void copy_to_host(void* host, const void* from, std::size_t bytes) override;

  NativeStream main_stream() const override { return main_; }
  NativeStream create_stream(bool urgent) override;
  void destroy_stream(NativeStream stream) noexcept override;
  void synchronize(NativeStream stream) override;
  void queue_zero(void* address, std::size_t bytes, NativeStream stream) override;
  void queue_copy(void* to, const void* from, std::size_t bytes, CopyKind kind,
                  NativeStream stream) override;
  NativeEvent create_event() override;
  void destroy_event(NativeEvent event) noexcept override;
  void record(NativeEvent event, NativeStream stream) override;
  void record_time(NativeEvent event, NativeStream stream) override;
  void wait(NativeStream stream, NativeEvent event) override;
  void synchronize_event(NativeEvent event) override;
  bool complete(NativeEvent event) override;
  double seconds_between(NativeEvent from, NativeEvent to) override;
  void* allocate_host(std::size_t bytes) override;
  void release_host(void* address) noexcept override;
  void pin(void* host, std::size_t bytes) override;
  void unpin(void* host) noexcept override;
  void enter_thread() override;

  void begin_capture(NativeStream stream) override;
  NativeGraph end_capture(NativeStream stream) override;
  void launch(NativeGraph graph, NativeStream stream) override;
  void destroy(NativeGraph graph) noexcept override;

  void begin_range(const char* name) override;
  void end_range() override;
  void let_profilers_look(bool on) override;

  const Card& card() const { return card_; }

 private:
  Card card_;
  cudaStream_t main_ = nullptr;
  bool capturing_ = false;
};

}  // namespace choir::cuda
