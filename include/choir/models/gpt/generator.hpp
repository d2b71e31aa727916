#pragma once
// Text from a model, token by token, with keys and values kept. Collective over the tensor axis,
// whose ranks all see the same logits and choose the same tokens, and over the pipeline axis, whose
// last stage chooses; where parameters are sharded, every rank of a group must ask for the same.
#include <cstdint>
#include <functional>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/infer/token_choice.hpp"

namespace choir {

class Generator {
 public:
  explicit Generator(ModelInstance& instance);

  /// Appends `count` tokens, or fewer where one of `choice.stop` comes first (unseen by `on_token`), to
  /// `prompt` (not empty) and returns prompt and continuation. `on_token` sees each new token as it
  /// is chosen; may be empty. A context longer than the block keeps its newest half: the model has
  /// no positions beyond.
  std::vector<std::int32_t> generate(std::vector<std::int32_t> prompt, std::int64_t count,
                                     const TokenChoice& choice,
                                     const std::function<void(std::int32_t)>& on_token = {});

  /// Logits [ids, vocabulary] of a prompt no longer than the block, each row from the cache of
  /// those before it, without the columns that pad the vocabulary; empty on ranks of other stages.
  std::vector<double> logits(const std::vector<std::int32_t>& ids);

 private:
  std::int32_t agreed(std::int32_t token);
  /// Feeds `ids`, which are next in the stream, and shows the logits of the last of them, in host
  /// memory. False: another stage has them. The null device has none to show.
  bool feed(StreamState& state, const std::int32_t* ids, std::int64_t count,
            const std::function<void(const TensorView&)>& show);

  ModelInstance& instance_;
};

}  // namespace choir
