#pragma once
// Text from a model, token by token, with a KV cache. Collective over the tensor axis, whose ranks
// all see the same logits and choose the same tokens, and over the pipeline axis, whose last stage
// chooses; where parameters are sharded, every rank of a group must ask for the same.
#include <cstdint>
#include <functional>
#include <vector>

#include "choir/train/engine/model_instance.hpp"
#include "choir/train/text/token_choice.hpp"

namespace choir {

class Generator {
 public:
  explicit Generator(ModelInstance& instance);

  /// Appends `count` tokens to `prompt` (not empty) and returns prompt and continuation. `on_token`
  /// sees each new token as it is chosen; may be empty. A context longer than the block keeps its
  /// newest half: the model has no positions beyond.
  std::vector<std::int32_t> generate(std::vector<std::int32_t> prompt, std::int64_t count,
                                     const TokenChoice& choice,
                                     const std::function<void(std::int32_t)>& on_token = {});

 private:
  struct Cache;
  std::int32_t agreed(std::int32_t token);
  /// Logits of the last of `ids`, appended to the cache. False: another stage has them.
  bool feed(KvCache& cache, const std::int32_t* ids, std::int64_t count,
            std::vector<float>& logits);

  ModelInstance& instance_;
};

}  // namespace choir
