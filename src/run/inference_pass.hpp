#pragma once
// A forward pass through all pieces of a model, stage by stage, for evaluation and generation.
// Consecutive passes overlap: a stage begins the next pass while later stages still work on this
// one.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "choir/comm/communicator.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/models/model.hpp"
#include "choir/nn/stream_state.hpp"
#include "choir/run/model_instance.hpp"

namespace choir {

/// Collective over `stages`. Returns the result of the last piece (see Model::forward) on the last
/// stage, and an empty tensor on the others.
Tensor forward_through_stages(Model& model, Pass& pass, const ModelBatch& batch,
                              Communicator& stages);

// The pass for one more position of streams. It is recorded as a graph the second time and replayed
// as long as batch and memory stay the same, because on a GPU the host takes longer to queue its
// hundreds of small kernels than they take to run. If the device does not record graphs, or ranks
// share the model, every pass is queued anew, with the same bits.

class TokenGraph {
 public:
  /// Takes four bytes of the arena on the cuda device, and when planning for one.
  explicit TokenGraph(ModelInstance& instance);
  ~TokenGraph() { forget(); }
  TokenGraph(const TokenGraph&) = delete;
  TokenGraph& operator=(const TokenGraph&) = delete;

  /// Begins and queues a pass over the sequence and returns its result. The pass reads everything
  /// that changes from token to token from device memory that it does not fill itself.
  using Queue = std::function<Tensor(const Sequence&)>;
  /// Reads the result, before the arena allocates again.
  using Show = std::function<void(const TensorView&)>;
  /// Runs a pass over the next `tokens` positions of `state`. `input` is the memory from which it
  /// reads them.
  void run(StreamState& state, std::int64_t tokens, const void* input, const Queue& queue,
           const Show& show);
  /// Discards the recorded graph: call it when the streams, or the memory that the pass reads,
  /// change.
  void forget();
  std::int64_t replays() const { return replays_; }

 private:
  struct Key {
    const StreamState* state = nullptr;
    const void* input = nullptr;
    std::int64_t streams = 0;
    std::size_t held = 0;  ///< Arena::live()
    bool operator==(const Key&) const = default;
  };
  bool is_recorded(const StreamState& state, std::int64_t tokens, const void* input);
  void record(StreamState& state, const Queue& queue);

  ModelInstance& instance_;
  bool records_;
  Tensor seen_;  ///< [1], number of positions before the next one
  Key key_;
  bool met_ = false;  ///< true if the current key was seen before
  NativeGraph graph_ = nullptr;
  std::int64_t replays_ = 0;
  TensorView out_;
};

// Scores of a model in host memory, for decisions such as the choice of tokens.

/// Converts `from`, which is in host memory (f64, f32, bf16 or f16) and has at least as many
/// elements as `to`.
void to_floats(const TensorView& from, std::span<float> to);
void to_doubles(const TensorView& from, std::span<double> to);

/// Calls `look` with the scores in host memory: in place, or copied to `memory`, which grows to the
/// largest size needed. Returns false without a call if this rank has no scores: another stage has
/// them, or no rank on the null device.
bool look_at_scores(Device& device, const TensorView& scores, HostBuffer& memory,
                    const std::function<void(const TensorView&)>& look);

}  // namespace choir
