#pragma once
// The pass that brings one more position to streams: recorded the second time, and replayed as long
// as batch and memory stay what they are, since on a GPU the host takes longer to queue its
// hundreds of small kernels than they take to run. Where the device records nothing, or ranks share
// the model, every pass is queued anew, with the same bits.
#include <cstddef>
#include <cstdint>
#include <functional>

#include "choir/infer/model_instance.hpp"
#include "choir/nn/stream_state.hpp"

namespace choir {

class TokenGraph {
 public:
  /// Takes four bytes of the arena on the cuda device, and where one is planned for.
  explicit TokenGraph(ModelInstance& instance);
  ~TokenGraph() { forget(); }
  TokenGraph(const TokenGraph&) = delete;
  TokenGraph& operator=(const TokenGraph&) = delete;

  /// Begins a pass over the sequence and queues it; what comes out. It reads all that differs from
  /// token to token in memory of the device that it does not fill itself.
  using Queue = std::function<Tensor(const Sequence&)>;
  /// Looks at what came out, before anybody asks the arena for memory again.
  using Show = std::function<void(const TensorView&)>;
  /// A pass over the next `tokens` positions of `state`. `input`: where it reads what they are.
  void run(StreamState& state, std::int64_t tokens, const void* input, const Queue& queue,
           const Show& show);
  /// What was recorded is true no longer: other streams, or other memory that the pass reads.
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
  Tensor seen_;  ///< [1], positions before the one that comes
  Key key_;
  bool met_ = false;  ///< the key, once
  NativeGraph graph_ = nullptr;
  std::int64_t replays_ = 0;
  TensorView out_;
};

}  // namespace choir
