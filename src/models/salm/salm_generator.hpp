#pragma once
// Answers of a language model that hears: the prompt with its clips in one pass, then token by
// token with keys and values kept.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/infer/token_choice.hpp"

namespace choir {

/// What is to be answered, up to where the answer begins.
struct SalmPrompt {
  std::vector<std::int32_t> ids;                      ///< kAudioPlaceholder for each clip
  std::vector<std::span<const std::uint16_t>> clips;  ///< samples, 16 bits, signed
};

/// Collective over all axes but data: every rank of these gives the same prompts and gets the same
/// answers. Where parameters are sharded, over all ranks: each gives its own prompts, none where it
/// has none, and walks through the model as long as any has.
class SalmGenerator {
 public:
  explicit SalmGenerator(ModelInstance& instance);

  /// Rows of the model that a prompt has: tokens and frames.
  std::int64_t rows(const SalmPrompt& prompt) const;
  /// At most `count` tokens each, fewer where a token of `choice.stop` (not among them) comes first
  /// or the model has no more positions. Prompts of equal rows go through the model together, at
  /// most `together` of them; an answer depends on its prompt alone, but for rounding. Every prompt
  /// has a row, its clips a frame, and it fits into the model. `on_token` sees the tokens of a
  /// single prompt as they are chosen; may be empty.
  std::vector<std::vector<std::int32_t>> answer(
      std::span<const SalmPrompt> prompts, std::int64_t count, const TokenChoice& choice,
      std::int64_t together, const std::function<void(std::int32_t)>& on_token = {});

  /// Logits of the next token [prompts, vocabulary] of prompts of equal rows, in one pass; empty on
  /// ranks of other stages.
  std::vector<double> logits(std::span<const SalmPrompt> prompts);

  /// How many prompts that are parts of the rows of such a micro-batch go together: their keys and
  /// values are kept for all positions of the model.
  std::int64_t together(std::int64_t rows, std::int64_t tokens) const;
  /// In a plan: as the largest answers to prompts out of such a micro-batch do.
  void rehearse(const ModelBatch& batch);

 private:
  enum class Turn { none, prompt, token };

  void answer_group(std::span<const SalmPrompt* const> group, std::int64_t count,
                    const TokenChoice& choice, std::span<std::vector<std::int32_t>* const> answers,
                    const std::function<void(std::int32_t)>& on_token);
  /// Does `pass` when it is the turn of its kind; meanwhile walks along with other ranks. False
  /// when no rank wanted a turn.
  bool take_turn(Turn turn, const std::function<void()>& pass);
  void walk_along(bool with_audio);
  struct Streams;
  using Show = std::function<void(const TensorView&)>;
  /// Shows the scores of the last positions in host memory, as far as this stage has them.
  void feed(Streams& streams, const ModelBatch& batch, const Show& show = {});
  ModelBatch token_batch(std::span<const std::int32_t> tokens);

  ModelInstance& instance_;
  bool all_walk_;
  std::vector<std::int64_t> ids_;  // of streams: nothing random depends on them
  std::optional<HostBatch> silence_;
};

}  // namespace choir
