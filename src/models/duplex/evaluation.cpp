#include "src/models/duplex/evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>

#include "choir/ops/copy_rows.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
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

/// A dialogue that was held, and its reference.
struct HeldDialogue {
  SpeechRow row;
  std::vector<std::int32_t> channel;  ///< the agent's text of the reference
  SaidDialogue said;
};

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

class DialogueScoring {
 public:
  DialogueScoring(ModelInstance& instance, DialogueBatches& data, DuplexBatches& batches, int set,
                  const DialogueOptions& options)
      : instance_(instance),
        mesh_(instance.mesh()),
        data_(data),
        batches_(batches),
        set_(set),
        options_(options),
        group_(instance, data.form().controls),
        all_walk_(instance.storage().sharding().values_sharded()),
        calls_(data.user().eval_calls(set)),
        terms_(instance.loss_terms().size()),
        // Each micro-batch and term has an entry, which is zero on the other ranks: sums are taken
        // in the order of the micro-batches on any number of ranks.
        losses_(static_cast<std::size_t>(calls_ * mesh_.host_along(Axis::data).size()) * terms_) {
    scores_.name = data.user().eval_name(set);
  }

  DialogueSetScores run(ProgressLine* progress) {
    std::int64_t labels = 0;
    for (std::int64_t call = 0; call < calls_; ++call) {
      if (progress != nullptr) progress->at(call, calls_);
      const DialogueBatch& batch = data_.eval_batch(set_, call);
      labels = batch.user->step_targets;
      // A rank without a batch of its own still provides its part of the parameters to the others.
      if (batch.user->rows.empty() && !all_walk_) continue;
      measure(batch);
    }
    for (Communicator* all : {&mesh_.host_replicas(), &mesh_.host_along(Axis::pipeline)})
      all->all_reduce(losses_.data(), losses_.size(), DType::f64, ReduceOp::sum);
    scores_.losses = ByTerm(terms_, 0);
    for (std::size_t i = 0; i < losses_.size(); ++i) scores_.losses[i % terms_] += losses_[i];
    // A dialogue has one text target less than frames, and as many code targets for each codebook.
    scores_.targets =
        ByTerm(terms_, static_cast<double>(labels - data_.user().eval_utterances(set_)));
    scores_.targets[1] *= static_cast<double>(data_.codec().codebooks);
    if (talks()) count();
    return std::move(scores_);
  }

 private:
  bool talks() const { return options_.dialogues != 0 && mesh_.layout().size(Axis::pipeline) == 1; }

  void measure(const DialogueBatch& batch) {
    const SpeechBatch& user = *batch.user;
    const ModelBatch fields = batches_.of(batch);
    const ByTerm sums = instance_.loss_sums(fields);
    if (!user.rows.empty())
      for (std::size_t t = 0; t < terms_; ++t)
        losses_[static_cast<std::size_t>(user.micro_batch) * terms_ + t] = sums[t];
    if (talks()) hold(user, fields);
  }

  void hold(const SpeechBatch& user, const ModelBatch& fields) {
    const double start = now_seconds();
    const auto* lengths = user.label_lengths.as<std::int32_t>();
    std::vector<std::int64_t> rows, frames;
    for (std::int64_t row = 0; row < std::ssize(user.rows); ++row) {
      const SpeechRow& one = user.rows[static_cast<std::size_t>(row)];
      const bool wanted =
          options_.dialogues < 0 || data_.eval_place(set_, one) < options_.dialogues;
      if (!wanted || lengths[row] == 0) continue;  // damaged ones are empty
      rows.push_back(row);
      frames.push_back(lengths[row]);
    }
    std::vector<SaidDialogue> said = group_.talk(fields, rows, frames);
    // Ranks that hold the same dialogues divide their evaluation.
    Communicator& peers = mesh_.host_peers();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (static_cast<int>(i % static_cast<std::size_t>(peers.size())) != peers.rank()) continue;
      const auto* channel = user.labels.as<std::int32_t>() + rows[i] * user.labels.shape[1];
      held_.push_back({user.rows[static_cast<std::size_t>(rows[i])],
                       {channel, channel + frames[i]},
                       std::move(said[i])});
    }
    scores_.seconds += now_seconds() - start;
  }

  void count() {
    const double start = now_seconds();
    together(mesh_.world(), [&] {
      for (const HeldDialogue& one : held_) count(one);
    });
    sum_over_ranks(scores_.turns);
    sum_over_ranks(scores_.heard);
    scores_.seconds += now_seconds() - start;
    mesh_.world().all_reduce(&scores_.seconds, 1, DType::f64, ReduceOp::max);
  }

  void count(const HeldDialogue& one) {
    const DialogueControls& controls = data_.form().controls;
    const FrameClock clock{.sample_rate = data_.user().sample_rate()};
    const std::vector<DialogueTurn> turns = data_.eval_turns(set_, one.row);
    const std::vector<FrameTurn> said = turns_of(one.said.text, controls);
    const std::int64_t frames = std::ssize(one.channel);
    scores_.turns +=
        count_turns(turns_of(one.channel, controls), said, user_spans(turns, clock), frames);
    if (options_.ear == nullptr) return;
    const HeardReference reference = heard_reference(turns, clock, said, frames);
    const std::vector<std::int32_t> codes =
        silenced(one.said.codes, reference.unheard, data_.codec());
    scores_.heard.add(spoken_words(reference.words), spoken_words(options_.ear->words(codes)));
  }

  template <class Counts>
  void sum_over_ranks(Counts& counts) {
    std::vector<std::int64_t> sums = counts.integers();
    mesh_.world().all_reduce(sums.data(), sums.size(), DType::i64, ReduceOp::sum);
    counts = Counts::of_integers(sums);
  }

  ModelInstance& instance_;
  Mesh& mesh_;
  DialogueBatches& data_;
  DuplexBatches& batches_;
  int set_;
  DialogueOptions options_;
  DialogueGroup group_;
  bool all_walk_;
  std::int64_t calls_;
  std::size_t terms_;
  std::vector<double> losses_;
  std::vector<HeldDialogue> held_;
  DialogueSetScores scores_;
};

DialogueSetScores sum_of(const std::vector<DialogueSetScores>& sets) {
  DialogueSetScores all;
  for (const DialogueSetScores& set : sets) all += set;
  return all;
}

/// "87.50 % (14 of 16)"
std::string share_text(std::int64_t part, std::int64_t all) {
  return fmt::format(
      "{:.2f} % ({} of {})",
      100 * static_cast<double>(part) / static_cast<double>(std::max(all, INT64_C(1))), part, all);
}

}  // namespace

DialogueSetScores& DialogueSetScores::operator+=(const DialogueSetScores& other) {
  losses += other.losses;
  targets += other.targets;
  turns += other.turns;
  heard += other.heard;
  seconds += other.seconds;
  return *this;
}

Validation DialogueSetScores::validation(const std::vector<LossTerm>& terms) const {
  Validation v = validation_of(terms, losses, targets);
  v.name = name;
  if (turns.dialogues > 0)
    for (auto& metric : turns.metrics()) v.metrics.push_back(std::move(metric));
  if (heard.answers > 0) {
    v.metrics.emplace_back("asr_wer", heard.words.rate());
    v.metrics.emplace_back("asr_bleu", heard.bleu.score());
  }
  return v;
}

std::string DialogueSetScores::to_string() const {
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
    text += fmt::format("; heard: WER {}, BLEU {:.2f}", choir::to_string(heard.words, "words"),
                        heard.bleu.score());
  return text + fmt::format("; {:.1f} s", seconds);
}

std::vector<DialogueSetScores> score_dialogues(ModelInstance& instance, DialogueBatches& data,
                                               DuplexBatches& batches,
                                               const DialogueOptions& options,
                                               ProgressLine* progress) {
  std::vector<DialogueSetScores> sets;
  for (int set = 0; set < data.user().eval_sets(); ++set)
    sets.push_back(DialogueScoring(instance, data, batches, set, options).run(progress));
  return sets;
}

std::vector<Validation> validations_of(const std::vector<LossTerm>& terms,
                                       const std::vector<DialogueSetScores>& sets) {
  std::vector<Validation> list{sum_of(sets).validation(terms)};
  if (sets.size() > 1)
    for (const DialogueSetScores& set : sets) list.push_back(set.validation(terms));
  return list;
}

std::vector<std::string> lines_of(const std::vector<DialogueSetScores>& sets) {
  std::vector<std::string> lines;
  for (const DialogueSetScores& set : sets)
    if (set.turns.dialogues > 0)
      lines.push_back(fmt::format("'{}': {}", set.name, set.to_string()));
  if (lines.size() > 1) lines.push_back("all: " + sum_of(sets).to_string());
  return lines;
}

}  // namespace choir
