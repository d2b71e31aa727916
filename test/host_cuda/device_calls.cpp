// CUDA runtime: the devices. There is one, or HOST_CUDA_CARDS of them, without a maker's name and
// with compute capability 9.0 or HOST_CUDA_CAPABILITY ("80"), and with 4 multiprocessors or
// HOST_CUDA_MULTIPROCESSORS. With HOST_CUDA_MIG they are slices of
// one card. With HOST_CUDA_ISOLATED a process sees only the one of its local rank, as in a control
// group.
#include <cstdio>
#include <cstdlib>

#include "src/comm/nccl_needs.hpp"
#include "test/host_cuda/runtime.hpp"

using namespace host_cuda;

namespace {

// A process uses one of them; all are equal for it.
int current = 0;

bool isolated() {
  return std::getenv("HOST_CUDA_ISOLATED") != nullptr;
}

int cards() {
  const char* text = std::getenv("HOST_CUDA_CARDS");
  return text != nullptr && !isolated() ? std::atoi(text) : 1;
}

/// The number of a visible device on the node.
int on_node(int device) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  return isolated() && rank != nullptr ? std::atoi(rank) : device;
}

bool slices() {
  return std::getenv("HOST_CUDA_MIG") != nullptr;
}

int multiprocessors() {
  const char* text = std::getenv("HOST_CUDA_MULTIPROCESSORS");
  return text != nullptr ? std::atoi(text) : 4;
}

int capability() {
  const char* text = std::getenv("HOST_CUDA_CAPABILITY");
  return text != nullptr ? std::atoi(text) : 90;
}

}  // namespace

// By default 2 GiB for a program and room for three communicators of NCCL, with messages to all
// ranks of the job.
std::size_t host_cuda::device_memory() {
  constexpr std::size_t kOfProgram = std::size_t{2} << 30, kCommunicators = 3;
  if (const char* text = std::getenv("HOST_CUDA_MEMORY"))
    return static_cast<std::size_t>(std::atoi(text)) << 20;
  const char* const job = std::getenv("OMPI_COMM_WORLD_SIZE");
  const int ranks = job != nullptr ? std::atoi(job) : 1;
  return kOfProgram + kCommunicators * choir::nccl_bytes({.ranks = ranks, .peers = ranks - 1});
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = cards();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= cards()) return answer(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device < 0 || device >= cards()) return answer(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "host execution%s", slices() ? " MIG 1g" : "");
  p->uuid.bytes[15] = static_cast<char>(1 + on_node(device));
  p->totalGlobalMem = device_memory();
  p->major = capability() / 10, p->minor = capability() % 10,
  p->multiProcessorCount = multiprocessors();
  p->sharedMemPerBlockOptin = host_cuda::kMaxSharedBytes;
  p->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrClockRate             ? 1000000
           : attribute == cudaDevAttrMultiProcessorCount ? multiprocessors()
                                                         : int{host_cuda::kMaxSharedBytes};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0",
                slices() ? 0 : on_node(device));
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer && !slices();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = device_memory() - runtime().used, *total = device_memory();
  return cudaSuccess;
}

cudaError_t cudaPeekAtLastError() {
  return runtime().last;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = runtime().last;
  runtime().last = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}
