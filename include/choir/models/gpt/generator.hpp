#pragma once
// Text from a model, token by token, with keys and values kept. Collective over the tensor axis,
// whose ranks all see the same logits and choose the same tokens, and over the pipeline axis, whose
// last stage chooses; where parameters are sharded, every rank of a group must ask for the same.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/infer/token_choice.hpp"

namespace choir {

/// A prompt (not empty), and how its continuation is chosen.
struct Question {
  std::vector<std::int32_t> prompt;
  TokenChoice choice;
};

/// What was spent on reading prompts, and on going on token by token.
struct GenerationTimes {
  std::int64_t prompt_tokens = 0, tokens = 0;
  double prompt_seconds = 0, seconds = 0;
  std::int64_t replayed = 0;  ///< passes of a recorded graph, one for a token of each text
  /// "prompt: 512 tokens in 1.20 s, 427 a second; then 128 in 2.31 s, 55.4 a second"
  std::string to_string() const;
};

class Generator {
 public:
  explicit Generator(ModelInstance& instance);
  /// What all that was generated so far took.
  const GenerationTimes& times() const { return times_; }

  /// As generate() of each question alone but for the rounding of logits, prompt and continuation.
  /// All go through the model in one batch whatever their lengths, so that each step reads the
  /// weights once; the shorter are padded to the longest. Who has ended leaves the batch.
  /// `on_token` gets the number of the question, too.
  std::vector<std::vector<std::int32_t>> generate_together(
      const std::vector<Question>& questions, std::int64_t count,
      const std::function<void(std::size_t, std::int32_t)>& on_token = {});
  /// The most memory that so many questions together ever ask of the arena: on the null device.
  void plan(std::int64_t questions);

  /// Appends `count` tokens, or fewer where one of `choice.stop` comes first (unseen by
  /// `on_token`), to `prompt` (not empty) and returns prompt and continuation. `on_token` sees each
  /// new token as it is chosen; may be empty. A context longer than the block keeps its newest
  /// half: the model has no positions beyond.
  std::vector<std::int32_t> generate(std::vector<std::int32_t> prompt, std::int64_t count,
                                     const TokenChoice& choice,
                                     const std::function<void(std::int32_t)>& on_token = {});

  /// Logits [ids, vocabulary] of a prompt no longer than the block, each row from the cache of
  /// those before it, without the columns that pad the vocabulary; empty on ranks of other stages.
  std::vector<double> logits(const std::vector<std::int32_t>& ids);

 private:
  class Batch;

  ModelInstance& instance_;
  GenerationTimes times_;
};

}  // namespace choir
