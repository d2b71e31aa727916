#include "src/train/loop/resume_point.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/log.hpp"
#include "choir/models/family.hpp"
#include "choir/nn/parameter_set.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"
#include "src/run/run_setup.hpp"
#include "src/store/open.hpp"
#include "src/store/store.hpp"

namespace choir {
namespace {

/// Finds the checkpoint. The ranks agree on it: rank 0 reads, and shares the result.
std::optional<Checkpoint> find_checkpoint(const CheckpointSection& wish, const std::string& folder,
                                          Communicator& world, Logger& log) {
  std::optional<ProgressLine> line;
  const PhaseProgress progress = [&](const char* phase, std::int64_t done, std::int64_t total) {
    if (!line) line.emplace(log, std::string("checkpoint, ") + phase);
    line->at(done, total);
  };
  if (wish.resume != "auto")
    return open_checkpoint(wish.resume, world, Verify::checksums, progress);
  return find_newest_valid(folder, world, Verify::checksums, progress);
}

const char* kind_of(PassedOver::Why why) {
  switch (why) {
    case PassedOver::Why::damaged:
      return " damaged checkpoint";
    case PassedOver::Why::unreadable:
      return " checkpoint that cannot be read";
    case PassedOver::Why::abandoned:
      return " checkpoint of another branch";
    case PassedOver::Why::baseless:
      return " checkpoint without its base";
  }
  return "";
}

bool allows(const CheckpointSection& wish, const std::string& key) {
  return std::any_of(wish.allow_changes.begin(), wish.allow_changes.end(), [&](const auto& word) {
    return word == CheckpointSection::kAllowAll || word == key;
  });
}

/// True if the user allowed other data.
bool allows_data(const CheckpointSection& wish) {
  return std::any_of(wish.allow_changes.begin(), wish.allow_changes.end(), [](const auto& word) {
    return word == CheckpointSection::kAllowAll || word.starts_with("data.");
  });
}

std::string line_of(const KeyChange& change) {
  return fmt::format("\n  {}: {} -> {}", change.key, change.before, change.now);
}

/// True if the weights of the checkpoint have the shapes of the deck's model.
bool has_shapes_of(const ResumePoint& from, const Deck& deck) {
  if (from.checkpoint.manifest.tensors.empty()) return true;  // nothing is known
  try {
    ParameterSet parameters;
    deck.family().make(model_of(deck), parameters, {});
    return std::ranges::all_of(parameters.all(), [&](const Parameter* p) {
      const TensorRecord* stored = from.checkpoint.manifest.find("parameters/" + p->name);
      return stored != nullptr && stored->shape == p->shape;
    });
  } catch (const Error&) {
    return false;
  }
}

/// Refuses changes of keys. They can be allowed only if the changed model can hold the weights.
[[noreturn]] void refuse(const ResumePoint& from, const Deck& deck, const std::string& changes,
                         const std::vector<std::string>& keys) {
  if (!has_shapes_of(from, deck))
    throw DeckError(
        fmt::format("the deck is not that of {}, which this run would continue, and its model has "
                    "other weights:{}",
                    from.checkpoint.path, changes),
        fmt::format("change it back, or choose another run.dir; a new run can begin with the "
                    "weights that fit: run.dir=NEW checkpoint.init_from={}",
                    from.checkpoint.path));
  std::vector<std::string> quoted;
  for (const std::string& key : keys) quoted.push_back('"' + key + '"');
  throw DeckError(fmt::format("the deck is not that of {}, which this run would continue:{}",
                              from.checkpoint.path, changes),
                  fmt::format("change it back, choose another run.dir, or allow it: "
                              "checkpoint.allow_changes='[{}]'",
                              join(quoted, ",")));
}

void require_vocabulary(const ResumePoint& from, std::uint64_t vocab_hash) {
  if (from.meta.vocabulary.empty() || vocab_hash == 0) return;
  const Vocabulary trained = Vocabulary::from_json(from.meta.vocabulary, from.checkpoint.path);
  if (has_hash(trained, vocab_hash)) return;
  throw DataError(
      fmt::format("the vocabulary of the training data ({:016x}) is not that of the checkpoint {} "
                  "({} entries, {:016x})",
                  vocab_hash, from.checkpoint.path, trained.size(), trained.hash()),
      "set data.train to the data it was trained on, or start from scratch in another run.dir");
}

/// The former schedule, if this program still understands the former deck.
std::optional<LrSchedule> former_schedule(const ResumePoint& from, const FamilyTable& table,
                                          int data_parallel) {
  try {
    return schedule_of(parse_deck(table, from.meta.deck, from.checkpoint.path, {}), data_parallel);
  } catch (const DeckError&) {
    return std::nullopt;
  }
}

bool moves_learning_rate(const KeyChange& change) {
  constexpr std::string_view kKeys[] = {
      "train.max_steps",        "optimizer.learning_rate",   "optimizer.min_lr",
      "optimizer.warmup_steps", "optimizer.decay_steps",     "optimizer.schedule",
      "optimizer.scale_lr",     "optimizer.wsd_decay_steps", "optimizer.wsd_decay_shape"};
  return std::find(std::begin(kKeys), std::end(kKeys), change.key) != std::end(kKeys);
}

std::string learning_rate_report(const ResumePoint& from, const Deck& deck,
                                 const LrSchedule& schedule, std::int64_t step, int data_parallel) {
  std::string text = fmt::format("\n  learning rate: {}, peak {:.4g} after {}, {:.4g} at step {}",
                                 deck.optimizer.schedule, schedule.peak,
                                 counted(schedule.warmup_steps, "warm-up step"),
                                 schedule.at(schedule.decay_steps), schedule.decay_steps);
  if (step >= deck.train.max_steps) return text;  // no step is left to take a rate
  text += fmt::format("; step {} of {} takes {:.4g}", step + 1, deck.train.max_steps,
                      schedule.at(step));
  if (const auto former = former_schedule(from, deck.families.table(), data_parallel))
    text += fmt::format(", {:.4g} without the change", former->at(step));
  if (const std::int64_t begin = schedule.tail_begin(); begin >= 0 && begin < step)
    text += fmt::format(
        "\n  the decay begins at step {}, {} steps before this checkpoint: to continue from the "
        "plateau, resume from a checkpoint of step {} or earlier, or set "
        "optimizer.wsd_decay_steps to at most {}",
        begin, step - begin, begin, std::max<std::int64_t>(0, schedule.decay_steps - step));
  return text;
}

}  // namespace

std::optional<ResumePoint> find_resume_point(const Deck& deck, const std::string& folder,
                                             Communicator& world, Logger& log) {
  if (deck.checkpoint.resume == "none") return std::nullopt;
  for (const std::string& line : CheckpointStore(folder, world).recover())
    log.warn("checkpoints: {}", line);
  auto found = find_checkpoint(deck.checkpoint, folder, world, log);
  if (!found) return std::nullopt;
  if (world.rank() == 0)
    for (const PassedOver& one : found->skipped)
      log.warn("passed over a{}: {}", kind_of(one.why), one.reason);
  ResumePoint point;
  together(world, [&] { point = resume_point_of(*std::move(found), deck); });
  return point;
}

ResumePoint resume_point_of(Checkpoint found, const Deck& deck) {
  ResumePoint point{.checkpoint = std::move(found), .meta = {}};
  point.meta = TrainMeta::parse(point.checkpoint.json, point.checkpoint.path);
  // The vocabulary of the data is not known yet.
  Deck with_vocabulary = deck;
  std::int64_t& size = with_vocabulary.family().vocab_size(with_vocabulary);
  if (size == 0) size = point.meta.vocab_size;
  require_allowed(point, with_vocabulary);
  return point;
}

void require_allowed(const ResumePoint& from, const Deck& deck) {
  std::string lines;
  std::vector<std::string> keys;
  for (const KeyChange& change : deck_changes(from.meta.deck, deck)) {
    if (on_resume(deck.families.table(), change.key) != OnResume::fixed ||
        allows(deck.checkpoint, change.key))
      continue;
    lines += line_of(change);
    keys.push_back(change.key);
  }
  if (!keys.empty()) refuse(from, deck, lines, keys);
}

void require_same_data(const ResumePoint& from, const Deck& deck, const std::string& contents,
                       std::uint64_t vocab_hash) {
  // Other data may be allowed, but not with another vocabulary.
  require_vocabulary(from, vocab_hash);
  const bool known = !from.meta.contents.empty() && !contents.empty();
  const bool trained = from.checkpoint.manifest.step > 0;  // an imported model has seen no data
  if (trained && !(known && from.meta.contents == contents) && !allows_data(deck.checkpoint)) {
    std::string lines;
    std::vector<std::string> keys;
    for (const KeyChange& change : deck_changes(from.meta.deck, deck)) {
      if (on_resume(deck.families.table(), change.key) != OnResume::same_contents) continue;
      lines += line_of(change);
      keys.push_back(change.key);
    }
    // Facts that an older checkpoint does not store about its data follow from its deck.
    const bool told_less = keys.empty() && contents.starts_with(from.meta.contents + ", ");
    const bool changed = known && !told_less;
    if (changed)
      lines +=
          fmt::format("\n  the data were: {}\n  and are now:   {}", from.meta.contents, contents);
    if (changed && keys.empty()) keys.emplace_back("data.train");
    if (!keys.empty()) refuse(from, deck, lines, keys);
  }
}

bool is_changed(const ResumePoint& from, const Deck& deck, std::string_view key) {
  return std::ranges::any_of(deck_changes(from.meta.deck, deck),
                             [&](const KeyChange& change) { return change.key == key; });
}

std::string changes_report(const ResumePoint& from, const Deck& deck, const LrSchedule& schedule,
                           std::int64_t step, int data_parallel) {
  const std::vector<KeyChange> changes = deck_changes(from.meta.deck, deck);
  std::string text;
  for (const KeyChange& change : changes) text += line_of(change);
  if (std::any_of(changes.begin(), changes.end(), moves_learning_rate))
    text += learning_rate_report(from, deck, schedule, step, data_parallel);
  return text;
}

}  // namespace choir
