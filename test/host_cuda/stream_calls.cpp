// CUDA runtime: streams, events and graphs; and the calls that start and stop a profiler.
#include <cuda_profiler_api.h>

#include <cstdio>

#include "test/host_cuda/runtime.hpp"

using namespace host_cuda;

namespace {

// NVIDIA's error codes.
constexpr auto kUnjoined = static_cast<cudaError_t>(904);
constexpr auto kIsolation = static_cast<cudaError_t>(905);

// A graph that is being captured cannot depend on operations outside of it, nor they on the graph.
cudaError_t isolated(Capture* capture) {
  if (capture) capture->invalid = true;
  return answer(kIsolation);
}

/// True if the origin stream waits for all work of the other streams.
bool joined(const Capture& capture) {
  for (std::size_t b = 0; b < capture.branches.size(); ++b)
    if (capture.known[0][b] < capture.branches[b].size()) return false;
  return true;
}

}  // namespace

struct HostCudaGraph {
  std::shared_ptr<const Branches> branches;
};
struct HostCudaGraphExec {
  std::shared_ptr<const Branches> branches;
  /// Without the flag every node runs at the priority of the stream on which the graph is launched.
  bool by_priority = false;
};

cudaError_t cudaDeviceSynchronize() {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  if (r.capturing && refused_in_capture(r.capturing->id))
    return answer(cudaErrorStreamCaptureUnsupported);
  drain_all();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  *stream = new HostCudaStream;
  (*stream)->priority = priority;
  r.streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  drain(stream_of(stream));
  r.streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  const Capture* capture = stream_of(stream).capture;
  if (refused_in_capture() || (capture && refused_in_capture(capture->id)))
    return answer(cudaErrorStreamCaptureUnsupported);
  drain(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  HostCudaStream& waiting = stream_of(stream);
  if (event->capture != 0) {
    if (!r.capturing || r.capturing->id != event->capture) return isolated(waiting.capture);
    join(waiting, *r.capturing, event->after);
    return cudaSuccess;
  }
  if (event->recorded == 0) return cudaSuccess;
  if (waiting.capture) return isolated(waiting.capture);
  return enqueue(stream, {Operation::Kind::wait, {}, event, event->recorded});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new HostCudaEvent;
  (*event)->timing = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  drain_all();
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  const HostCudaStream& s = stream_of(stream);
  r.timed_records += event->timing;
  event->capture = s.capture ? s.capture->id : 0;
  if (s.capture) {
    event->after = s.capture->known[s.branch];
    return cudaSuccess;
  }
  return enqueue(stream, {Operation::Kind::record, {}, event, ++event->recorded});
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  const Lock lock(runtime().mutex);
  const bool external = flags & cudaEventRecordExternal;
  if (!external) return cudaEventRecord(event, stream);
  if (!stream_of(stream).capture) return answer(cudaErrorInvalidValue);
  runtime().timed_records += event->timing;
  // A node of the graph: it is reached again in every replay.
  return enqueue(stream, {Operation::Kind::record, {}, event, 0});
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  if (refused_in_capture() || refused_in_capture(event->capture))
    return answer(cudaErrorStreamCaptureUnsupported);
  advance(nullptr, [&] { return event->reached >= event->recorded; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(runtime().mutex);
  if (event->reached >= event->recorded) return cudaSuccess;
  static unsigned fruitless = 0;
  // A device continues to work while somebody polls it.
  constexpr unsigned kPatience = 8;
  if (++fruitless % kPatience == 0) advance(nullptr, [n = 0]() mutable { return n++ > 1; });
  return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(runtime().mutex);
  if (!start->timing || !end->timing || start->recorded == 0 || end->recorded == 0)
    return answer(cudaErrorInvalidResourceHandle);
  if (start->reached < start->recorded || end->reached < end->recorded)
    return answer(cudaErrorNotReady);
  *milliseconds = static_cast<float>((end->time - start->time) * 1e3);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  if (stream == nullptr || r.capturing) return answer(cudaErrorStreamCaptureUnsupported);
  static std::uint64_t captures = 0;
  r.capturing = new Capture;
  r.capturing->id = ++captures;
  r.capturing->origin = stream;
  r.capturing->thread = std::this_thread::get_id();
  r.capturing->of_thread = mode != cudaStreamCaptureModeGlobal;
  join(stream_of(stream), *r.capturing, {});
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  Capture* capture = r.capturing;
  if (!capture || capture->origin != stream) return answer(cudaErrorStreamCaptureInvalidated);
  for (cudaStream_t s : r.streams)
    if (s->capture == capture) s->capture = nullptr;
  r.capturing = nullptr;
  const cudaError_t result = capture->invalid    ? cudaErrorStreamCaptureInvalidated
                             : !joined(*capture) ? kUnjoined
                                                 : cudaSuccess;
  *graph = result != cudaSuccess
               ? nullptr
               : new HostCudaGraph{std::make_shared<const Branches>(std::move(capture->branches))};
  delete capture;
  return answer(result);
}
// A stream whose last call was no wait continues its own branch.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData**, std::size_t* count) {
  const Lock lock(runtime().mutex);
  const HostCudaStream& s = stream_of(stream);
  *status = s.capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (!s.capture) return cudaSuccess;
  static thread_local cudaGraphNode_t last = nullptr;
  const std::vector<Node>& branch = s.capture->branches[s.branch];
  *count = s.joined ? 2 : branch.empty() ? 0 : 1;
  last = branch.empty() ? nullptr : reinterpret_cast<cudaGraphNode_t>(&branch.back());
  *dependencies = &last;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = reinterpret_cast<const Node*>(node)->operation.kernel ? cudaGraphNodeTypeKernel
                                                                : cudaGraphNodeTypeHost;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  *exec = new HostCudaGraphExec{graph->branches,
                                (flags & cudaGraphInstantiateFlagUseNodePriority) != 0};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  Operation operation{.kind = Operation::Kind::peers};
  operation.begin = replay(exec->branches, exec->by_priority);
  operation.graph = true;
  return enqueue(stream, std::move(operation));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() {
  std::puts("profiler starts");
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  std::puts("profiler stops");
  return cudaSuccess;
}
