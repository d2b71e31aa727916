#include "src/models/fastconformer/evaluation.hpp"

#include <fmt/core.h>

#include <limits>

#include "kernels/ctc/ctc.hpp"
#include "kernels/sums/sums.hpp"
#include "src/core/quantities.hpp"
#include "src/data/audio/prepare_audio.hpp"
#include "src/data/speech/ctc_decoder.hpp"

namespace choir {

Tensor SpeechRecogniser::on_device(const TensorView& host) {
  Device& device = instance_.device();
  if (device.host_visible()) return Tensor().view(host);
  Tensor there = instance_.arena().allocate(host.dtype, host.shape, "evaluation batch");
  device.copy_from_host(there.data, host.data, host.bytes());
  return there;
}

void SpeechRecogniser::run(const ModelBatch& batch, std::span<const std::int64_t> without_loss) {
  frames_ = 0;
  const Tensor logits = instance_.forward(Mode::generate, batch);
  if (logits.empty()) return;
  Pass& pass = instance_.pass();
  const Stream& stream = pass.stream();
  const Sequence& sequence = pass.sequence();
  const std::int64_t symbols = instance_.options().model.vocab_size() + 1;
  const std::int64_t stages = batch["frame_lengths"].shape[0] - 1;
  // The pass points to lengths in memory that was released with its copy of the batch.
  TensorView loss_lengths = batch["frame_lengths"].slice(stages, 1);
  if (!without_loss.empty()) {
    const auto* all = loss_lengths.as<std::int32_t>();
    loss_lengths_.assign(all, all + sequence.batch);
    // A row of 0 frames and 0 labels costs 0.
    for (const std::int64_t row : without_loss) loss_lengths_[static_cast<std::size_t>(row)] = 0;
    loss_lengths.data = loss_lengths_.data();
  }
  const Tensor frame_lengths = on_device(loss_lengths);
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

constexpr const char *kSamples = "samples", *kWords = "words", *kCharacters = "characters";

std::string rates_text(const EditCounts& words, const EditCounts& characters) {
  if (words.reference() == 0)
    return fmt::format("no error rates: {} without a word", counted(words.utterances, "reference"));
  return fmt::format("WER {}, CER {}", to_string(words, "words"),
                     to_string(characters, "characters"));
}

}  // namespace

std::vector<ScoreCounter> SpeechMeaning::counters() const {
  const std::size_t edits = EditCounts().integers().size();
  return {{kTargetsCounter},
          {kSamples},
          {kComparedCounter, 1, true},
          {kWords, edits, true},
          {kCharacters, edits, true}};
}

std::string SpeechMeaning::describe(const Scores& scores, Validation& to) const {
  const auto words = EditCounts::of_integers(scores.of(kWords)),
             characters = EditCounts::of_integers(scores.of(kCharacters));
  to.metrics.emplace_back("wer", words.rate());
  to.metrics.emplace_back("cer", characters.rate());
  to.errors = words.by_name("words", "");
  for (auto& of_characters : characters.by_name("characters", "character_"))
    to.errors.push_back(std::move(of_characters));
  const double audio = static_cast<double>(scores.count(kSamples)) / sample_rate_;
  const bool labelled = scores.count(kTargetsCounter) > 0;
  if (!labelled) to.loss = std::numeric_limits<double>::quiet_NaN();
  return fmt::format("{}, {}, real-time factor {:.5f}",
                     labelled ? fmt::format("loss {:.4f}", to.loss)
                              : "no loss (no target: texts are empty, have characters outside the "
                                "units of the model, or need more frames)",
                     rates_text(words, characters), audio > 0 ? scores.seconds / audio : 0);
}

std::string SpeechMeaning::describe_tag(const Scores& scores, const std::string& tag,
                                        Validation& to) const {
  const auto words = EditCounts::of_integers(scores.of(kWords)),
             characters = EditCounts::of_integers(scores.of(kCharacters));
  to.metrics.emplace_back("wer/" + tag, words.rate());
  to.metrics.emplace_back("cer/" + tag, characters.rate());
  return rates_text(words, characters);
}

std::vector<SampleTags> SpeechScorer::tags(int set) const {
  std::vector<SampleTags> all;
  for (const SpeechLeaf& leaf : data_.set->eval_leaves(set)) all.push_back(leaf.tags);
  return all;
}

void SpeechScorer::score(int set, std::int64_t call, SetSums& sums) {
  const SpeechBatch& batch = data_.set->eval_batch(set, call);
  if (sums.leaves_out(batch.rows.empty())) return;
  std::vector<std::int64_t> without_loss;
  for (std::int64_t r = 0; r < std::ssize(batch.rows); ++r)
    if (!data_.set->eval_has_labels(set, batch.rows[static_cast<std::size_t>(r)]))
      without_loss.push_back(r);
  recogniser_.run(speech_batch(batch), without_loss);
  if (!recogniser_.has_result()) return;
  if (instance_.mesh().coordinates()[Axis::context] == 0) sums.add_losses(recogniser_.loss_sum());
  if (!sums.counts_here()) return;
  std::int64_t targets = batch.targets;
  sums.add(kSamples, batch.samples);
  const std::int64_t blank = instance_.options().model.vocab_size();
  const auto* lengths = batch.audio_lengths.as<std::int32_t>();
  const std::span labels(batch.labels.as<std::int32_t>(),
                         static_cast<std::size_t>(batch.labels.count()));
  for (std::int64_t r = 0; r < std::ssize(batch.rows); ++r) {
    if (lengths[r] == 0) continue;  // damaged, and reported as such
    const SpeechRow& row = batch.rows[static_cast<std::size_t>(r)];
    // Labels for which CTC has too few frames have an infinite loss, which is counted as 0.
    if (ctc_frames(labels.subspan(static_cast<std::size_t>(r * batch.labels.shape[1]),
                                  static_cast<std::size_t>(row.item.labels))) >
        std::ssize(recogniser_.best(r)))
      targets -= row.item.labels;
    const std::string& reference = data_.set->eval_text(set, row);
    std::string hypothesis = greedy_text(recogniser_.best(r), blank, data_.vocabulary);
    const auto& tags = data_.set->eval_leaves(set)[static_cast<std::size_t>(row.item.leaf)].tags;
    sums.add(kComparedCounter, 1, tags);
    const EditCounts words = word_edits(reference, hypothesis);
    sums.add(kWords, words.integers(), tags);
    sums.add(kCharacters, character_edits(reference, hypothesis).integers(), tags);
    sums.add_pair({.source = row.item.leaf,
                   .number = row.item.utterance,
                   .reference = reference,
                   .answer = std::move(hypothesis),
                   .errors = words.edits(),
                   .units = words.reference()});
  }
  sums.add(kTargetsCounter, targets);
}

std::string unwritable_texts_of(const SpeechDataset& data, int set, const Vocabulary& vocabulary) {
  const UnwritableTexts unwritable = data.eval_unwritable(set, vocabulary);
  if (unwritable.count() == 0) return {};
  const std::vector<SpeechLeaf>& leaves = data.eval_leaves(set);
  const std::vector<std::string> manifests =
      leaves.size() == 1 ? packed_manifests(leaves.front().folder) : std::vector<std::string>{};
  const std::string command =
      unwritable.command(manifests.size() == 1 ? manifests.front() : "MANIFEST");
  return fmt::format(
      "validation '{}': {} of {} {} characters that the model cannot write ({}): error rates count "
      "their words as errors, and the loss is without them{}",
      data.eval_name(set), format_count(unwritable.count()),
      counted(data.eval_sift(set).kept(), "text"), unwritable.count() == 1 ? "has" : "have",
      unwritable.characters(),
      command.empty() ? ""
                      : fmt::format("; `{}` writes texts that it can{}", command,
                                    unwritable.remaining() == 0
                                        ? ""
                                        : fmt::format(", except for {}", unwritable.remaining())));
}

std::string SpeechScorer::place(int set, std::int32_t source, std::int32_t number) const {
  return data_.set->eval_place(set, source, number);
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
