#include "src/infer/token_graph.hpp"

namespace choir {
namespace {

/// True if this rank generates alone, from parameters that stay in place.
bool works_alone(ModelInstance& instance) {
  Mesh& mesh = instance.mesh();
  for (const Axis axis : {Axis::tensor, Axis::context, Axis::pipeline})
    if (mesh.along(axis).size() > 1) return false;
  const ModelInstance::Options& options = instance.options();
  return !options.offload.parameters &&
         (options.zero.stage == 0 || mesh.along(Axis::data).size() == 1);
}

}  // namespace

TokenGraph::TokenGraph(ModelInstance& instance)
    : instance_(instance), records_(instance.device().records_graphs() && works_alone(instance)) {
  if (instance.device().plans_for() == DeviceKind::cuda)
    seen_ = instance.arena().allocate(DType::i32, {1}, "positions before");
}

void TokenGraph::forget() {
  if (graph_ != nullptr) instance_.device().destroy(graph_);
  graph_ = nullptr;
  met_ = false;
}

bool TokenGraph::is_recorded(const StreamState& state, std::int64_t tokens, const void* input) {
  if (!records_ || tokens != 1 || !state.counts_on_device()) return false;
  const Key key{&state, input, state.streams(), instance_.arena().live()};
  if (key != key_) forget();
  key_ = key;
  if (met_) return true;
  met_ = true;  // the first pass is not recorded: a library may allocate or measure
  return false;
}

// If queueing fails, the half-recorded graph is destroyed; the original error matters more than an
// error of that.
void TokenGraph::record(StreamState& state, const Queue& queue) {
  Device& device = instance_.device();
  const NativeStream stream = instance_.stream().native();
  device.begin_capture(stream);
  try {
    out_ = queue(state.recorded(seen_.as<std::int32_t>()));
  } catch (...) {
    try {
      device.destroy(device.end_capture(stream));
    } catch (const Error&) {
    }
    throw;
  }
  graph_ = device.end_capture(stream);
}

void TokenGraph::run(StreamState& state, std::int64_t tokens, const void* input, const Queue& queue,
                     const Show& show) {
  if (!is_recorded(state, tokens, input)) {
    const Tensor out = queue(state.next(tokens));
    state.advance(tokens);
    return show(out);
  }
  const auto seen = static_cast<std::int32_t>(state.seen());
  instance_.device().copy_from_host(seen_.data, &seen, sizeof seen);
  if (graph_ == nullptr) record(state, queue);
  instance_.device().launch(graph_, instance_.stream().native());
  state.replayed();
  ++replays_;
  show(out_);
}

}  // namespace choir
