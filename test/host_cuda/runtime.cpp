// Queues of work, and the choice of the queue that runs next.
#include "test/host_cuda/runtime.hpp"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "test/host_cuda/hopper.hpp"

namespace host_cuda {
namespace {

std::uint64_t draw(Runtime& r) {
  r.state = r.state * 6364136223846793005ull + 1442695040888963407ull;
  return r.state >> 33;
}

#if !defined(HOST_CUDA_MALLOC)
/// A protection key: a register of the thread decides if it may touch memory with this key.
/// Changing it takes some cycles, whereas changing the rights of all pages takes half the time of a
/// small training. -1 if the processor has no such keys.
int key_of_device_memory() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}
#endif

/// Device memory is accessible while this object exists.
class Access {
 public:
  explicit Access(Runtime& r) : runtime_(r), outermost_(!r.open) {
    if (outermost_) set_open(true);
  }
  ~Access() {
    if (outermost_) set_open(false);
  }

 private:
  void set_open(bool open) {
    runtime_.open = open;
#if !defined(HOST_CUDA_MALLOC)
    if (const int key = key_of_device_memory(); key >= 0)
      pkey_set(key, open ? 0 : PKEY_DISABLE_ACCESS);
    else
      for (const auto& [address, bytes] : runtime_.device_blocks)
        mprotect(address, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
#endif
  }
  Runtime& runtime_;
  bool outermost_;
};

bool ready(const Operation& operation) {
  return operation.kind != Operation::Kind::wait || operation.event->reached >= operation.count;
}

/// Returns false if the operation waits for another process.
bool perform(Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::work:
      operation.kernel ? operation.run_kernel(nullptr) : operation.work();
      return true;
    case Operation::Kind::peers:
      if (!operation.progress) operation.progress = operation.begin();
      return operation.progress();
    case Operation::Kind::record:
      operation.event->reached = std::max(operation.event->reached, operation.count);
      operation.event->time = now();
      return true;
    case Operation::Kind::wait:
      return true;
  }
  return true;
}

}  // namespace

Runtime& runtime() {
  static Runtime* runtime = [] {
    auto* r = new Runtime;  // never destroyed: streams may outlive main
    if (const char* seed = std::getenv("HOST_CUDA_SEED")) r->seed = std::strtoull(seed, nullptr, 0);
    r->state = r->seed;
    set_seed(r->seed);
    return r;
  }();
  return *runtime;
}

namespace {

double told = 0;

}  // namespace

double now() {
  return told +
         std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void pass(double seconds) {
  told += seconds;
}

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) runtime().last = error;
  return error;
}

HostCudaStream& stream_of(cudaStream_t stream) {
  Runtime& r = runtime();
  if (stream == nullptr) return r.default_stream;
  if (!r.streams.contains(stream)) defect("use of a stream that does not exist");
  return *stream;
}

#if !defined(HOST_CUDA_MALLOC)
void close_to_the_host(void* memory, std::size_t bytes) {
  if (const int key = key_of_device_memory(); key >= 0)
    pkey_mprotect(memory, bytes, PROT_READ | PROT_WRITE, key);
  else if (!runtime().open)
    mprotect(memory, bytes, PROT_NONE);
}
#endif

std::size_t choose(std::size_t count) {
  Runtime& r = runtime();
  return r.seed == 0 ? 0 : draw(r) % count;
}

// A stream whose next operation waits for another process is skipped until no other stream can
// continue.
void advance(HostCudaStream* wanted, const std::function<bool()>& done) {
  if (done()) return;
  Runtime& r = runtime();
  const Access access(r);
  std::set<HostCudaStream*> stalled;
  while (!done()) {
    std::vector<HostCudaStream*> able;
    const auto consider = [&](HostCudaStream* stream) {
      if (!stream->queue.empty() && ready(stream->queue.front()) && !stalled.contains(stream))
        able.push_back(stream);
    };
    if (r.seed == 0 && wanted) consider(wanted);
    if (able.empty()) {
      consider(&r.default_stream);
      for (cudaStream_t stream : r.streams) consider(stream);
    }
    if (able.empty()) {
      if (stalled.empty()) defect("DEADLOCK: every stream waits for an event of another");
      stalled.clear();
      sched_yield();
      continue;
    }
    HostCudaStream& chosen = *able[choose(able.size())];
    if (perform(chosen.queue.front()))
      chosen.queue.pop_front();
    else
      stalled.insert(&chosen);
  }
}

void drain(HostCudaStream& stream) {
  advance(&stream, [&] { return stream.queue.empty(); });
}

void drain_all() {
  drain(runtime().default_stream);
  for (cudaStream_t stream : runtime().streams) drain(*stream);
}

cudaError_t enqueue(cudaStream_t stream, Operation operation) {
  HostCudaStream& s = stream_of(stream);
  if (Capture* capture = s.capture) {
    Clock& known = capture->known[s.branch];
    std::vector<Node>& branch = capture->branches[s.branch];
    operation.early = operation.early && !s.joined;
    branch.push_back({std::move(operation), known, capture->calls++, s.priority});
    known[s.branch] = branch.size();
    s.joined = false;
    return cudaSuccess;
  }
  s.queue.push_back(std::move(operation));
  // The wait is bounded, so that a benchmark does not queue forever.
  constexpr std::size_t kLongest = 4096;
  if (s.queue.size() > kLongest) drain(s);
  return cudaSuccess;
}

bool refused_in_capture() {
  const Capture* capture = runtime().capturing;
  if (!capture || (capture->of_thread && capture->thread != std::this_thread::get_id()))
    return false;
  return refused_in_capture(capture->id);
}
bool refused_in_capture(std::uint64_t of) {
  Runtime& r = runtime();
  if (!r.capturing || r.capturing->id != of) return false;
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

bool collective_in_flight() {
  const Runtime& r = runtime();
  const auto begins = [](const HostCudaStream& stream) {
    for (const Operation& operation : stream.queue) {
      if (operation.kind == Operation::Kind::peers) return !operation.graph;
      if (operation.kind == Operation::Kind::work || !ready(operation)) return false;
    }
    return false;
  };
  return r.collectives > 0 || std::any_of(r.streams.begin(), r.streams.end(),
                                          [&](cudaStream_t s) { return begins(*s); });
}

void queue(cudaStream_t stream, std::function<void()> work) {
  const Lock lock(runtime().mutex);
  enqueue(stream, {Operation::Kind::work, std::move(work)});
}

void queue_kernel(cudaStream_t stream, const Grid& grid, std::function<void()> body, bool early) {
  const Lock lock(runtime().mutex);
  Operation operation{.kind = Operation::Kind::work};
  operation.kernel = grid.kernel, operation.early = early;
  const auto allow = [hopper = grid.hopper] {
    return hopper ? std::make_unique<hopper::Allowed>() : nullptr;
  };
  operation.begin_block = [=] {
    const auto allowed = allow();
    return begin_early(grid, body);
  };
  operation.run_kernel = [=](std::shared_ptr<EarlyBlock> block) {
    const auto allowed = allow();
    run(grid, body, std::move(block));
  };
  enqueue(stream, std::move(operation));
}

void queue_for_peers(cudaStream_t stream, std::function<Progress()> begin) {
  const Lock lock(runtime().mutex);
  Operation operation{.kind = Operation::Kind::peers};
  operation.begin = std::move(begin);
  enqueue(stream, std::move(operation));
}

}  // namespace host_cuda
