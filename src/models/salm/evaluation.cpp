#include "src/models/salm/evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "choir/core/philox.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/models/salm/salm_config.hpp"

namespace choir {
namespace {

constexpr std::size_t kShownPairs = 3;

void keep_first(std::vector<AnswerPair>& pairs, std::size_t most) {
  std::ranges::sort(pairs, {}, &AnswerPair::key);
  if (pairs.size() > most) pairs.resize(most);
}

/// True on the one rank that counts the results, among those that have the same conversations.
bool counts_here(Mesh& mesh) {
  Communicator& stages = mesh.host_along(Axis::pipeline);
  return stages.rank() == stages.size() - 1 && mesh.coordinates()[Axis::tensor] == 0 &&
         mesh.coordinates()[Axis::context] == 0;
}

class ConversationScoring {
 public:
  ConversationScoring(ModelInstance& instance, ConversationBatches& data, int set,
                      const ChatTokenizer* tokenizer, const AnswerOptions& options)
      : instance_(instance),
        mesh_(instance.mesh()),
        data_(data),
        set_(set),
        tokenizer_(tokenizer),
        options_(options),
        generator_(instance),
        all_walk_(instance.storage().sharding().values_sharded()),
        pair_key_(philox_key(0, "answers to show")),
        calls_(data.eval_calls(set)),
        // One entry per micro-batch, zero on the other ranks: sums are in the order of
        // micro-batches.
        terms_(instance.loss_terms().size()),
        losses_(static_cast<std::size_t>(calls_ * mesh_.host_along(Axis::data).size()) * terms_) {
    result_.name = data.eval_name(set);
    // Every rank has all tags, even those that it does not meet.
    const ConversationCorpus& corpus = data.eval_corpus(set);
    for (int leaf = 0; leaf < corpus.folders(); ++leaf)
      for (const auto& [name, value] : corpus.leaf(leaf).tags) result_.tags[name + "=" + value];
    find_last_answered();
  }

  SalmSetScores run(ProgressLine* progress) {
    const double start = now_seconds();
    for (std::int64_t call = 0; call < calls_; ++call) {
      if (progress != nullptr) progress->at(call, calls_);
      const ConversationBatch& batch = data_.eval_batch(set_, call);
      result_.targets = batch.step_targets;
      // A rank without a batch of its own still provides its part of the parameters to the others.
      if (batch.drawn.empty() && !all_walk_) continue;
      std::ranges::copy(instance_.loss_sums(salm_batch(batch)),
                        losses_.data() + static_cast<std::size_t>(batch.micro_batch) * terms_);
      if (answers()) answer(batch);
    }
    reduce();
    result_.seconds = now_seconds() - start;
    mesh_.world().all_reduce(&result_.seconds, 1, DType::f64, ReduceOp::max);
    gather_pairs();
    return std::move(result_);
  }

 private:
  bool answers() const { return tokenizer_ != nullptr && options_.conversations >= 0; }

  /// Finds the last conversation to answer. Micro-batches have another order than the set.
  void find_last_answered() {
    std::int64_t left = options_.conversations;
    const ConversationCorpus& corpus = data_.eval_corpus(set_);
    for (int leaf = 0; leaf < corpus.folders(); ++leaf)
      for (const SpeechItem& item : corpus.items(leaf))
        if (left-- > 0) last_ = {item.leaf, item.utterance};
  }
  bool is_answered(const SpeechItem& item) const {
    return options_.conversations == 0 || std::pair(item.leaf, item.utterance) <= last_;
  }

  void answer(const ConversationBatch& batch) {
    const ConversationCorpus& corpus = data_.eval_corpus(set_);
    std::vector<SalmPrompt> prompts;
    std::vector<std::pair<SpeechItem, std::vector<std::int32_t>>> asked;
    std::int64_t clip = 0;
    for (std::int64_t row = 0; row < std::ssize(batch.drawn); ++row) {
      const SpeechItem& item = batch.drawn[static_cast<std::size_t>(row)].item;
      if (is_answered(item))
        if (auto one = asked_conversation(corpus, batch, row, clip)) {
          prompts.push_back(std::move(one->prompt));
          asked.emplace_back(item, std::move(one->answer));
        }
      clip += std::ssize(corpus.set(item.leaf).clips(item.utterance));
    }
    const TokenChoice greedy{.temperature = 0, .stop = {corpus.end_of_turn()}};
    const auto made = generator_.answer(prompts, options_.tokens, greedy,
                                        generator_.together(batch.rows, batch.tokens));
    if (!counts_here(mesh_)) return;
    for (std::size_t i = 0; i < made.size(); ++i) {
      const std::string reference = text_of(asked[i].second), said = text_of(made[i]);
      result_.answers.add(reference, said);
      for (const auto& [name, value] : corpus.leaf(asked[i].first.leaf).tags)
        result_.tags[name + "=" + value].add(reference, said);
      keep(asked[i].first, reference, said);
    }
  }

  /// A model may have more tokens than the vocabulary.
  std::string text_of(std::vector<std::int32_t> ids) const {
    std::erase_if(ids, [&](std::int32_t id) { return id >= tokenizer_->vocab_size(); });
    return tokenizer_->decode(std::move(ids));
  }

  void keep(const SpeechItem& item, const std::string& reference, const std::string& said) {
    const PhiloxBlock words = philox_at(pair_key_, static_cast<std::uint64_t>(item.leaf),
                                        static_cast<std::uint64_t>(item.utterance));
    const std::uint64_t key = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
    result_.pairs.push_back({key, reference, said});
    keep_first(result_.pairs, kShownPairs);
  }

  void reduce() {
    for (Communicator* all : {&mesh_.host_replicas(), &mesh_.host_along(Axis::pipeline)})
      all->all_reduce(losses_.data(), losses_.size(), DType::f64, ReduceOp::sum);
    for (std::size_t i = 0; i < losses_.size(); i += terms_) {
      result_.loss += losses_[i];
      if (terms_ > 1) result_.z_loss = result_.z_loss.value_or(0) + losses_[i + 1];
    }
    sum_over_ranks(result_.answers);
    for (auto& [tag, answers] : result_.tags) sum_over_ranks(answers);
  }

  void sum_over_ranks(AnswerScores& answers) {
    std::vector<std::int64_t> sums = answers.integers();
    mesh_.world().all_reduce(sums.data(), sums.size(), DType::i64, ReduceOp::sum);
    answers = AnswerScores::of_integers(sums);
  }

  void gather_pairs() {
    nlohmann::json mine = nlohmann::json::array();
    for (const AnswerPair& pair : result_.pairs)
      mine.push_back({pair.key, pair.reference, pair.answer});
    result_.pairs.clear();
    // Text that is not UTF-8 is replaced in the same form on any number of ranks.
    std::vector<std::string> texts{dumped_safely(mine)};
    if (mesh_.world().size() > 1) texts = gather_texts(mesh_.world(), texts.front());
    for (const std::string& text : texts)
      for (const auto& pair : parsed_json(text))
        result_.pairs.push_back(
            {pair[0].get<std::uint64_t>(), pair[1].get<std::string>(), pair[2].get<std::string>()});
    keep_first(result_.pairs, kShownPairs);
  }

  ModelInstance& instance_;
  Mesh& mesh_;
  ConversationBatches& data_;
  int set_;
  const ChatTokenizer* tokenizer_;
  AnswerOptions options_;
  SalmGenerator generator_;
  bool all_walk_;
  PhiloxKey pair_key_;
  std::int64_t calls_;
  std::size_t terms_;
  std::vector<double> losses_;
  std::pair<std::int32_t, std::int32_t> last_{-1, -1};
  SalmSetScores result_;
};

}  // namespace

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

Validation SalmSetScores::validation() const {
  Validation v{.name = name, .loss = loss / static_cast<double>(targets)};
  if (z_loss)
    v.metrics = {{"token_loss", v.loss}, {"z_loss", *z_loss / static_cast<double>(targets)}};
  if (answers.answers > 0) {
    v.metrics.emplace_back("exact_match", answers.exact_match());
    v.metrics.emplace_back("wer", answers.words.rate());
    v.metrics.emplace_back("bleu", answers.bleu.score());
  }
  for (const auto& [tag, some] : tags)
    if (tells_apart(some)) {
      v.metrics.emplace_back("exact_match/" + tag, some.exact_match());
      v.metrics.emplace_back("wer/" + tag, some.words.rate());
      v.metrics.emplace_back("bleu/" + tag, some.bleu.score());
    }
  return v;
}

std::vector<std::string> SalmSetScores::tag_lines() const {
  std::vector<std::string> lines;
  for (const auto& [tag, some] : tags)
    if (tells_apart(some))
      lines.push_back(fmt::format("{}: exact match {:.2f} % ({} of {}), WER {}, BLEU {:.2f}", tag,
                                  100 * some.exact_match(), some.exact, some.answers,
                                  choir::to_string(some.words, "words"), some.bleu.score()));
  return lines;
}

std::string SalmSetScores::to_string() const {
  std::string text = fmt::format("loss {:.4f}", loss / static_cast<double>(targets));
  if (answers.answers > 0)
    text += fmt::format(", exact match {:.2f} % ({} of {}), WER {}, BLEU {:.2f}, {:.1f} answers/s",
                        100 * answers.exact_match(), answers.exact, answers.answers,
                        choir::to_string(answers.words, "words"), answers.bleu.score(),
                        static_cast<double>(answers.answers) / std::max(seconds, 1e-9));
  return text;
}

std::vector<SalmSetScores> score_conversations(ModelInstance& instance, ConversationBatches& data,
                                               const ChatTokenizer* tokenizer,
                                               const AnswerOptions& options,
                                               ProgressLine* progress) {
  std::vector<SalmSetScores> sets;
  for (int set = 0; set < data.eval_sets(); ++set)
    sets.push_back(ConversationScoring(instance, data, set, tokenizer, options).run(progress));
  return sets;
}

namespace {

SalmSetScores sum_of(const std::vector<SalmSetScores>& sets) {
  SalmSetScores all;
  for (const SalmSetScores& set : sets) {
    all.loss += set.loss;
    if (set.z_loss) all.z_loss = all.z_loss.value_or(0) + *set.z_loss;
    all.targets += set.targets;
    all.answers += set.answers;
    all.seconds += set.seconds;
    for (const auto& [tag, some] : set.tags) all.tags[tag] += some;
  }
  return all;
}

}  // namespace

std::vector<Validation> validations_of(const std::vector<SalmSetScores>& sets) {
  std::vector<Validation> list{sum_of(sets).validation()};
  if (sets.size() > 1)
    for (const SalmSetScores& set : sets) list.push_back(set.validation());
  return list;
}

std::vector<std::string> lines_of(const std::vector<SalmSetScores>& sets) {
  std::vector<std::string> lines;
  const auto append = [&](const std::string& name, const SalmSetScores& set) {
    lines.push_back(name + ": " + set.to_string());
    for (const std::string& line : set.tag_lines()) lines.push_back(name + ", " + line);
  };
  for (const SalmSetScores& set : sets) append("'" + set.name + "'", set);
  if (sets.size() > 1) append("all", sum_of(sets));
  return lines;
}

std::string to_string(const std::vector<AnswerPair>& pairs) {
  std::string text;
  for (const AnswerPair& pair : pairs)
    text += fmt::format("{}reference  {}\nanswer     {}", text.empty() ? "" : "\n\n",
                        pair.reference, pair.answer);
  return text;
}

}  // namespace choir
