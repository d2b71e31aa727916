#pragma once
// The names in <run>/checkpoints and their changes, one rename at a time. All functions are local
// and meant for one rank. Step 100 may have
//   step_00000100      complete: renamed to this name after its last byte was on disk
//   step_00000100.TAG.tmp  being written or deleted; worthless. TAG is random for every
//                          start of a run, so that a run that was replaced never touches the files
//                          of its successor; tools that own their folder use none
//   step_00000100.old  complete, and about to be replaced by a new save of the same step
//   latest             a symbolic link to the newest, for people; readers do not rely on it

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/store/manifest.hpp"

namespace choir {

class CheckpointDirectory {
 public:
  explicit CheckpointDirectory(std::string path, std::string tag = "")
      : path_(std::move(path)), tag_(std::move(tag)) {}

  const std::string& path() const { return path_; }
  std::string final_path(std::int64_t step) const;      ///< .../step_00000100
  std::string temporary_path(std::int64_t step) const;  ///< .../step_00000100.TAG.tmp

  /// Steps with a directory of a complete checkpoint's name, newest first. Empty if the folder does
  /// not exist.
  std::vector<std::int64_t> steps() const;
  /// Creates the directory, and an empty temporary_path(step) in it.
  std::string begin(std::int64_t step) const;
  /// Renames temporary_path(step) to step_N, durably. An existing step_N becomes .old and is
  /// removed. `between` is called after the old one was moved and before the new one has its name.
  void commit(std::int64_t step, const std::function<void()>& between = {}) const;
  /// Points `latest` to the step. If something else has that name, moves it aside and returns a
  /// line about it, else "".
  std::string point_latest(std::int64_t step) const;
  /// Renames to .tmp first, so that a kill cannot leave a partial checkpoint under a valid name.
  void remove(std::int64_t step) const;
  /// Never throws.
  void discard_temporary(std::int64_t step) const noexcept;
  /// After a kill: renames .old without its successor back and removes other leftovers. Returns one
  /// line for each. A leftover that cannot be removed is a line, not an error.
  std::vector<std::string> recover() const;

 private:
  std::string path_, tag_;
};

/// "step_00000100"
std::string step_name(std::int64_t step);
/// -1 unless the name has exactly that form.
std::int64_t step_of(const std::string& name);

/// Reads a small file. Throws StorageError.
std::string read_text_file(const std::string& path);
/// Writes and fsyncs.
void write_text_file(const std::string& path, const std::string& text);

/// Reads the manifest in a checkpoint and compares the sizes of its files; no checksum of state.h5.
Manifest read_manifest(const std::string& checkpoint);

// Retention of checkpoints: a pure function.

/// A checkpoint is kept if any rule keeps it. The newest is always kept.
struct Retention {
  int keep_last = 3;            ///< at least 1
  std::int64_t keep_every = 0;  ///< keeps steps that are multiples; 0: none
  bool keep_best = true;        ///< smallest metric, the earliest of equals; NaN does not count
  std::int64_t keep_step = -1;  ///< keeps this step; -1: none
};

struct RetentionEntry {
  std::int64_t step = 0;
  std::optional<double> metric;
};

/// Steps to delete, ascending. `just_saved` is kept even if others are newer.
std::vector<std::int64_t> steps_to_delete(const std::vector<RetentionEntry>& valid,
                                          const Retention& rules, std::int64_t just_saved);

}  // namespace choir
