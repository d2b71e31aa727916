#pragma once
// Generation of answers of a language model with audio input: the prompt with its clips in one
// pass, then token by token with a cache of keys and values; and a prompt whose clips are sound
// files.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/run/model_instance.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/run/token_choice.hpp"

namespace choir {

/// A conversation up to the beginning of the answer.
struct SalmPrompt {
  std::vector<std::int32_t> ids;                      ///< kAudioPlaceholder for each clip
  std::vector<std::span<const std::uint16_t>> clips;  ///< samples, 16 bits, signed
};

/// Collective over all axes except data: their ranks pass the same prompts and get the same
/// answers. If parameters are sharded, collective over all ranks: each passes its own prompts,
/// possibly none, and runs passes through the model as long as any rank has prompts.
class SalmGenerator {
 public:
  explicit SalmGenerator(ModelInstance& instance);

  /// Rows of a prompt in the model: tokens and frames.
  std::int64_t rows(const SalmPrompt& prompt) const;
  /// Each answer has at most `count` tokens; it ends before a token of `choice.stop`, or when the
  /// model has no more positions. Prompts with equal numbers of rows share passes, at most
  /// `together` of them; except for rounding an answer depends on its prompt alone. Every prompt
  /// must have a row, each of its clips a frame, and it must fit into the model. `on_token` (may be
  /// empty) sees the tokens of a single prompt when they are chosen.
  std::vector<std::vector<std::int32_t>> answer(
      std::span<const SalmPrompt> prompts, std::int64_t count, const TokenChoice& choice,
      std::int64_t together, const std::function<void(std::int32_t)>& on_token = {});

  /// Logits of the next token [prompts, vocabulary] of prompts with equal numbers of rows, in one
  /// pass; empty on ranks of other stages.
  std::vector<double> logits(std::span<const SalmPrompt> prompts);

  /// The number of prompts from rows of such a micro-batch that are answered together. Their keys
  /// and values are cached for all positions of the model.
  std::int64_t together(std::int64_t rows, std::int64_t tokens) const;
  /// Runs in a plan the passes of the largest answers to prompts from such a micro-batch.
  void rehearse(const ModelBatch& batch);

 private:
  enum class Turn { none, prompt, token };

  void answer_group(std::span<const SalmPrompt* const> group, std::int64_t count,
                    const TokenChoice& choice, std::span<std::vector<std::int32_t>* const> answers,
                    const std::function<void(std::int32_t)>& on_token);
  /// Calls `pass` when its kind is due, and runs passes for other ranks until then. Returns false
  /// if no rank wanted a turn.
  bool take_turn(Turn turn, const std::function<void()>& pass);
  void walk_along(bool with_audio);
  struct Streams;
  using Show = std::function<void(const TensorView&)>;
  /// Calls `show` with the scores of the last positions in host memory, if this stage has them.
  void feed(Streams& streams, const ModelBatch& batch, const Show& show = {});
  ModelBatch token_batch(std::span<const std::int32_t> tokens);

  ModelInstance& instance_;
  bool all_walk_;
  std::vector<std::int64_t> ids_;  // ids of streams, on which no random numbers depend
  std::optional<HostBatch> silence_;
};

/// A user's turn in the form of the conversations that the model was trained on.
class HeardPrompt {
 public:
  /// The shape of a micro-batch that holds the prompt, by which memory is planned.
  BatchShape shape() const;
  std::int64_t rows() const { return rows_; }
  /// Remarks for the user about the files, for example that channels were averaged.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Collective like SalmGenerator::answer over the ranks of one data rank. `on_piece` receives the
  /// text that each token adds. Returns the answer without surrounding white space.
  std::string answer(ModelInstance& instance, std::int64_t tokens, const TokenChoice& choice,
                     const std::function<void(const std::string&)>& on_piece = {}) const;

 private:
  friend HeardPrompt read_prompt(const ModelConfig&, const std::string&, const std::string&,
                                 const std::string&, const std::vector<std::string>&,
                                 ChannelChoice);
  std::shared_ptr<ChatTokenizer> tokenizer_;
  std::int32_t end_ = -1;  ///< token that ends an answer
  std::vector<std::int32_t> ids_;
  std::vector<std::vector<std::uint16_t>> clips_;
  std::int64_t rows_ = 0, longest_ = 0;
  std::vector<std::string> notes_;
};

/// Local. `text` contains kAudioTag once for each of `clips`, which are sound files of any rate;
/// there may be none. `channel` is taken of each; unset, several channels are averaged, with a
/// note. `vocabulary`: that of the checkpoint `source` (TrainingData::vocabulary_json). Throws
/// DataError for a missing tokenizer and for files that are not audio or shorter than one frame of
/// the encoder, DeckError for a prompt longer than the model's positions.
HeardPrompt read_prompt(const ModelConfig& model, const std::string& vocabulary,
                        const std::string& source, const std::string& text,
                        const std::vector<std::string>& clips, ChannelChoice channel);

}  // namespace choir
