#include "src/models/fastconformer/evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "choir/core/philox.hpp"
#include "kernels/ctc/ctc.hpp"
#include "kernels/sums/sums.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/data/speech/ctc_decoder.hpp"

namespace choir {

Tensor SpeechRecogniser::on_device(const TensorView& host) {
  Device& device = instance_.device();
  if (device.host_visible()) return Tensor().view(host);
  Tensor there = instance_.arena().allocate(host.dtype, host.shape, "evaluation batch");
  device.copy_from_host(there.data, host.data, host.bytes());
  return there;
}

void SpeechRecogniser::run(const ModelBatch& batch) {
  frames_ = 0;
  const Tensor logits = instance_.forward(Mode::generate, batch);
  if (logits.empty()) return;
  Pass& pass = instance_.pass();
  const Stream& stream = pass.stream();
  const Sequence& sequence = pass.sequence();
  const std::int64_t symbols = instance_.options().model.vocab_size() + 1;
  const std::int64_t stages = batch["frame_lengths"].shape[0] - 1;
  // The pass points to lengths in memory that was released with its copy of the batch.
  const Tensor frame_lengths = on_device(batch["frame_lengths"].slice(stages, 1));
  const Tensor labels = on_device(batch["labels"]),
               label_lengths = on_device(batch["label_lengths"]);
  const Tensor best =
      instance_.arena().allocate(DType::i32, {sequence.rows()}, "best symbols of frames");
  ops::best_symbols(stream, logits, symbols, best);
  const Tensor losses = pass.allocate_statistic({sequence.batch}, "losses");
  const Tensor workspace =
      pass.scratch(ops::ctc_workspace(stream, sequence.batch, sequence.tokens,
                                      batch["labels"].shape[1], symbols, logits.dtype),
                   "ctc");
  ops::ctc(stream, {.logits = logits,
                    .frame_lengths = static_cast<const std::int32_t*>(frame_lengths.data),
                    .labels = labels,
                    .label_lengths = static_cast<const std::int32_t*>(label_lengths.data),
                    .losses = losses,
                    .vocabulary = symbols,
                    .write_gradient = false,
                    .workspace = workspace});
  const Tensor total = instance_.arena().allocate(DType::f64, {1}, "sum of losses");
  ops::tree_sum(stream, losses, total);
  Device& device = instance_.device();
  if (device.kind() == DeviceKind::null) return;
  device.copy_to_host(&loss_sum_, total.data, sizeof loss_sum_);
  best_.resize(static_cast<std::size_t>(sequence.rows()));
  device.copy_to_host(best_.data(), best.data, best.bytes());
  const auto* lengths = batch["frame_lengths"].slice(stages, 1).as<std::int32_t>();
  lengths_.assign(lengths, lengths + sequence.batch);
  frames_ = sequence.tokens;
}

std::span<const std::int32_t> SpeechRecogniser::best(std::int64_t row) const {
  CHOIR_CHECK(row >= 0 && row < std::ssize(lengths_), "row {} of {}", row, lengths_.size());
  return std::span(best_).subspan(
      static_cast<std::size_t>(row * frames_),
      static_cast<std::size_t>(lengths_[static_cast<std::size_t>(row)]));
}

namespace {

std::array<std::int64_t*, 6> members(EditCounts& c) {
  return {&c.insertions, &c.deletions, &c.substitutions, &c.correct, &c.utterances, &c.exact};
}

/// Keeps the first `most` pairs in the order of their keys.
void keep_first(std::vector<HeardPair>& pairs, std::size_t most) {
  std::ranges::sort(pairs, {}, &HeardPair::key);
  if (pairs.size() > most) pairs.resize(most);
}

/// True on the one rank that counts the results of a micro-batch, among those that have them.
bool counts_here(Mesh& mesh) {
  Communicator& stages = mesh.host_along(Axis::pipeline);
  return stages.rank() == stages.size() - 1 && mesh.coordinates()[Axis::tensor] == 0 &&
         mesh.coordinates()[Axis::context] == 0;
}

class SetEvaluation {
 public:
  SetEvaluation(ModelInstance& instance, SpeechData& data, int set, std::size_t pairs)
      : instance_(instance),
        mesh_(instance.mesh()),
        data_(data),
        set_(set),
        most_pairs_(pairs),
        pair_key_(philox_key(0, "pairs to show")),
        calls_(data.set->eval_calls(set)),
        ranks_(mesh_.host_along(Axis::data).size()),
        recogniser_(instance),
        // One entry per micro-batch, zero on the other ranks: sums are in the order of
        // micro-batches.
        losses_(static_cast<std::size_t>(calls_ * ranks_)) {
    // Every rank has all tags, even those that it does not meet.
    for (const SpeechLeaf& leaf : data.set->eval_leaves(set))
      for (const auto& [name, value] : leaf.tags) result_.tags[name + "=" + value];
  }

  SetScores run(ProgressLine* progress) {
    const double start = now_seconds();
    for (std::int64_t call = 0; call < calls_; ++call) {
      if (progress != nullptr) progress->at(call, calls_);
      const SpeechBatch& batch = data_.set->eval_batch(set_, call);
      // A rank without a batch of its own still provides its part of the parameters to the others.
      if (batch.rows.empty() && !instance_.storage().sharding().values_sharded()) continue;
      recogniser_.run(speech_batch(batch));
      if (counts_here(mesh_) && recogniser_.has_result()) count(batch);
    }
    result_.name = data_.set->eval_name(set_);
    reduce();
    double seconds = now_seconds() - start;
    mesh_.world().all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
    result_.scores.seconds = seconds;
    gather_pairs();
    return std::move(result_);
  }

 private:
  void count(const SpeechBatch& batch) {
    losses_[static_cast<std::size_t>(batch.micro_batch)] = recogniser_.loss_sum();
    targets_ += batch.targets;
    samples_ += batch.samples;
    const std::int64_t blank = instance_.options().model.vocab_size();
    const auto* lengths = batch.audio_lengths.as<std::int32_t>();
    for (std::int64_t r = 0; r < std::ssize(batch.rows); ++r) {
      if (lengths[r] == 0) continue;  // damaged, and reported as such
      const SpeechRow& row = batch.rows[static_cast<std::size_t>(r)];
      const std::string& reference = data_.set->eval_text(set_, row);
      std::string hypothesis = greedy_text(recogniser_.best(r), blank, data_.vocabulary);
      const TagScores edits{word_edits(reference, hypothesis),
                            character_edits(reference, hypothesis)};
      result_.scores.words += edits.words;
      result_.scores.characters += edits.characters;
      const auto leaf = static_cast<std::size_t>(row.item.leaf);
      for (const auto& [name, value] : data_.set->eval_leaves(set_)[leaf].tags)
        result_.tags[name + "=" + value] += edits;
      keep(row, reference, std::move(hypothesis));
    }
  }

  void keep(const SpeechRow& row, const std::string& reference, std::string hypothesis) {
    const PhiloxBlock words = philox_at(pair_key_, static_cast<std::uint64_t>(row.item.leaf),
                                        static_cast<std::uint64_t>(row.item.utterance));
    const std::uint64_t key = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
    result_.pairs.push_back({key, reference, std::move(hypothesis)});
    if (result_.pairs.size() > 2 * most_pairs_ + 8) keep_first(result_.pairs, most_pairs_);
  }

  void reduce() {
    Communicator& world = mesh_.world();
    if (!losses_.empty())
      world.all_reduce(losses_.data(), losses_.size(), DType::f64, ReduceOp::sum);
    std::vector<std::int64_t*> places{&targets_, &samples_};
    std::vector<EditCounts*> all{&result_.scores.words, &result_.scores.characters};
    for (auto& [tag, scores] : result_.tags)
      all.insert(all.end(), {&scores.words, &scores.characters});
    for (EditCounts* counts : all)
      for (std::int64_t* member : members(*counts)) places.push_back(member);
    std::vector<std::int64_t> sums;
    for (const std::int64_t* place : places) sums.push_back(*place);
    world.all_reduce(sums.data(), sums.size(), DType::i64, ReduceOp::sum);
    for (std::size_t i = 0; i < places.size(); ++i) *places[i] = sums[i];
    for (const double loss : losses_) result_.scores.loss += loss;
    result_.scores.targets = targets_;
    result_.scores.audio_seconds =
        static_cast<double>(samples_) / static_cast<double>(data_.set->sample_rate());
  }

  void gather_pairs() {
    keep_first(result_.pairs, most_pairs_);
    nlohmann::json mine = nlohmann::json::array();
    for (const HeardPair& pair : result_.pairs)
      mine.push_back({pair.key, pair.reference, pair.hypothesis});
    result_.pairs.clear();
    for (const std::string& text : gather_texts(mesh_.world(), dumped_safely(mine)))
      for (const auto& pair : parsed_json(text))
        result_.pairs.push_back(
            {pair[0].get<std::uint64_t>(), pair[1].get<std::string>(), pair[2].get<std::string>()});
    keep_first(result_.pairs, most_pairs_);
  }

  ModelInstance& instance_;
  Mesh& mesh_;
  SpeechData& data_;
  int set_;
  std::size_t most_pairs_;
  PhiloxKey pair_key_;
  std::int64_t calls_, ranks_;
  SpeechRecogniser recogniser_;
  std::vector<double> losses_;
  std::int64_t targets_ = 0, samples_ = 0;
  SetScores result_;
};

SetScores sum_of(const std::vector<SetScores>& sets) {
  SetScores all;
  for (const SetScores& set : sets) {
    all.scores += set.scores;
    for (const auto& [tag, scores] : set.tags) all.tags[tag] += scores;
  }
  return all;
}

/// False if the tag applies to the whole set and adds no information.
bool tells_apart(const SetScores& set, const TagScores& tag) {
  return tag.words.utterances != set.scores.words.utterances;
}

Validation validation_of(const SetScores& set, bool all_tags) {
  Validation v = set.scores.validation(set.name);
  for (const auto& [tag, scores] : set.tags) {
    if (!all_tags && !tells_apart(set, scores)) continue;
    v.metrics.emplace_back("wer/" + tag, scores.words.rate());
    v.metrics.emplace_back("cer/" + tag, scores.characters.rate());
  }
  return v;
}

void append_lines(const std::string& name, const SetScores& set, bool all_tags,
                  std::vector<std::string>& lines) {
  lines.push_back(fmt::format("{}: {}", name, set.scores.to_string()));
  for (const auto& [tag, scores] : set.tags)
    if (all_tags || tells_apart(set, scores))
      lines.push_back(fmt::format("{}, {}: WER {}, CER {}", name, tag,
                                  to_string(scores.words, "words"),
                                  to_string(scores.characters, "characters")));
}

}  // namespace

SpeechScores& SpeechScores::operator+=(const SpeechScores& other) {
  loss += other.loss;
  targets += other.targets;
  words += other.words;
  characters += other.characters;
  audio_seconds += other.audio_seconds;
  seconds += other.seconds;
  return *this;
}

TagScores& TagScores::operator+=(const TagScores& other) {
  words += other.words;
  characters += other.characters;
  return *this;
}

std::string SpeechScores::to_string() const {
  return fmt::format("loss {:.4f}, WER {}, CER {}, real-time factor {:.5f}", mean_loss(),
                     choir::to_string(words, "words"), choir::to_string(characters, "characters"),
                     real_time_factor());
}

Validation SpeechScores::validation(const std::string& name) const {
  return {.name = name,
          .loss = mean_loss(),
          .metrics = {{"wer", words.rate()}, {"cer", characters.rate()}}};
}

SetScores score_set(ModelInstance& instance, SpeechData& data, int set, std::size_t pairs,
                    ProgressLine* progress) {
  return SetEvaluation(instance, data, set, pairs).run(progress);
}

std::vector<SetScores> score_sets(ModelInstance& instance, SpeechData& data, std::size_t pairs,
                                  ProgressLine* progress) {
  std::vector<SetScores> sets;
  for (int set = 0; set < data.set->eval_sets(); ++set)
    sets.push_back(score_set(instance, data, set, set == 0 ? pairs : 0, progress));
  return sets;
}

std::vector<Validation> validations_of(const std::vector<SetScores>& sets) {
  std::vector<Validation> list{validation_of(sum_of(sets), true)};
  if (sets.size() > 1)
    for (const SetScores& set : sets) list.push_back(validation_of(set, false));
  return list;
}

std::vector<std::string> lines_of(const std::vector<SetScores>& sets) {
  std::vector<std::string> lines;
  for (const SetScores& set : sets)
    append_lines("'" + set.name + "'", set, sets.size() == 1, lines);
  if (sets.size() > 1) append_lines("all", sum_of(sets), true, lines);
  return lines;
}

std::string to_string(const std::vector<HeardPair>& pairs) {
  std::string text;
  for (const HeardPair& pair : pairs)
    text += fmt::format("{}reference   {}\nhypothesis  {}", text.empty() ? "" : "\n\n",
                        pair.reference, pair.hypothesis);
  return text;
}

std::string greedy_text(std::span<const std::int32_t> best, std::int64_t blank,
                        const Vocabulary& vocabulary) {
  std::vector<std::int32_t> ids;
  // A model may have more symbols than the vocabulary.
  for (const TimedLabel& label : ctc_collapse(best, static_cast<std::int32_t>(blank)))
    if (label.label < vocabulary.size()) ids.push_back(label.label);
  return vocabulary.decode(ids);
}

}  // namespace choir
