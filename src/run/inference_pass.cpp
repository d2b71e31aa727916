#include "src/run/inference_pass.hpp"

#include <utility>

namespace choir {

Tensor forward_through_stages(Model& model, Pass& pass, const ModelBatch& batch,
                              Communicator& stages) {
  const int stage = stages.rank(), last = stages.size() - 1;
  const int before = stage == 0 ? last : stage - 1, behind = stage == last ? 0 : stage + 1;
  Tensor stream;
  for (int chunk = 0; chunk < model.pieces(); ++chunk) {
    const bool begins = stage == 0 && chunk == 0;
    const bool ends = stage == last && chunk == model.pieces() - 1;
    if (!begins && last > 0) {
      stream = pass.allocate(model.boundary_shape(pass, model.piece(chunk).first_unit - 1),
                             "activation received");
      stages.receive(stream.data, stream.bytes(), before, chunk);
    }
    stream = model.forward(pass, chunk, std::move(stream), batch);
    if (ends) return stream;
    // The first stage receives the output of the last stage as input of its next chunk.
    if (last > 0) stages.send(stream.data, stream.bytes(), behind, chunk + (stage == last));
    if (last > 0) stream.reset();
  }
  return {};
}

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

namespace {

// Converts in blocks, which compilers vectorise: every generated token has a row as long as the
// vocabulary.
template <class T, class To>
void widen(const void* from, std::span<To> to) {
  const T* const data = static_cast<const T*>(from);
  const auto one = [](T x) {
    if constexpr (sizeof(T) == 2)
      return static_cast<To>(static_cast<float>(x));
    else
      return static_cast<To>(x);
  };
  constexpr std::size_t kBlock = 16;
  std::size_t i = 0;
  for (; i + kBlock <= to.size(); i += kBlock)
    for (std::size_t j = 0; j < kBlock; ++j) to[i + j] = one(data[i + j]);
  for (; i < to.size(); ++i) to[i] = one(data[i]);
}

template <class To>
void widen_any(const TensorView& from, std::span<To> to) {
  switch (from.dtype) {
    case DType::f64:
      return widen<double>(from.data, to);
    case DType::f32:
      return widen<float>(from.data, to);
    case DType::bf16:
      return widen<bf16>(from.data, to);
    default:
      return widen<f16>(from.data, to);
  }
}

}  // namespace

void to_floats(const TensorView& from, std::span<float> to) {
  widen_any(from, to);
}

void to_doubles(const TensorView& from, std::span<double> to) {
  widen_any(from, to);
}

bool look_at_scores(Device& device, const TensorView& scores, HostBuffer& memory,
                    const std::function<void(const TensorView&)>& look) {
  if (scores.empty() || device.kind() == DeviceKind::null) return false;
  TensorView host = scores;
  if (!device.host_visible()) {
    if (memory.bytes() < scores.bytes()) memory = HostBuffer(device, scores.bytes());
    device.copy_to_host(memory.data(), scores.data, scores.bytes());
    host.data = memory.data();
  }
  look(host);
  return true;
}

}  // namespace choir
