#pragma once
// What a run continues from, and whether it may: a deck that was changed in between is told key by
// key, and refused where the run would not be the one that was begun.
#include <optional>
#include <string>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/optim/optimizer.hpp"
#include "choir/store/open.hpp"
#include "choir/train/step/train_checkpoint.hpp"

namespace choir {

struct ResumePoint {
  Checkpoint checkpoint;
  TrainMeta meta;
};

/// Collective. Follows checkpoint.resume; nothing where the run starts anew. The owner of the
/// folder completes there what a killed run left. StorageError when every checkpoint is damaged, or
/// none fits; DeckError, before any data are opened, for changes that checkpoint.allow_changes does
/// not allow.
std::optional<ResumePoint> find_resume_point(const Deck& deck, const std::string& folder,
                                             Communicator& world, Logger& log);

/// Local. Changes that the deck must allow: of keys that a run rests on. DeckError.
void require_allowed(const ResumePoint& from, const Deck& deck);

/// Local. The data must be those of before, wherever they are now, unless the deck allows others:
/// DeckError. DataError when they have another vocabulary: nothing trained before would mean
/// anything. `contents`, `vocab_hash`: of the data, "" and 0 for unknown.
void require_same_data(const ResumePoint& from, const Deck& deck, const std::string& contents,
                       std::uint64_t vocab_hash);

/// Local. A line for every key that has another value than in the checkpoint, "  key: old -> new";
/// where they change the learning rate, one about it. "" where nothing is different. `step` steps
/// are done; `schedule` is that of the steps to come.
std::string changes_report(const ResumePoint& from, const Deck& deck, const LrSchedule& schedule,
                           std::int64_t step, int data_parallel);

}  // namespace choir
