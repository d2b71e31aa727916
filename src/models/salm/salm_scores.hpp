#pragma once
// How well a model answers what it hears: the loss of validation sets, and answers generated from
// their prompts against those that are written, as counts over whole sets.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/progress_line.hpp"
#include "choir/data/conversations/chat_template.hpp"
#include "choir/data/conversations/conversation_batches.hpp"
#include "choir/data/speech/answer_scores.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/train/step/training_data.hpp"
#include "src/models/salm/salm_generator.hpp"

namespace choir {

/// A batch as the engine takes it: the same host memory.
ModelBatch salm_batch(const ConversationBatch& batch);

/// A conversation cut where its last answer begins.
struct AskedConversation {
  SalmPrompt prompt;
  std::vector<std::int32_t> answer;  ///< without the token that ends it
};
/// Row `row` of a batch; `first_clip`: of that row in the batch. Nothing where no answer is a
/// target, or nothing stands before it. The clips are views of the batch.
std::optional<AskedConversation> asked_conversation(const ConversationCorpus& corpus,
                                                    const ConversationBatch& batch,
                                                    std::int64_t row, std::int64_t first_clip);

/// What was to be said and what was said.
struct AnswerPair {
  std::uint64_t key = 0;  ///< pairs are chosen by the smallest
  std::string reference, answer;
};

/// All members but seconds are sums over conversations of all ranks.
struct SalmSetScores {
  std::string name;
  double loss = 0;  ///< sum
  std::int64_t targets = 0;
  AnswerScores answers;
  double seconds = 0;
  std::map<std::string, AnswerScores> tags{};  ///< by "NAME=VALUE"
  std::vector<AnswerPair> pairs{};             ///< on rank 0; of the same conversations every time

  Validation validation() const;
  std::string to_string() const;
  /// A line for each tag that some answers have and others have not.
  std::vector<std::string> tag_lines() const;

 private:
  bool tells_apart(const AnswerScores& some) const {
    return some.answers > 0 && some.answers != answers.answers;
  }
};

struct AnswerOptions {
  std::int64_t conversations = 0;  ///< the first so many of a set; 0: all; -1: none
  std::int64_t tokens = 64;
};

/// Collective over the mesh of the instance, the same on every rank. A set goes through the model
/// in the same micro-batches on any number of data ranks. Without `tokenizer` nothing is answered.
std::vector<SalmSetScores> score_conversations(ModelInstance& instance, ConversationBatches& data,
                                               const ChatTokenizer* tokenizer,
                                               const AnswerOptions& options,
                                               ProgressLine* progress);

/// All together under the name "" first, then, where there are several, each.
std::vector<Validation> validations_of(const std::vector<SalmSetScores>& sets);
/// The same for people.
std::vector<std::string> lines_of(const std::vector<SalmSetScores>& sets);
std::string to_string(const std::vector<AnswerPair>& pairs);

}  // namespace choir
