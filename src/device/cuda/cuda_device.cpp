#include "src/device/cuda/cuda_device.hpp"

#include <cuda_profiler_api.h>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "src/device/cuda/check.hpp"

// NVTX is header-only; without a profiler attached a call costs one comparison.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else  // host execution, where no profiler looks
static void nvtxRangePushA(const char*) {}
static void nvtxRangePop() {}
#endif

namespace choir::cuda {
namespace {

cudaStream_t stream_of(NativeStream stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(NativeEvent event) {
  return static_cast<cudaEvent_t>(event);
}

cudaMemcpyKind kind_of(CopyKind kind) {
  switch (kind) {
    case CopyKind::inside:
      return cudaMemcpyDeviceToDevice;
    case CopyKind::from_host:
      return cudaMemcpyHostToDevice;
    case CopyKind::to_host:
      return cudaMemcpyDeviceToHost;
  }
  return cudaMemcpyDefault;
}

}  // namespace

CudaDevice::CudaDevice(const Card& card) : card_(card) {
  CHOIR_CUDA(cudaSetDevice(card.ordinal));
  main_ = stream_of(create_stream(false));
}

CudaDevice::~CudaDevice() {
  plans() = {};  // cached plans may need the device for their destruction
  destroy_stream(main_);
}

std::string CudaDevice::description() const {
  return fmt::format("cuda {} ({}, sm_{}{}, {} SMs, {})", card_.ordinal, card_.name, card_.major,
                     card_.minor, card_.multiprocessors,
                     format_bytes(static_cast<double>(card_.memory)));
}

void* CudaDevice::allocate(std::size_t bytes) {
  void* address = nullptr;
  const cudaError_t status = cudaMalloc(&address, bytes);
  if (status != cudaErrorMemoryAllocation) {
    CHOIR_CUDA(status);
    return address;
  }
  cudaGetLastError();
  std::size_t free = 0, total = 0;
  CHOIR_CUDA(cudaMemGetInfo(&free, &total));
  throw Error(
      ExitCode::other,
      fmt::format("out of device memory on {}: {} requested, {} of {} free", card_.name,
                  format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(free)),
                  format_bytes(static_cast<double>(total))),
      "lower train.micro_batch_size, model.block_size or the size of the model");
}

void CudaDevice::release(void* address, std::size_t) noexcept {
  CHOIR_CUDA_QUIETLY(cudaFree(address));
}

void CudaDevice::zero(void* address, std::size_t bytes) {
  queue_zero(address, bytes, main_);
  synchronize(main_);
}

void CudaDevice::copy(void* to, const void* from, std::size_t bytes) {
  queue_copy(to, from, bytes, CopyKind::inside, main_);
  synchronize(main_);
}

void CudaDevice::copy_from_host(void* to, const void* host, std::size_t bytes) {
  queue_copy(to, host, bytes, CopyKind::from_host, main_);
  synchronize(main_);
}

void CudaDevice::copy_to_host(void* host, const void* from, std::size_t bytes) {
  queue_copy(host, from, bytes, CopyKind::to_host, main_);
  synchronize(main_);
}

NativeStream CudaDevice::create_stream(bool urgent) {
  int least = 0, greatest = 0;
  CHOIR_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  CHOIR_CUDA(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  return stream;
}

void CudaDevice::destroy_stream(NativeStream stream) noexcept {
  CHOIR_CUDA_QUIETLY(cudaStreamDestroy(stream_of(stream)));
}

void CudaDevice::synchronize(NativeStream stream) {
  CHOIR_CUDA(cudaStreamSynchronize(stream_of(stream)));
}

void CudaDevice::queue_zero(void* address, std::size_t bytes, NativeStream stream) {
  if (bytes > 0) CHOIR_CUDA(cudaMemsetAsync(address, 0, bytes, stream_of(stream)));
}

void CudaDevice::queue_copy(void* to, const void* from, std::size_t bytes, CopyKind kind,
                            NativeStream stream) {
  if (bytes > 0) CHOIR_CUDA(cudaMemcpyAsync(to, from, bytes, kind_of(kind), stream_of(stream)));
}

NativeEvent CudaDevice::create_event() {
  cudaEvent_t event = nullptr;
  CHOIR_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
  return event;
}

void CudaDevice::destroy_event(NativeEvent event) noexcept {
  CHOIR_CUDA_QUIETLY(cudaEventDestroy(event_of(event)));
}

void CudaDevice::record(NativeEvent event, NativeStream stream) {
  CHOIR_CUDA(cudaEventRecord(event_of(event), stream_of(stream)));
}

void CudaDevice::record_time(NativeEvent event, NativeStream stream) {
  if (!capturing_) return record(event, stream);
  CHOIR_CUDA(cudaEventRecordWithFlags(event_of(event), stream_of(stream), cudaEventRecordExternal));
}

void CudaDevice::wait(NativeStream stream, NativeEvent event) {
  CHOIR_CUDA(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}

void CudaDevice::synchronize_event(NativeEvent event) {
  CHOIR_CUDA(cudaEventSynchronize(event_of(event)));
}

bool CudaDevice::complete(NativeEvent event) {
  const cudaError_t status = cudaEventQuery(event_of(event));
  if (status == cudaErrorNotReady) return false;
  CHOIR_CUDA(status);
  return true;
}

double CudaDevice::seconds_between(NativeEvent from, NativeEvent to) {
  float milliseconds = 0;
  CHOIR_CUDA(cudaEventElapsedTime(&milliseconds, event_of(from), event_of(to)));
  return 1e-3 * static_cast<double>(milliseconds);
}

void CudaDevice::begin_capture(NativeStream stream) {
  // Thread-local mode: other threads of this process may continue to copy and allocate.
  CHOIR_CUDA(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
}

NativeGraph CudaDevice::end_capture(NativeStream stream) {
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  CHOIR_CUDA(cudaStreamEndCapture(stream_of(stream), &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  CHOIR_CUDA_QUIETLY(cudaGraphDestroy(graph));
  CHOIR_CUDA(status);
  return exec;
}

void CudaDevice::launch(NativeGraph graph, NativeStream stream) {
  CHOIR_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)));
}

void CudaDevice::destroy(NativeGraph graph) noexcept {
  CHOIR_CUDA_QUIETLY(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

void CudaDevice::begin_range(const char* name) {
  nvtxRangePushA(name);
}

void CudaDevice::end_range() {
  nvtxRangePop();
}

void CudaDevice::let_profilers_look(bool on) {
  CHOIR_CUDA(on ? cudaProfilerStart() : cudaProfilerStop());
}

void* CudaDevice::allocate_host(std::size_t bytes) {
  void* address = nullptr;
  CHOIR_CUDA(cudaHostAlloc(&address, bytes, cudaHostAllocDefault));
  return address;
}

void CudaDevice::release_host(void* address) noexcept {
  CHOIR_CUDA_QUIETLY(cudaFreeHost(address));
}

void CudaDevice::pin(void* host, std::size_t bytes) {
  CHOIR_CUDA(cudaHostRegister(host, bytes, cudaHostRegisterDefault));
}

void CudaDevice::unpin(void* host) noexcept {
  CHOIR_CUDA_QUIETLY(cudaHostUnregister(host));
}

void CudaDevice::enter_thread() {
  CHOIR_CUDA(cudaSetDevice(card_.ordinal));
}

std::size_t free_memory(const Device& device) {
  if (card_of(device) == nullptr) return 0;
  std::size_t free = 0, total = 0;
  CHOIR_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

const Card* card_of(const Device& device) {
  const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
  return cuda == nullptr ? nullptr : &cuda->card();
}

}  // namespace choir::cuda
