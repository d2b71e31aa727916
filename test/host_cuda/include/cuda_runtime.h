#pragma once
// Replaces NVIDIA's header of this name if kernels run on the CPU: the part of the CUDA language
// and runtime that choir uses, on test/host_cuda/block.hpp and runtime.cpp. Names and meanings are
// NVIDIA's (CUDA C++ Programming Guide, Runtime API reference).
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "test/host_cuda/block.hpp"

#define CHOIR_HOST_CUDA 1

// --- language ------------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) double2 { double x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#define threadIdx (host_cuda::thread_index())
#define blockIdx (host_cuda::block_index())
#define blockDim (host_cuda::block_extent())
#define gridDim (host_cuda::grid_extent())
inline constexpr int warpSize = 32;

inline void __syncthreads(host_cuda::Where where = host_cuda::Where::current()) {
  host_cuda::synchronize_block(where);
}
inline void __syncwarp(unsigned mask = ~0u, host_cuda::Where where = host_cuda::Where::current()) {
  host_cuda::synchronize_warp(mask, where);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace host_cuda {
template <class T>
T from_lane(unsigned mask, T value, unsigned source, Where where) {
  static_assert(sizeof(T) <= kExchangeBytes);
  const std::byte* all = exchange(mask, &value, sizeof(T), where);
  if (!(mask >> (source % 32) & 1)) return value;  // undefined in CUDA
  T result;
  std::memcpy(&result, all + (source % 32) * kExchangeBytes, sizeof(T));
  return result;
}
inline unsigned votes(unsigned mask, bool vote, Where where) {
  const std::byte* all = exchange(mask, &vote, 1, where);
  unsigned set = 0;
  for (unsigned l = 0; l < 32; ++l)
    if ((mask >> l & 1) && all[l * kExchangeBytes] != std::byte{0}) set |= 1u << l;
  return set;
}
}  // namespace host_cuda

#define CHOIR_WHERE host_cuda::Where where = host_cuda::Where::current()
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CHOIR_WHERE) {
  const int l = static_cast<int>(host_cuda::lane());
  return host_cuda::from_lane(mask, value,
                              static_cast<unsigned>((l & ~(width - 1)) | (source & (width - 1))),
                              where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CHOIR_WHERE) {
  const int l = static_cast<int>(host_cuda::lane()), source = l ^ bits;
  const bool inside = source / width <= l / width;
  return host_cuda::from_lane(mask, value, static_cast<unsigned>(inside ? source : l), where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, CHOIR_WHERE) {
  const unsigned l = host_cuda::lane(), w = static_cast<unsigned>(width);
  return host_cuda::from_lane(mask, value, l % w + by < w ? l + by : l, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CHOIR_WHERE) {
  const unsigned l = host_cuda::lane(), w = static_cast<unsigned>(width);
  return host_cuda::from_lane(mask, value, l % w >= by ? l - by : l, where);
}
inline unsigned __ballot_sync(unsigned mask, int vote, CHOIR_WHERE) {
  return host_cuda::votes(mask, vote != 0, where);
}
inline int __any_sync(unsigned mask, int vote, CHOIR_WHERE) {
  return host_cuda::votes(mask, vote != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int vote, CHOIR_WHERE) {
  return host_cuda::votes(mask, vote == 0, where) == 0;
}
inline unsigned __match_any_sync(unsigned mask, unsigned value, CHOIR_WHERE) {
  const std::byte* all = host_cuda::exchange(mask, &value, sizeof value, where);
  unsigned same = 0;
  for (unsigned l = 0; l < 32; ++l)
    if (mask >> l & 1)
      same |= unsigned{std::memcmp(all + l * host_cuda::kExchangeBytes, &value, sizeof value) == 0}
              << l;
  return same;
}
#undef CHOIR_WHERE

// Integers only: the order of float additions would not be fixed. __atomic builtins are used
// because ThreadSanitizer recognises them.
inline int atomicAdd(int* a, int v) { return __atomic_fetch_add(a, v, __ATOMIC_RELAXED); }
inline unsigned atomicAdd(unsigned* a, unsigned v) {
  return __atomic_fetch_add(a, v, __ATOMIC_RELAXED);
}
inline unsigned long long atomicAdd(unsigned long long* a, unsigned long long v) {
  return __atomic_fetch_add(a, v, __ATOMIC_RELAXED);
}
inline unsigned atomicInc(unsigned* a, unsigned limit) {
  unsigned old = __atomic_load_n(a, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(a, &old, old >= limit ? 0u : old + 1, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}
inline unsigned atomicOr(unsigned* a, unsigned v) {
  return __atomic_fetch_or(a, v, __ATOMIC_RELAXED);
}
inline int atomicOr(int* a, int v) { return __atomic_fetch_or(a, v, __ATOMIC_RELAXED); }
inline int atomicExch(int* a, int v) { return __atomic_exchange_n(a, v, __ATOMIC_RELAXED); }
inline unsigned atomicExch(unsigned* a, unsigned v) {
  return __atomic_exchange_n(a, v, __ATOMIC_RELAXED);
}
inline int atomicMax(int* a, int v) {
  int old = __atomic_load_n(a, __ATOMIC_RELAXED);
  while (old < v && !__atomic_compare_exchange_n(a, &old, v, false, __ATOMIC_RELAXED,
                                                 __ATOMIC_RELAXED)) {
  }
  return old;
}

template <class T>
T __ldg(const T* p) { return *p; }
template <class T>
T __ldcs(const T* p) { return *p; }
template <class T>
T __ldcg(const T* p) { return *p; }
template <class T>
void __stcs(T* p, const T& v) { *p = v; }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline int __float_as_int(float x) { int r; std::memcpy(&r, &x, 4); return r; }
inline unsigned __float_as_uint(float x) { unsigned r; std::memcpy(&r, &x, 4); return r; }
inline float __int_as_float(int x) { float r; std::memcpy(&r, &x, 4); return r; }
inline float __uint_as_float(unsigned x) { float r; std::memcpy(&r, &x, 4); return r; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((std::uint64_t{a} * b) >> 32);
}
template <class T>
constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T>
constexpr T max(T a, T b) { return a < b ? b : a; }

// --- runtime -------------------------------------------------------------------------------------
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
using cudaStream_t = struct HostCudaStream*;
using cudaEvent_t = struct HostCudaEvent*;
using cudaGraph_t = struct HostCudaGraph*;
using cudaGraphExec_t = struct HostCudaGraphExec*;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrClockRate = 13,
  cudaDevAttrMultiProcessorCount = 16,
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
using cudaGraphNode_t = const struct HostCudaNode*;
enum cudaGraphNodeType { cudaGraphNodeTypeKernel = 0, cudaGraphNodeTypeHost = 3 };
struct cudaGraphEdgeData;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventDefault = 0 };
enum { cudaEventRecordDefault = 0, cudaEventRecordExternal = 1 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1 };
enum { cudaHostRegisterDefault = 0 };
enum { cudaGraphInstantiateFlagUseNodePriority = 8 };
struct cudaUUID_t { char bytes[16]; };
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  std::size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
  int pciDomainID, pciBusID, pciDeviceID;
  std::size_t sharedMemPerBlockOptin;
  int l2CacheSize;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaMalloc(void** address, std::size_t bytes);
cudaError_t cudaFree(void* address);
cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned flags);
cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* address);
cudaError_t cudaFreeHost(void* address);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
/// The dependencies are the captured operations that the next one of the stream comes after.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, std::size_t* count);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

namespace host_cuda {
/// Queues work that reads and writes device memory, for launches and the plain GEMM.
void queue(cudaStream_t stream, std::function<void()> work);
/// Queues a kernel. `early`: a block of it may begin before the operation ahead of it.
void queue_kernel(cudaStream_t stream, const Grid& grid, std::function<void()> body, bool early);
}  // namespace host_cuda
