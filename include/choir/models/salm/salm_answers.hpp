#pragma once
// One prompt with clips from files to a trained model that hears, and what it answers.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "choir/data/conversations/chat_template.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/infer/token_choice.hpp"

namespace choir {

/// A user's turn as the model reads it, rendered as the conversations that it was trained on.
class HeardPrompt {
 public:
  /// The shape of a micro-batch that holds it, to plan memory for.
  BatchShape shape() const;
  std::int64_t rows() const { return rows_; }
  /// As SalmGenerator::answer: of the ranks of one data rank. `on_piece` sees what each token adds
  /// to the text. Returns the answer without white space around it.
  std::string answer(ModelInstance& instance, std::int64_t tokens, const TokenChoice& choice,
                     const std::function<void(const std::string&)>& on_piece = {}) const;

 private:
  friend HeardPrompt read_prompt(const ModelConfig&, const std::string&, const std::string&,
                                 const std::string&, const std::vector<std::string>&);
  std::shared_ptr<ChatTokenizer> tokenizer_;
  std::int32_t end_ = -1;  ///< of an answer
  std::vector<std::int32_t> ids_;
  std::vector<std::vector<std::uint16_t>> clips_;
  std::int64_t rows_ = 0, longest_ = 0;
};

/// Local. `text`: with kAudioTag once for each of `clips`, which are sound files of any rate, with
/// their channels averaged. `vocabulary`: of the checkpoint `source`
/// (TrainingData::vocabulary_json). Throws DataError: no tokenizer, files that are no audio or
/// shorter than one frame of the encoder; DeckError: a prompt longer than the model's positions.
HeardPrompt read_prompt(const ModelConfig& model, const std::string& vocabulary,
                        const std::string& source, const std::string& text,
                        const std::vector<std::string>& clips);

}  // namespace choir
