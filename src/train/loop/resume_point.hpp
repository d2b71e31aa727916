#pragma once
// The checkpoint that a run continues from, and the check whether it may: changes of the deck are
// listed key by key, and refused if the run would no longer be the same.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/optim/lr_schedule.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/open.hpp"

namespace choir {

struct ResumePoint {
  Checkpoint checkpoint;
  TrainMeta meta;
};

/// Follows checkpoint.resume; returns nothing if the run starts from scratch. The owner of the
/// folder first completes what a killed run left there. Throws StorageError if every checkpoint is
/// damaged or none fits, and DeckError, before any data is opened, for changes that
/// checkpoint.allow_changes does not allow. Collective.
std::optional<ResumePoint> find_resume_point(const Deck& deck, const std::string& folder,
                                             Communicator& world, Logger& log);

/// The point of a run that would continue from `found`. Throws DeckError for changes of fixed keys
/// that checkpoint.allow_changes does not allow; the vocabulary of the data need not be known yet.
/// Local.
ResumePoint resume_point_of(Checkpoint found, const Deck& deck);

/// Throws DeckError for changes of fixed keys that the deck does not allow. Local.
void require_allowed(const ResumePoint& from, const Deck& deck);

/// Throws DeckError unless the data has the same contents as before, wherever it is stored, or the
/// deck allows other data; DataError if the data has another vocabulary, which would make the
/// trained model meaningless. `contents` and `vocab_hash` describe the data, "" and 0 if unknown.
/// Local.
void require_same_data(const ResumePoint& from, const Deck& deck, const std::string& contents,
                       std::uint64_t vocab_hash);

/// True if the value of this key differs from the checkpoint. Local.
bool is_changed(const ResumePoint& from, const Deck& deck, std::string_view key);

/// A line "  key: old -> new" for every key whose value differs from the checkpoint; if the
/// learning rate changes, one line about it. "" if nothing differs. `step` steps are done;
/// `schedule` applies to the following steps. Local.
std::string changes_report(const ResumePoint& from, const Deck& deck, const LrSchedule& schedule,
                           std::int64_t step, int data_parallel);

}  // namespace choir
