#pragma once
// One prompt with audio clips from files, and the answer of a trained model.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "choir/data/conversations/chat_template.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/infer/token_choice.hpp"

namespace choir {

/// A user's turn in the form of the conversations that the model was trained on.
class HeardPrompt {
 public:
  /// The shape of a micro-batch that holds the prompt, by which memory is planned.
  BatchShape shape() const;
  std::int64_t rows() const { return rows_; }
  /// Collective like SalmGenerator::answer over the ranks of one data rank. `on_piece` receives the
  /// text that each token adds. Returns the answer without surrounding white space.
  std::string answer(ModelInstance& instance, std::int64_t tokens, const TokenChoice& choice,
                     const std::function<void(const std::string&)>& on_piece = {}) const;

 private:
  friend HeardPrompt read_prompt(const ModelConfig&, const std::string&, const std::string&,
                                 const std::string&, const std::vector<std::string>&);
  std::shared_ptr<ChatTokenizer> tokenizer_;
  std::int32_t end_ = -1;  ///< token that ends an answer
  std::vector<std::int32_t> ids_;
  std::vector<std::vector<std::uint16_t>> clips_;
  std::int64_t rows_ = 0, longest_ = 0;
};

/// Local. `text` contains kAudioTag once for each of `clips`, which are sound files of any rate,
/// whose channels are averaged. `vocabulary`: that of the checkpoint `source`
/// (TrainingData::vocabulary_json). Throws DataError for a missing tokenizer and for files that are
/// not audio or shorter than one frame of the encoder, DeckError for a prompt longer than the
/// model's positions.
HeardPrompt read_prompt(const ModelConfig& model, const std::string& vocabulary,
                        const std::string& source, const std::string& text,
                        const std::vector<std::string>& clips);

}  // namespace choir
