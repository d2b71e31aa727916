#pragma once
// Token by token generation of text with a cache of keys and values. Collective over the tensor
// axis, whose ranks all see the same logits and choose the same tokens, and over the pipeline axis,
// whose last stage chooses. If parameters are sharded, every rank of a group must make the same
// calls.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/run/model_instance.hpp"
#include "src/run/loaded_model.hpp"
#include "src/run/token_choice.hpp"

namespace choir {

/// A prompt (not empty), and the options by which its continuation is chosen.
struct Question {
  std::vector<std::int32_t> prompt;
  TokenChoice choice;
  /// True if the continuation ends with its last token; may be empty. It is called with the tokens
  /// behind the prompt, after each of them, and returns the same on all ranks.
  std::function<bool(std::span<const std::int32_t>)> ends{};
};

/// Time spent on reading prompts, and on generating token by token.
struct GenerationTimes {
  std::int64_t prompt_tokens = 0, tokens = 0;
  double prompt_seconds = 0, seconds = 0;
  std::int64_t replayed = 0;  ///< passes of a recorded graph, one per token of each text
  /// "prompt: 512 tokens in 1.20 s, 427 a second; then 128 in 2.31 s, 55.4 a second"
  std::string to_string() const;
};

class Generator {
 public:
  explicit Generator(ModelInstance& instance);
  /// The times of everything that was generated so far.
  const GenerationTimes& times() const { return times_; }

  /// Returns prompt and continuation of each question, equal to generate() of each question alone
  /// except for the rounding of logits. All questions share one batch whatever their lengths, so
  /// that each step reads the weights once; shorter ones are padded to the longest. Finished texts
  /// leave the batch. `on_token` also gets the index of the question.
  std::vector<std::vector<std::int32_t>> generate_together(
      const std::vector<Question>& questions, std::int64_t count,
      const std::function<void(std::size_t, std::int32_t)>& on_token = {});
  /// Allocates the largest amount that this number of questions ever needs; called on the null
  /// device.
  void plan(std::int64_t questions);

  /// Appends to `prompt` (not empty) `count` tokens, or fewer if one of `choice.stop` comes first,
  /// and returns prompt and continuation. `on_token` (may be empty) sees each new token when it is
  /// chosen, except the stop token. A context longer than the block keeps its newest half, because
  /// the model has no further positions.
  std::vector<std::int32_t> generate(std::vector<std::int32_t> prompt, std::int64_t count,
                                     const TokenChoice& choice,
                                     const std::function<void(std::int32_t)>& on_token = {});

  /// Logits [ids, vocabulary] of a prompt no longer than the block, without padding of the
  /// vocabulary. Each row uses the cache of the rows before it. Empty on ranks of other stages.
  std::vector<double> logits(const std::vector<std::int32_t>& ids);

 private:
  class Batch;

  ModelInstance& instance_;
  GenerationTimes times_;
};

/// An `on_token` of Generator::generate() that shows how many of `tokens` tokens are done; empty
/// without a line, which must outlive it.
std::function<void(std::int32_t)> counted_by(ProgressLine* line, std::int64_t tokens);

/// Opens a model that generates at most `together` texts at a time and creates its instance; throws
/// DeckError for a model that does not generate. The device comes from the overrides, else `auto`;
/// the device of the training does not matter. Collective.
LoadedModel load_generator(const FamilyTable& families, const std::string& path,
                           const std::string& precision, Workplace& place,
                           const std::vector<std::string>& overrides = {},
                           std::int64_t together = 1);
/// The same for an opened model. Collective.
LoadedModel load_generator(LoadedModel loaded, Workplace& place, std::int64_t together);

}  // namespace choir
