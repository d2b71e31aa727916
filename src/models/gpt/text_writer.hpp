#pragma once
// Answers of a language model to texts and conversations, as text or as JSON lines.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/conversation.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/run/loaded_model.hpp"
#include "src/run/token_choice.hpp"

namespace choir {

struct TextOptions {
  TokenChoice choice;
  std::int64_t tokens = 200;  ///< at most, of an answer
  std::int64_t batch = 8;     ///< texts that are generated together
  std::int64_t samples = 1;   ///< answers to each prompt
  bool chat = false;          ///< answer as the assistant of a conversation
  std::string chat_template, system;
  bool json = false, timings = false;
  /// With json: also the natural logarithm of the probability that the model gives to each token of
  /// an answer, at temperature 1 and with all tokens to choose from.
  bool log_probabilities = false;
};

/// Writes the model's answers to texts and conversations. All ranks that run the model execute the
/// same calls, and one of them writes. An answer depends only on its prompt, its sample number and
/// the seed, not on the other prompts.
class TextWriter {
 public:
  /// `loaded` must outlive this; `writes`: this rank prints. Throws DataError without a vocabulary.
  TextWriter(const LoadedModel& loaded, TextOptions options, bool writes);

  /// Answers every prompt with all its samples. Nothing is written if one of them cannot be read.
  void write_all(const std::vector<Prompt>& prompts);
  /// Adds one turn of the user and answers it.
  void converse(const std::string& line);

 private:
  /// A prompt in tokens and the model's answer.
  struct Exchange {
    const Prompt* prompt = nullptr;
    std::int64_t number = 1, sample = 0;
    std::vector<std::int32_t> ids;
    std::string text;
    std::vector<std::int32_t> answer;  ///< the ids of the prompt and those that follow
  };

  std::vector<std::int32_t> encode(const Prompt& prompt);
  /// Returns the ids of a prompt; throws DataError if the model cannot take them in at once.
  std::vector<std::int32_t> fitting(const Prompt& prompt);
  /// Answers all of them in one batch. The first text is shown as its characters complete; the
  /// others, and JSON, when all are finished.
  void answer(std::span<Exchange> exchanges);
  /// Text printed before an answer.
  std::string heading(const Exchange& exchange) const;
  std::string json_line(const Exchange& exchange) const;
  /// Values for the tokens behind the prompt, by one further pass over all; none if they are more
  /// than the model has positions. All ranks that run the model call it.
  std::vector<double> log_probabilities(const Exchange& exchange) const;
  void show(const std::string& text) const;

  const LoadedModel& loaded_;
  TextOptions options_;
  bool writes_;
  Vocabulary vocabulary_;
  TokenChoice choice_;
  OpenedTokenizer chat_;
  bool several_ = false;  ///< there are several answers, each with a heading
  Prompt said_;
  std::int64_t turn_ = 1;
};

}  // namespace choir
