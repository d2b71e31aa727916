// CUDA runtime: memory and copies.
#include <sys/mman.h>

#include <cstdlib>
#include <memory>

#include "test/host_cuda/runtime.hpp"

using namespace host_cuda;

namespace {

[[maybe_unused]] constexpr std::size_t kPage = 4096;

}  // namespace

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  if (refused_in_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  if (r.used + bytes > device_memory()) return answer(cudaErrorMemoryAllocation);
#if defined(HOST_CUDA_MALLOC)
  const std::size_t size = bytes;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
#else
  const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#endif
  std::memset(memory, 0xFF, size);
#if !defined(HOST_CUDA_MALLOC)
  close_to_the_host(memory, size);
#endif
  r.device_blocks[static_cast<char*>(memory)] = size;
  r.used += size;
  *address = memory;
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  if (address == nullptr) return cudaSuccess;
  const auto block = r.device_blocks.find(static_cast<char*>(address));
  if (block == r.device_blocks.end()) return answer(cudaErrorInvalidValue);
  drain_all();  // waits for the device, as the real function does
  r.used -= block->second;
#if defined(HOST_CUDA_MALLOC)
  std::free(address);
#else
  munmap(address, block->second);
#endif
  r.device_blocks.erase(block);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  *address = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(*address, 0xFF, bytes);
  r.pinned_blocks[static_cast<char*>(*address)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  drain_all();
  r.pinned_blocks.erase(static_cast<char*>(address));
  std::free(address);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  const bool fresh = r.pinned_blocks.emplace(static_cast<char*>(address), bytes).second;
  return answer(fresh ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void* address) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  drain_all();
  const bool known = r.pinned_blocks.erase(static_cast<char*>(address)) > 0;
  return answer(known ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  if (width == 0 || height == 0) return cudaSuccess;
  const std::size_t to_bytes = (height - 1) * to_pitch + width;
  const std::size_t from_bytes = (height - 1) * from_pitch + width;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (inside(r.device_blocks, to, to_bytes) != to_device ||
      inside(r.device_blocks, from, from_bytes) != from_device)
    return answer(cudaErrorInvalidValue);
  const auto rows = [=](const char* source) {
    for (std::size_t y = 0; y < height; ++y)
      std::memcpy(static_cast<char*>(to) + y * to_pitch, source + y * from_pitch, width);
  };
  const bool pageable_source = !from_device && !inside(r.pinned_blocks, from, from_bytes);
  const bool pageable_target = !to_device && !inside(r.pinned_blocks, to, to_bytes);
  if (stream_of(stream).capture && (pageable_source || pageable_target)) {
    stream_of(stream).capture->invalid = true;
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  if (pageable_source) {  // read before the call returns
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                      static_cast<const char*>(from) + from_bytes);
    return enqueue(stream, {Operation::Kind::work, [=] { rows(staged->data()); }});
  }
  enqueue(stream, {Operation::Kind::work, [=] { rows(static_cast<const char*>(from)); }});
  if (pageable_target) drain(stream_of(stream));
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t stream) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  if (bytes == 0) return cudaSuccess;
  if (!inside(r.device_blocks, address, bytes)) return answer(cudaErrorInvalidValue);
  return enqueue(stream, {Operation::Kind::work, [=] { std::memset(address, value, bytes); }});
}
