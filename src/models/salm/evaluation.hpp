#pragma once
// Scores of conversations with audio: the loss of validation sets, and comparison of answers that
// are generated from their prompts with the written ones, as counts over whole sets.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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

struct AnswerOptions {
  std::int64_t conversations = 0;  ///< first conversations of a set; 0: all; -1: none
  std::int64_t tokens = 64;
  /// Stop tokens are those of the conversations. The answer to a prompt depends on it alone,
  /// because random numbers depend on the position in an answer only.
  TokenChoice choice{.temperature = 0, .stop = {}};
};

/// The loss of validation sets, and answers that are generated from their prompts, as counts over
/// whole sets.
class SalmMeaning final : public ScoreMeaning {
 public:
  std::vector<ScoreCounter> counters() const override;
  std::string describe(const Scores& scores, Validation& to) const override;
  std::string describe_tag(const Scores& scores, const std::string& tag,
                           Validation& to) const override;
};

class SalmScorer final : public SetScorer {
 public:
  /// `options`: of each set. Without `tokenizer` no answers are generated. Everything referred to
  /// must outlive this.
  SalmScorer(ModelInstance& instance, ConversationBatches& data, const ChatTokenizer* tokenizer,
             std::vector<AnswerOptions> options)
      : instance_(instance),
        data_(data),
        tokenizer_(tokenizer),
        options_(std::move(options)),
        generator_(instance) {}
  const ScoreMeaning& meaning() const override { return meaning_; }
  int sets() const override { return data_.eval_sets(); }
  std::string name(int set) const override { return data_.eval_name(set); }
  std::int64_t calls(int set) const override { return data_.eval_calls(set); }
  std::vector<SampleTags> tags(int set) const override;
  void score(int set, std::int64_t call, SetSums& sums) override;
  Pairs pairs() const override { return {.order = "answers to show"}; }
  std::string place(int set, std::int32_t source, std::int32_t number) const override;

 private:
  const AnswerOptions& options(int set) const { return options_.at(static_cast<std::size_t>(set)); }
  std::pair<std::int32_t, std::int32_t> last_answered(int set) const;
  void answer(int set, const ConversationBatch& batch, SetSums& sums);
  std::string text_of(std::vector<std::int32_t> ids) const;

  ModelInstance& instance_;
  ConversationBatches& data_;
  const ChatTokenizer* tokenizer_;
  std::vector<AnswerOptions> options_;
  SalmGenerator generator_;
  SalmMeaning meaning_;
};

}  // namespace choir
