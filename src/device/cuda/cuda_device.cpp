// One GPU as a device (memory, a main stream, further streams and events), and the detection of
// GPUs with the reason if there are none.

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <map>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "src/device/collective_share.hpp"
#include "src/device/cuda.hpp"
#include "src/device/cuda/check.hpp"

namespace choir::cuda {
namespace {

const char* hint_for(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "out of device memory: lower train.micro_batch_size, or use more GPUs";
    case cudaErrorInsufficientDriver:
      return "the NVIDIA driver is older than this program's CUDA: update it, or use device=cpu";
    case cudaErrorNoDevice:
      return "no GPU is visible: check CUDA_VISIBLE_DEVICES, or use device=cpu";
    default:
      return "an earlier kernel may be the cause: CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer "
             "finds it";
  }
}

}  // namespace

void check(cudaError_t status, const char* call, std::source_location at) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // resets the error, so that the next call does not report it again
  throw Error(
      ExitCode::other,
      fmt::format("CUDA: {}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)),
      hint_for(status), at);
}

void check_quietly(cudaError_t status, const char* call) noexcept {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s: %s\n", call, cudaGetErrorString(status));
}

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
  void provide_next(std::shared_ptr<void> block) { next_ = std::move(block); }
  void set_dependent_launch(bool on) { dependent_launch_ = on; }
  bool dependent_launch() const { return dependent_launch_; }

 private:
  Card card_;
  std::shared_ptr<void> next_;                       ///< of provide_next()
  std::map<void*, std::shared_ptr<void>> provided_;  ///< blocks in use, by address
  cudaStream_t main_ = nullptr;
  bool capturing_ = false;
  bool dependent_launch_ = false;  ///< see cuda::set_dependent_launch()
};

}  // namespace choir::cuda

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
/// An event that only orders work costs the device less than one that takes the time. The second
/// one is made when a time is recorded first.
struct DeviceEvent {
  cudaEvent_t orders = nullptr, timed = nullptr;
  cudaEvent_t last = nullptr;  ///< the one that was recorded last
};
DeviceEvent& event_of(NativeEvent event) {
  return *static_cast<DeviceEvent*>(event);
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
  if (next_) {
    std::shared_ptr<void> block = std::exchange(next_, nullptr);
    void* const given = block.get();
    provided_.emplace(given, std::move(block));
    return given;
  }
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
  if (provided_.erase(address) > 0) return;
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
  auto event = std::make_unique<DeviceEvent>();
  CHOIR_CUDA(cudaEventCreateWithFlags(&event->orders, cudaEventDisableTiming));
  event->last = event->orders;
  return event.release();
}

void CudaDevice::destroy_event(NativeEvent native) noexcept {
  const std::unique_ptr<DeviceEvent> event(&event_of(native));
  CHOIR_CUDA_QUIETLY(cudaEventDestroy(event->orders));
  if (event->timed != nullptr) CHOIR_CUDA_QUIETLY(cudaEventDestroy(event->timed));
}

void CudaDevice::record(NativeEvent native, NativeStream stream) {
  DeviceEvent& event = event_of(native);
  event.last = event.orders;
  CHOIR_CUDA(cudaEventRecord(event.last, stream_of(stream)));
}

void CudaDevice::record_time(NativeEvent native, NativeStream stream) {
  DeviceEvent& event = event_of(native);
  if (event.timed == nullptr) CHOIR_CUDA(cudaEventCreateWithFlags(&event.timed, cudaEventDefault));
  event.last = event.timed;
  if (capturing_)
    CHOIR_CUDA(cudaEventRecordWithFlags(event.last, stream_of(stream), cudaEventRecordExternal));
  else
    CHOIR_CUDA(cudaEventRecord(event.last, stream_of(stream)));
}

void CudaDevice::wait(NativeStream stream, NativeEvent event) {
  CHOIR_CUDA(cudaStreamWaitEvent(stream_of(stream), event_of(event).last, 0));
}

void CudaDevice::synchronize_event(NativeEvent event) {
  CHOIR_CUDA(cudaEventSynchronize(event_of(event).last));
}

bool CudaDevice::complete(NativeEvent event) {
  const cudaError_t status = cudaEventQuery(event_of(event).last);
  if (status == cudaErrorNotReady) return false;
  CHOIR_CUDA(status);
  return true;
}

double CudaDevice::seconds_between(NativeEvent from, NativeEvent to) {
  const DeviceEvent &first = event_of(from), &second = event_of(to);
  CHOIR_CHECK(first.timed != nullptr && first.last == first.timed && second.timed != nullptr &&
                  second.last == second.timed,
              "the time of an event whose time was not recorded");
  float milliseconds = 0;
  CHOIR_CUDA(cudaEventElapsedTime(&milliseconds, first.timed, second.timed));
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
  // Nodes keep the priorities of their streams, so that collectives run before compute that is
  // ready at the same time. Without the flag all nodes have the priority of the launch stream.
  const cudaError_t status =
      cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority);
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

void provide_next(Device& device, std::shared_ptr<void> block) {
  auto* const cuda = dynamic_cast<CudaDevice*>(&device);
  if (block == nullptr) return;
  CHOIR_CHECK(cuda != nullptr, "a block for the {} device", name_of(device.kind()));
  cuda->provide_next(std::move(block));
}

bool can_access(int from, int to) {
  int can = 0;
  CHOIR_CUDA(cudaDeviceCanAccessPeer(&can, from, to));
  return can != 0;
}

const Card* card_of(const Device& device) {
  const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
  return cuda == nullptr ? nullptr : &cuda->card();
}

void set_dependent_launch(Device& device, bool on) {
  auto* const cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda != nullptr) cuda->set_dependent_launch(on && has_dependent_launch(device));
}

bool has_dependent_launch(const Device& device) {
  const Card* const card = card_of(device);
  return card != nullptr && card->major >= 9;
}

// A kernel with several predecessors, of other streams, or with one that is no kernel, starts after
// their end.
bool may_begin_early(const Stream& stream) {
  const auto* const cuda = dynamic_cast<const CudaDevice*>(&stream.device());
  if (cuda == nullptr || !cuda->dependent_launch()) return false;
  cudaStreamCaptureStatus status{};
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  CHOIR_CUDA(cudaStreamGetCaptureInfo(stream_of(stream.native()), &status, nullptr, nullptr, &nodes,
                                      &edges, &count));
  if (status != cudaStreamCaptureStatusActive || count != 1) return false;
  cudaGraphNodeType type{};
  CHOIR_CUDA(cudaGraphNodeGetType(nodes[0], &type));
  return type == cudaGraphNodeTypeKernel;
}

namespace {

// The oldest architecture for which kernels are compiled.
constexpr int kOldestMajor = 8;

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

int numa_node_of(std::string pci) {
  for (char& c : pci) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  int node = -1;
  std::ifstream("/sys/bus/pci/devices/" + pci + "/numa_node") >> node;
  return node;
}

Card card_number(int ordinal) {
  cudaDeviceProp properties{};
  CHOIR_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  char pci[32] = {};
  CHOIR_CUDA(cudaDeviceGetPCIBusId(pci, sizeof pci, ordinal));
  int kilohertz = 0;
  CHOIR_CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, ordinal));
  Card card;
  card.ordinal = ordinal;
  card.name = properties.name;
  card.uuid = uuid_text(properties.uuid);
  card.pci = pci;
  card.numa_node = numa_node_of(card.pci);
  card.major = properties.major;
  card.minor = properties.minor;
  card.multiprocessors = properties.multiProcessorCount;
  card.memory = properties.totalGlobalMem;
  card.peak_bf16_flops = peak_bf16_flops(card, 1e3 * kilohertz);
  return card;
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// The versions, which are known even without a card.
Availability versions() {
  Availability found;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaGetLastError();
  if (driver != 0) found.driver = version_text(driver);
  found.toolkit = version_text(runtime);
  return found;
}

Availability none_because(Availability found, cudaError_t status) {
  const auto say = [&](std::string reason, std::string hint) {
    found.reason = std::move(reason), found.hint = std::move(hint);
    return found;
  };
  if (status == cudaErrorInsufficientDriver && found.driver.empty())
    return say("no NVIDIA driver on this machine", "use device=cpu, or run on a GPU node");
  if (status == cudaErrorInsufficientDriver)
    return say(fmt::format("the driver supports CUDA {}, this program needs {}", found.driver,
                           found.toolkit),
               "update the NVIDIA driver, or build with an older CUDA toolkit (CUDA_HOME=DIR)");
  if (status == cudaErrorNoDevice)
    return say("no GPU is visible", "check CUDA_VISIBLE_DEVICES and the job's GPU request");
  return say(fmt::format("CUDA does not start: {} ({})", cudaGetErrorString(status),
                         cudaGetErrorName(status)),
             "check nvidia-smi on this node");
}

}  // namespace

Availability availability() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  Availability found = versions();
  if (status != cudaSuccess || count == 0)
    return none_because(found, status == cudaSuccess ? cudaErrorNoDevice : status);
  try {
    for (int i = 0; i < count; ++i) found.cards.push_back(card_number(i));
  } catch (const Error& error) {
    found.cards.clear();
    found.reason = error.what(), found.hint = error.hint();
  }
  return found;
}

std::unique_ptr<Device> make_device(int ordinal) {
  const Availability found = availability();
  if (found.cards.empty()) throw DeckError("device 'cuda': " + found.reason, found.hint);
  if (ordinal < 0 || ordinal >= static_cast<int>(found.cards.size()))
    throw DeckError(fmt::format("device 'cuda': no GPU number {}; this process sees {}", ordinal,
                                found.cards.size()),
                    "check CUDA_VISIBLE_DEVICES");
  const Card& card = found.cards[static_cast<std::size_t>(ordinal)];
  if (card.major < kOldestMajor)
    throw DeckError(fmt::format("device 'cuda': {} is of architecture sm_{}{}, the kernels need "
                                "sm_{}0 or newer",
                                card.name, card.major, card.minor, kOldestMajor),
                    "use another GPU, or device=cpu");
  return std::make_unique<CudaDevice>(card);
}

}  // namespace choir::cuda
