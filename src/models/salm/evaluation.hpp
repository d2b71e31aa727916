#pragma once
// Scores of conversations with audio: the loss of validation sets, and comparison of answers that
// are generated from their prompts with the written ones, as counts over whole sets.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/conversation_batches.hpp"
#include "src/data/metrics/answer_scores.hpp"
#include "src/models/salm/generator.hpp"

namespace choir {

/// A batch in the engine's form: the same host memory.
ModelBatch salm_batch(const ConversationBatch& batch);

/// A conversation, cut before its last answer.
struct AskedConversation {
  SalmPrompt prompt;
  std::vector<std::int32_t> answer;  ///< without the token that ends it
};
/// Cuts row `row` of a batch; `first_clip`: index of its first clip in the batch. Returns nothing
/// if no answer is a target, or if the answer has no prompt. The clips are views of the batch.
std::optional<AskedConversation> asked_conversation(const ConversationCorpus& corpus,
                                                    const ConversationBatch& batch,
                                                    std::int64_t row, std::int64_t first_clip);

/// The reference answer and the generated one.
struct AnswerPair {
  std::uint64_t key = 0;  ///< the pairs with the smallest keys are shown
  std::string reference, answer;
};

/// All members except `seconds` are sums over conversations of all ranks.
struct SalmSetScores {
  std::string name;
  double loss = 0;                 ///< sum
  std::optional<double> z_loss{};  ///< sum; only with model.lm.z_loss
  std::int64_t targets = 0;
  AnswerScores answers;
  double seconds = 0;
  std::map<std::string, AnswerScores> tags{};  ///< by "NAME=VALUE"
  std::vector<AnswerPair> pairs{};             ///< on rank 0; the same conversations every time

  Validation validation() const;
  std::string to_string() const;
  /// One line for each tag that some answers have and others do not.
  std::vector<std::string> tag_lines() const;

 private:
  bool tells_apart(const AnswerScores& some) const {
    return some.answers > 0 && some.answers != answers.answers;
  }
};

struct AnswerOptions {
  std::int64_t conversations = 0;  ///< first conversations of a set; 0: all; -1: none
  std::int64_t tokens = 64;
};

/// Collective over the mesh of the instance, with the same result on every rank. The micro-batches
/// of a set do not depend on the number of data ranks. Without `tokenizer` no answers are
/// generated.
std::vector<SalmSetScores> score_conversations(ModelInstance& instance, ConversationBatches& data,
                                               const ChatTokenizer* tokenizer,
                                               const AnswerOptions& options,
                                               ProgressLine* progress);

/// All sets together under the name "" first, then, if there are several, each of them.
std::vector<Validation> validations_of(const std::vector<SalmSetScores>& sets);
/// The same, formatted for users.
std::vector<std::string> lines_of(const std::vector<SalmSetScores>& sets);
std::string to_string(const std::vector<AnswerPair>& pairs);

}  // namespace choir
