// The CUDA runtime on the CPU. Work is *queued* and runs only when the host or another stream waits
// for it, streams taking turns in an order drawn from the seed, so that a missing event or a buffer
// reused too early gives wrong numbers here as it would there. Device memory cannot be touched by
// the host between calls (pages without access; red zones instead under AddressSanitizer).
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "test/host_cuda/include/cuda_runtime.h"

struct HostCudaEvent {
  std::uint64_t recorded = 0, reached = 0;  // how often
  double time = 0;
  bool timing = true;
  struct Capture* capture = nullptr;  // recorded inside a capture
};

namespace {

struct Operation {
  enum class Kind { work, record, wait } kind = Kind::work;
  std::function<void()> work;
  cudaEvent_t event = nullptr;
  std::uint64_t count = 0;  // of records of the event
};

}  // namespace

struct HostCudaStream {
  std::deque<Operation> queue;
  Capture* capture = nullptr;
};
struct HostCudaGraph {
  std::vector<Operation> operations;
};
struct HostCudaGraphExec {
  std::vector<Operation> operations;
};
/// Operations in the order of the calls, which is one that the events allow.
struct Capture {
  HostCudaGraph graph;
  cudaStream_t origin = nullptr;
  bool invalid = false;
};

namespace {

constexpr std::size_t kMemory = std::size_t{2} << 30;
constexpr std::size_t kPage = 4096;

struct Runtime {
  std::recursive_mutex mutex;
  std::map<char*, std::size_t> device_blocks, pinned_blocks;
  std::set<cudaStream_t> streams;
  HostCudaStream default_stream;
  cudaError_t last = cudaSuccess;
  std::size_t used = 0;
  std::uint64_t seed = 0, state = 0;
  bool open = false;  // device memory accessible
  Capture* capturing = nullptr;
};

Runtime& the() {
  static Runtime* runtime = [] {
    auto* r = new Runtime;  // never destroyed: streams may outlive main
    if (const char* seed = std::getenv("HOST_CUDA_SEED")) r->seed = std::strtoull(seed, nullptr, 0);
    r->state = r->seed;
    host_cuda::set_seed(r->seed);
    return r;
  }();
  return *runtime;
}

std::uint64_t draw(Runtime& r) {
  r.state = r.state * 6364136223846793005ull + 1442695040888963407ull;
  return r.state >> 33;
}

using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) the().last = error;
  return error;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Device memory is open while this lives.
class Access {
 public:
  explicit Access(Runtime& r) : runtime_(r), outermost_(!r.open) {
    if (outermost_) protect(PROT_READ | PROT_WRITE);
    r.open = true;
  }
  ~Access() {
    if (!outermost_) return;
    protect(PROT_NONE);
    runtime_.open = false;
  }

 private:
  void protect([[maybe_unused]] int rights) {
#if !defined(HOST_CUDA_MALLOC)
    for (const auto& [address, bytes] : runtime_.device_blocks) mprotect(address, bytes, rights);
#endif
  }
  Runtime& runtime_;
  bool outermost_;
};

HostCudaStream& of(cudaStream_t stream) {
  Runtime& r = the();
  if (stream == nullptr) return r.default_stream;
  if (!r.streams.contains(stream)) host_cuda::defect("use of a stream that does not exist");
  return *stream;
}

bool ready(const Operation& operation) {
  return operation.kind != Operation::Kind::wait || operation.event->reached >= operation.count;
}

void perform(Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::work:
      operation.work();
      return;
    case Operation::Kind::record:
      operation.event->reached = std::max(operation.event->reached, operation.count);
      operation.event->time = now();
      return;
    case Operation::Kind::wait:
      return;
  }
}

/// Runs queued work until done() holds. With a seed, streams take random turns; without one the
/// others run only when they must.
template <class Done>
void advance(Runtime& r, HostCudaStream* wanted, const Done& done) {
  if (done()) return;
  const Access access(r);
  while (!done()) {
    std::vector<HostCudaStream*> able;
    const auto consider = [&](HostCudaStream* stream) {
      if (!stream->queue.empty() && ready(stream->queue.front())) able.push_back(stream);
    };
    if (r.seed == 0 && wanted) consider(wanted);
    if (able.empty()) {
      consider(&r.default_stream);
      for (cudaStream_t stream : r.streams) consider(stream);
    }
    if (able.empty()) host_cuda::defect("DEADLOCK: every stream waits for an event of another");
    HostCudaStream& chosen = *able[r.seed == 0 ? 0 : draw(r) % able.size()];
    Operation operation = std::move(chosen.queue.front());
    chosen.queue.pop_front();
    perform(operation);
  }
}

void drain(Runtime& r, HostCudaStream& stream) {
  advance(r, &stream, [&] { return stream.queue.empty(); });
}

void drain_all(Runtime& r) {
  drain(r, r.default_stream);
  for (cudaStream_t stream : r.streams) drain(r, *stream);
}

cudaError_t enqueue(cudaStream_t stream, Operation operation) {
  Runtime& r = the();
  HostCudaStream& s = of(stream);
  if (s.capture) {
    s.capture->graph.operations.push_back(std::move(operation));
    return cudaSuccess;
  }
  s.queue.push_back(std::move(operation));
  // Bounded, so that a benchmark does not queue for ever.
  constexpr std::size_t kLongest = 4096;
  if (s.queue.size() > kLongest) drain(r, s);
  return cudaSuccess;
}

/// Calls that wait are not allowed while a capture is under way; they spoil it.
bool refuse_in_capture(Runtime& r) {
  if (!r.capturing) return false;
  r.capturing->invalid = true;
  return true;
}

bool inside(const std::map<char*, std::size_t>& blocks, const void* address, std::size_t bytes) {
  auto* p = static_cast<char*>(const_cast<void*>(address));
  auto next = blocks.upper_bound(p);
  if (next == blocks.begin()) return false;
  const auto& [start, size] = *std::prev(next);
  return p + bytes <= start + size;
}

}  // namespace

void host_cuda::queue(cudaStream_t stream, std::function<void()> work) {
  const Lock lock(the().mutex);
  enqueue(stream, {Operation::Kind::work, std::move(work)});
}

// --- devices -------------------------------------------------------------------------------------
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return answer(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device != 0) return answer(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "host execution");
  p->uuid.bytes[15] = 1;
  p->totalGlobalMem = kMemory;
  p->major = 9, p->minor = 0, p->multiProcessorCount = 4;
  p->sharedMemPerBlockOptin = host_cuda::kMaxSharedBytes;
  p->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrClockRate             ? 1000000
           : attribute == cudaDevAttrMultiProcessorCount ? 4
                                                         : int{host_cuda::kMaxSharedBytes};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:00:00.0");
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
  *free = kMemory - the().used, *total = kMemory;
  return cudaSuccess;
}

// --- memory --------------------------------------------------------------------------------------
cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  if (refuse_in_capture(r)) return answer(cudaErrorStreamCaptureUnsupported);
  if (r.used + bytes > kMemory) return answer(cudaErrorMemoryAllocation);
#if defined(HOST_CUDA_MALLOC)
  const std::size_t size = bytes;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
#else
  const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#endif
  std::memset(memory, 0xFF, size);
#if !defined(HOST_CUDA_MALLOC)
  if (!r.open) mprotect(memory, size, PROT_NONE);
#endif
  r.device_blocks[static_cast<char*>(memory)] = size;
  r.used += size;
  *address = memory;
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  if (address == nullptr) return cudaSuccess;
  const auto block = r.device_blocks.find(static_cast<char*>(address));
  if (block == r.device_blocks.end()) return answer(cudaErrorInvalidValue);
  drain_all(r);  // as the real one, it waits for the device
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
  Runtime& r = the();
  const Lock lock(r.mutex);
  *address = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(*address, 0xFF, bytes);
  r.pinned_blocks[static_cast<char*>(*address)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  drain_all(r);
  r.pinned_blocks.erase(static_cast<char*>(address));
  std::free(address);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  const bool fresh = r.pinned_blocks.emplace(static_cast<char*>(address), bytes).second;
  return answer(fresh ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void* address) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  drain_all(r);
  const bool known = r.pinned_blocks.erase(static_cast<char*>(address)) > 0;
  return answer(known ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  Runtime& r = the();
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
  if (of(stream).capture && (pageable_source || pageable_target)) {
    of(stream).capture->invalid = true;
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  if (pageable_source) {  // read before the call returns
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                      static_cast<const char*>(from) + from_bytes);
    return enqueue(stream, {Operation::Kind::work, [=] { rows(staged->data()); }});
  }
  enqueue(stream, {Operation::Kind::work, [=] { rows(static_cast<const char*>(from)); }});
  if (pageable_target) drain(r, of(stream));
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t stream) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  if (bytes == 0) return cudaSuccess;
  if (!inside(r.device_blocks, address, bytes)) return answer(cudaErrorInvalidValue);
  return enqueue(stream, {Operation::Kind::work, [=] { std::memset(address, value, bytes); }});
}

// --- streams and events --------------------------------------------------------------------------
cudaError_t cudaDeviceSynchronize() {
  Runtime& r = the();
  const Lock lock(r.mutex);
  if (refuse_in_capture(r)) return answer(cudaErrorStreamCaptureUnsupported);
  drain_all(r);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  *stream = new HostCudaStream;
  r.streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  drain(r, of(stream));
  r.streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  if (refuse_in_capture(r)) return answer(cudaErrorStreamCaptureUnsupported);
  drain(r, of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  if (event->capture) {  // the stream joins the capture; order there is the order of the calls
    of(stream).capture = event->capture;
    return cudaSuccess;
  }
  if (event->recorded == 0) return cudaSuccess;
  return enqueue(stream, {Operation::Kind::wait, {}, event, event->recorded});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new HostCudaEvent;
  (*event)->timing = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  drain_all(r);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  event->capture = of(stream).capture;
  if (event->capture) return cudaSuccess;
  return enqueue(stream, {Operation::Kind::record, {}, event, ++event->recorded});
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  if (refuse_in_capture(r)) return answer(cudaErrorStreamCaptureUnsupported);
  advance(r, nullptr, [&] { return event->reached >= event->recorded; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(the().mutex);
  return event->reached >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(the().mutex);
  if (!start->timing || !end->timing || start->recorded == 0 || end->recorded == 0)
    return answer(cudaErrorInvalidResourceHandle);
  if (start->reached < start->recorded || end->reached < end->recorded)
    return answer(cudaErrorNotReady);
  *milliseconds = static_cast<float>((end->time - start->time) * 1e3);
  return cudaSuccess;
}

// --- graphs --------------------------------------------------------------------------------------
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  if (stream == nullptr || r.capturing) return answer(cudaErrorStreamCaptureUnsupported);
  r.capturing = new Capture;
  r.capturing->origin = stream;
  of(stream).capture = r.capturing;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Runtime& r = the();
  const Lock lock(r.mutex);
  Capture* capture = r.capturing;
  if (!capture || capture->origin != stream) return answer(cudaErrorStreamCaptureInvalidated);
  for (cudaStream_t s : r.streams)
    if (s->capture == capture) s->capture = nullptr;
  r.capturing = nullptr;
  *graph = capture->invalid ? nullptr : new HostCudaGraph(std::move(capture->graph));
  const bool invalid = capture->invalid;
  delete capture;
  return answer(invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new HostCudaGraphExec{graph->operations};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock(the().mutex);
  return enqueue(stream, {Operation::Kind::work, [operations = exec->operations] {
                            for (const Operation& operation : operations) operation.work();
                          }});
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

// --- errors --------------------------------------------------------------------------------------
cudaError_t cudaPeekAtLastError() {
  return the().last;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = the().last;
  the().last = cudaSuccess;
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
