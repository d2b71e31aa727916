#include "src/models/salm/evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "src/models/salm/salm_config.hpp"

namespace choir {
ModelBatch salm_batch(const ConversationBatch& batch) {
  ModelBatch result =
      salm_fields(static_cast<int>(batch.frame_lengths.shape[0]) - 1,
                  {.samples = batch.rows, .tokens = batch.tokens, .clips = batch.clips});
  result["audio"] = batch.audio;
  result["audio_lengths"] = batch.audio_lengths;
  result["frame_lengths"] = batch.frame_lengths;
  result["sample_ids"] = batch.clip_ids;
  result["conversation_ids"] = batch.conversation_ids;
  result["index"] = batch.splice;
  result["targets"] = batch.targets;
  return result;
}

std::optional<AskedConversation> asked_conversation(const ConversationCorpus& corpus,
                                                    const ConversationBatch& batch,
                                                    std::int64_t row, std::int64_t first_clip) {
  const SpeechItem& item = batch.drawn[static_cast<std::size_t>(row)].item;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counted;
  corpus.set(item.leaf).read(item.utterance, ids, counted);
  std::size_t end = counted.size();
  while (end > 0 && counted[end - 1] == 0) --end;
  std::size_t begin = end;
  while (begin > 0 && counted[begin - 1] != 0) --begin;
  if (begin == end || begin == 0) return std::nullopt;
  AskedConversation asked;
  asked.answer.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                      ids.begin() + static_cast<std::ptrdiff_t>(end));
  if (asked.answer.back() == corpus.end_of_turn()) asked.answer.pop_back();
  ids.resize(begin);
  const std::int64_t width = batch.audio.shape[1];
  const auto clips = std::count(ids.begin(), ids.end(), kAudioPlaceholder);
  for (std::int64_t clip = first_clip; clip < first_clip + clips; ++clip)
    asked.prompt.clips.push_back(
        {batch.audio.as<std::uint16_t>() + clip * width,
         static_cast<std::size_t>(batch.audio_lengths.as<std::int32_t>()[clip])});
  asked.prompt.ids = std::move(ids);
  return asked;
}

namespace {

constexpr const char* kAnswers = "answers";

std::string answers_text(const AnswerScores& answers) {
  return fmt::format("exact match {:.2f} % ({} of {}), WER {}, BLEU {:.2f}",
                     100 * answers.exact_match(), answers.exact, answers.answers,
                     to_string(answers.words, "words"), answers.bleu.score());
}

/// `behind`: "/TAG", or "".
void add_metrics(const AnswerScores& answers, const std::string& behind, Validation& to) {
  to.metrics.emplace_back("exact_match" + behind, answers.exact_match());
  to.metrics.emplace_back("wer" + behind, answers.words.rate());
  to.metrics.emplace_back("bleu" + behind, answers.bleu.score());
}

}  // namespace

std::vector<ScoreCounter> SalmMeaning::counters() const {
  return {{kTargetsCounter},
          {kComparedCounter, 1, true},
          {kAnswers, AnswerScores().integers().size(), true}};
}

std::string SalmMeaning::describe(const Scores& scores, Validation& to) const {
  const auto answers = AnswerScores::of_integers(scores.of(kAnswers));
  std::string text = fmt::format("loss {:.4f}", to.loss);
  if (answers.answers == 0) return text;
  add_metrics(answers, "", to);
  to.errors = answers.words.by_name("words", "");
  return text + fmt::format(", {}, {:.1f} answers/s", answers_text(answers),
                            static_cast<double>(answers.answers) / std::max(scores.seconds, 1e-9));
}

std::string SalmMeaning::describe_tag(const Scores& scores, const std::string& tag,
                                      Validation& to) const {
  const auto answers = AnswerScores::of_integers(scores.of(kAnswers));
  add_metrics(answers, "/" + tag, to);
  return answers_text(answers);
}

std::vector<SampleTags> SalmScorer::tags(int set) const {
  const ConversationCorpus& corpus = data_.eval_corpus(set);
  std::vector<SampleTags> all;
  for (int leaf = 0; leaf < corpus.folders(); ++leaf) all.push_back(corpus.leaf(leaf).tags);
  return all;
}

void SalmScorer::score(int set, std::int64_t call, SetSums& sums) {
  const ConversationBatch& batch = data_.eval_batch(set, call);
  if (sums.leaves_out(batch.drawn.empty())) return;
  sums.add_losses(instance_.loss_sums(salm_batch(batch)));
  sums.add(kTargetsCounter, batch.counted);
  if (tokenizer_ != nullptr && options(set).conversations >= 0) answer(set, batch, sums);
}

/// The last conversation to answer, as its folder and its number there. Micro-batches have another
/// order than the set.
std::pair<std::int32_t, std::int32_t> SalmScorer::last_answered(int set) const {
  std::pair<std::int32_t, std::int32_t> last{-1, -1};
  std::int64_t left = options(set).conversations;
  const ConversationCorpus& corpus = data_.eval_corpus(set);
  for (int leaf = 0; leaf < corpus.folders(); ++leaf)
    for (const SpeechItem& item : corpus.items(leaf))
      if (left-- > 0) last = {item.leaf, item.utterance};
  return last;
}

void SalmScorer::answer(int set, const ConversationBatch& batch, SetSums& sums) {
  const ConversationCorpus& corpus = data_.eval_corpus(set);
  const auto last = last_answered(set);
  std::vector<SalmPrompt> prompts;
  std::vector<std::pair<SpeechItem, std::vector<std::int32_t>>> asked;
  std::int64_t clip = 0;
  for (std::int64_t row = 0; row < std::ssize(batch.drawn); ++row) {
    const SpeechItem& item = batch.drawn[static_cast<std::size_t>(row)].item;
    if (options(set).conversations == 0 || std::pair(item.leaf, item.utterance) <= last)
      if (auto one = asked_conversation(corpus, batch, row, clip)) {
        prompts.push_back(std::move(one->prompt));
        asked.emplace_back(item, std::move(one->answer));
      }
    clip += std::ssize(corpus.set(item.leaf).clips(item.utterance));
  }
  TokenChoice choice = options(set).choice;
  choice.stop = {corpus.end_of_turn()};
  const auto made = generator_.answer(prompts, options(set).tokens, choice,
                                      generator_.together(batch.rows, batch.tokens));
  if (!sums.counts_here()) return;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const SpeechItem& item = asked[i].first;
    const std::string reference = text_of(asked[i].second), said = text_of(made[i]);
    const SampleTags& tags = corpus.leaf(item.leaf).tags;
    AnswerScores one;
    one.add(reference, said);
    sums.add(kComparedCounter, 1, tags);
    sums.add(kAnswers, one.integers(), tags);
    sums.add_pair({.source = item.leaf,
                   .number = item.utterance,
                   .reference = reference,
                   .answer = said,
                   .errors = one.words.edits(),
                   .units = one.words.reference()});
  }
}

std::string SalmScorer::place(int set, std::int32_t source, std::int32_t number) const {
  return fmt::format("conversation {} of {}", number + 1,
                     data_.eval_corpus(set).leaf(source).folder);
}

/// A model may have more tokens than the vocabulary.
std::string SalmScorer::text_of(std::vector<std::int32_t> ids) const {
  std::erase_if(ids, [&](std::int32_t id) { return id >= tokenizer_->vocab_size(); });
  return tokenizer_->decode(std::move(ids));
}

}  // namespace choir
