#include "src/models/duplex/evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>

#include "choir/ops/copy_rows.hpp"
#include "src/comm/agreement.hpp"
#include "src/data/corpora/spoken_text.hpp"
#include "src/data/metrics/turn_taking.hpp"
#include "src/models/duplex/duplex.hpp"

namespace choir {
namespace {

/// A copy of some rows of a micro-batch's audio.
class RecordingBatch {
 public:
  RecordingBatch(const ModelBatch& whole, std::span<const std::int64_t> rows) {
    const std::int64_t count = std::ssize(rows), all = whole["audio"].shape[0];
    const std::int64_t width = whole["audio"].shape[1], stages = whole["frame_lengths"].shape[0];
    audio_.resize(static_cast<std::size_t>(count * width));
    lengths_.resize(static_cast<std::size_t>(count));
    frame_lengths_.resize(static_cast<std::size_t>(stages * count));
    ids_.resize(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = rows[static_cast<std::size_t>(i)];
      std::copy_n(whole["audio"].as<std::uint16_t>() + row * width, width,
                  audio_.begin() + i * width);
      lengths_[static_cast<std::size_t>(i)] = whole["audio_lengths"].as<std::int32_t>()[row];
      ids_[static_cast<std::size_t>(i)] = whole["sample_ids"].as<std::int64_t>()[row];
      for (std::int64_t stage = 0; stage < stages; ++stage)
        frame_lengths_[static_cast<std::size_t>(stage * count + i)] =
            whole["frame_lengths"].as<std::int32_t>()[stage * all + row];
    }
    batch.samples = count;
    batch.add({.name = "audio", .view = {audio_.data(), DType::u16, {count, width}}});
    batch.add({.name = "audio_lengths", .view = {lengths_.data(), DType::i32, {count}}});
    batch.add(
        {.name = "frame_lengths", .view = {frame_lengths_.data(), DType::i32, {stages, count}}});
    batch.add({.name = "sample_ids", .view = {ids_.data(), DType::i64, {count}}});
  }
  RecordingBatch(const RecordingBatch&) = delete;
  RecordingBatch& operator=(const RecordingBatch&) = delete;

  ModelBatch batch;

 private:
  std::vector<std::uint16_t> audio_;
  std::vector<std::int32_t> lengths_, frame_lengths_;
  std::vector<std::int64_t> ids_;
};

}  // namespace

Tensor DialogueGroup::hear(const ModelBatch& whole, std::span<const std::int64_t> rows) {
  Device& device = instance_.device();
  const RecordingBatch host(whole, rows);
  ModelBatch batch = host.batch;
  std::array<Tensor, ModelBatch::kMostFields> held;
  std::size_t count = 0;
  for (BatchField& field : batch.fields()) {
    if (device.host_visible()) continue;
    Tensor& there = held[count++];
    there = instance_.arena().allocate(field.view.dtype, field.view.shape, "recordings");
    device.copy_from_host(there.data, field.view.data, field.view.bytes());
    field.view = there;
  }
  instance_.as<Duplex>().begin_hearing(instance_.pass(), batch);
  const Tensor frames = instance_.model().forward(instance_.pass(), 0, {}, batch);
  const std::int64_t dialogues = std::ssize(rows), width = frames.shape.back();
  return frames.view(frames.reshaped({dialogues, frames.shape.rows() / dialogues, width}));
}

Tensor DialogueGroup::frame_at(const Tensor& heard, std::int64_t t) {
  const std::int64_t dialogues = heard.shape[0], frames = heard.shape[1], width = heard.shape[2];
  t = std::min(t, frames - 1);
  Tensor row = instance_.pass().allocate({dialogues, width}, "frame of dialogues");
  const TensorView from = heard.reshaped({dialogues * frames, width}).slice(t, 1);
  ops::copy_rows(instance_.stream(), heard.dtype, dialogues, width, {from.data, frames * width},
                 {row.data, width});
  return row;
}

std::vector<SaidDialogue> DialogueGroup::talk(const ModelBatch& batch,
                                              std::span<const std::int64_t> rows,
                                              std::span<const std::int64_t> frames) {
  const DuplexConfig& config = instance_.as<Duplex>().config();
  // The sound of the last frame in the longest dialogue may be beyond the model's positions.
  const std::int64_t own =
      rows.empty() ? 0 : std::min(*std::ranges::max_element(frames), config.lm.block_size);
  std::int64_t steps = own;
  if (instance_.storage().sharding().values_sharded())
    instance_.mesh().world().all_reduce(&steps, 1, DType::i64, ReduceOp::max);
  std::vector<SaidDialogue> said(rows.size(), {.text = {controls_.pad}, .codes = {}});
  if (steps == 0) return said;
  // A rank without a dialogue of its own encodes one that it does not answer.
  constexpr std::int64_t kAny = 0;
  const std::span<const std::int64_t> heard_rows = rows.empty() ? std::span(&kAny, 1) : rows;
  const Tensor heard = hear(batch, heard_rows);
  const std::int64_t count = std::ssize(heard_rows), books = config.codebooks;
  std::vector<std::int32_t> text(rows.size(), controls_.pad);
  std::vector<std::int32_t> codes(rows.size() * static_cast<std::size_t>(books),
                                  static_cast<std::int32_t>(config.delay_code()));
  std::optional<DuplexRows> dialogues;
  if (own > 0) dialogues.emplace(instance_, count, own);
  for (std::int64_t t = 0; t < own; ++t) {
    dialogues->choose(dialogues->step(frame_at(heard, t), text, codes), text, codes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      said[i].text.push_back(text[i]);
      const auto first = codes.begin() + static_cast<std::ptrdiff_t>(i) * books;
      said[i].codes.insert(said[i].codes.end(), first, first + books);
    }
  }
  dialogues.reset();
  for (std::int64_t t = own; t < steps; ++t)
    DuplexRows::walk_along(instance_, frame_at(heard, t).slice(0, 1));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    said[i].text.resize(static_cast<std::size_t>(frames[i]));
    said[i].codes.resize(static_cast<std::size_t>(frames[i] * books),
                         static_cast<std::int32_t>(config.delay_code()));
  }
  return said;
}

void DialogueGroup::rehearse(const ModelBatch& batch) {
  const DuplexConfig& config = instance_.as<Duplex>().config();
  const std::int64_t count = batch.samples;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  const Tensor heard = hear(batch, rows);
  DuplexRows dialogues(instance_, count, std::min(batch.tokens + 1, config.lm.block_size));
  dialogues.rehearse(frame_at(heard, 0));
  DuplexRows::walk_along(instance_, frame_at(heard, 0).slice(0, 1));
}

namespace {

/// Codes [T, K] in which a control code, which is silence, replaces all codes of these frames.
std::vector<std::int32_t> silenced(std::vector<std::int32_t> codes,
                                   const std::vector<UserSpan>& frames,
                                   const CodecDescription& codec) {
  for (const UserSpan& span : frames)
    std::fill(codes.begin() + span.begin * codec.codebooks,
              codes.begin() + span.end * codec.codebooks,
              static_cast<std::int32_t>(codec.codes_per_book));
  return codes;
}

constexpr const char *kTurns = "turns", *kHeard = "heard";

/// "87.50 % (14 of 16)"
std::string share_text(std::int64_t part, std::int64_t all) {
  return fmt::format(
      "{:.2f} % ({} of {})",
      100 * static_cast<double>(part) / static_cast<double>(std::max(all, INT64_C(1))), part, all);
}

/// `behind`: "/TAG", or "".
void add_metrics(const TurnCounts& turns, const AnswerScores& heard, const std::string& behind,
                 Validation& to) {
  for (const auto& [name, value] : turns.metrics()) to.metrics.emplace_back(name + behind, value);
  if (heard.answers == 0) return;
  to.metrics.emplace_back("asr_wer" + behind, heard.words.rate());
  to.metrics.emplace_back("asr_bleu" + behind, heard.bleu.score());
}

std::string text_of(const TurnCounts& turns, const AnswerScores& heard) {
  std::string text = fmt::format(
      "{} dialogues held: text exact {}, turn hits {}, false starts {}, missed {}", turns.dialogues,
      share_text(turns.exact, turns.turns), share_text(turns.hits, turns.turns),
      share_text(turns.false_starts, turns.turns), share_text(turns.missed, turns.turns));
  if (const std::int64_t frames = median_of(turns.latency); frames >= 0)
    text += fmt::format(", answers after {} frames", frames);
  if (const std::int64_t frames = median_of(turns.stop); frames >= 0)
    text += fmt::format(", stops {} frames into a barge-in", frames);
  if (turns.talked_on > 0)
    text += fmt::format(", talked on in {} of {} barge-ins", turns.talked_on, turns.barge_ins);
  if (heard.answers > 0)
    text += fmt::format("; heard: WER {}, BLEU {:.2f}", to_string(heard.words, "words"),
                        heard.bleu.score());
  return text;
}

}  // namespace

std::vector<ScoreCounter> DuplexMeaning::counters() const {
  return {{kTargetsCounter, 2},
          {kComparedCounter, 1, true},
          {kTurns, TurnCounts().integers().size(), true},
          {kHeard, AnswerScores().integers().size(), true}};
}

std::string DuplexMeaning::describe(const Scores& scores, Validation& to) const {
  const auto turns = TurnCounts::of_integers(scores.of(kTurns));
  const auto heard = AnswerScores::of_integers(scores.of(kHeard));
  if (turns.dialogues == 0) return {};
  add_metrics(turns, heard, "", to);
  return text_of(turns, heard) + fmt::format("; {:.1f} s", scores.seconds);
}

std::string DuplexMeaning::describe_tag(const Scores& scores, const std::string& tag,
                                        Validation& to) const {
  const auto turns = TurnCounts::of_integers(scores.of(kTurns));
  const auto heard = AnswerScores::of_integers(scores.of(kHeard));
  add_metrics(turns, heard, "/" + tag, to);
  return text_of(turns, heard);
}

std::vector<SampleTags> DuplexScorer::tags(int set) const {
  std::vector<SampleTags> all;
  for (const SpeechLeaf& leaf : data_.user().eval_leaves(set)) all.push_back(leaf.tags);
  return all;
}

bool DuplexScorer::talks(int set) const {
  return options_.dialogues.at(static_cast<std::size_t>(set)) != 0 &&
         instance_.mesh().layout().size(Axis::pipeline) == 1;
}

void DuplexScorer::score(int set, std::int64_t call, SetSums& sums) {
  const DialogueBatch& batch = data_.eval_batch(set, call);
  const SpeechBatch& user = *batch.user;
  if (sums.leaves_out(user.rows.empty())) return;
  const ModelBatch fields = batches_.of(batch);
  const ByTerm losses = instance_.loss_sums(fields);
  if (!user.rows.empty()) sums.add_losses(losses);
  // Without the rows that turned out to be damaged.
  sums.add(kTargetsCounter, std::array{batch.text_counted, batch.codes_counted});
  if (talks(set)) hold(set, user, fields);
}

void DuplexScorer::hold(int set, const SpeechBatch& user, const ModelBatch& fields) {
  const auto* lengths = user.label_lengths.as<std::int32_t>();
  const std::int64_t most = options_.dialogues.at(static_cast<std::size_t>(set));
  std::vector<std::int64_t> rows, frames;
  for (std::int64_t row = 0; row < std::ssize(user.rows); ++row) {
    const SpeechRow& one = user.rows[static_cast<std::size_t>(row)];
    const bool wanted = most < 0 || data_.eval_place(set, one) < most;
    if (!wanted || lengths[row] == 0) continue;  // damaged ones are empty
    rows.push_back(row);
    frames.push_back(lengths[row]);
  }
  std::vector<SaidDialogue> said = group_.talk(fields, rows, frames);
  // Ranks that hold the same dialogues divide their evaluation.
  const Communicator& peers = instance_.mesh().host_peers();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<int>(i % static_cast<std::size_t>(peers.size())) != peers.rank()) continue;
    const auto* channel = user.labels.as<std::int32_t>() + rows[i] * user.labels.shape[1];
    held_.push_back({user.rows[static_cast<std::size_t>(rows[i])],
                     {channel, channel + frames[i]},
                     std::move(said[i])});
  }
}

void DuplexScorer::finish(int set, SetSums& sums) {
  if (!talks(set)) return;
  together(instance_.mesh().world(), [&] {
    for (const HeldDialogue& one : held_) count(set, one, sums);
  });
  held_.clear();
}

void DuplexScorer::count(int set, const HeldDialogue& one, SetSums& sums) {
  const DialogueControls& controls = data_.form().controls;
  const FrameClock clock{.sample_rate = data_.user().sample_rate()};
  const std::vector<DialogueTurn> turns = data_.eval_turns(set, one.row);
  const std::vector<FrameTurn> said = turns_of(one.said.text, controls);
  const std::int64_t frames = std::ssize(one.channel);
  const SampleTags& tags =
      data_.user().eval_leaves(set)[static_cast<std::size_t>(one.row.item.leaf)].tags;
  const TurnCounts counted =
      count_turns(turns_of(one.channel, controls), said, user_spans(turns, clock), frames);
  sums.add_own(kComparedCounter, std::array{std::int64_t{1}}, tags);
  sums.add_own(kTurns, counted.integers(), tags);
  if (options_.ear == nullptr) return;
  const HeardReference reference = heard_reference(turns, clock, said, frames);
  const std::vector<std::int32_t> codes =
      silenced(one.said.codes, reference.unheard, data_.codec());
  AnswerScores heard;
  heard.add(spoken_words(reference.words), spoken_words(options_.ear->words(codes)));
  sums.add_own(kHeard, heard.integers(), tags);
}

}  // namespace choir
