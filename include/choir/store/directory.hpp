#pragma once
// The names in <run>/checkpoints and how they change, one rename at a time. All of it is local and
// meant for one rank. Of step 100 there may be
//   step_00000100      complete: it was renamed to this after its last byte was on disk
//   step_00000100.TAG.tmp  being written, or being deleted; worth nothing. TAG is random for every
//                          start of a run, so that a run which was replaced never meets the files
//                          of its successor; tools that own their folder have none
//   step_00000100.old  complete, and about to be replaced by a new save of the same step
//   latest             a symbolic link to the newest, for people; the reader does not trust it
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/store/manifest.hpp"

namespace choir {

class CheckpointDirectory {
 public:
  explicit CheckpointDirectory(std::string path, std::string tag = "")
      : path_(std::move(path)), tag_(std::move(tag)) {}

  const std::string& path() const { return path_; }
  std::string final_path(std::int64_t step) const;      ///< .../step_00000100
  std::string temporary_path(std::int64_t step) const;  ///< .../step_00000100.TAG.tmp

  /// Steps that have a complete-looking directory, newest first. Empty when there is no directory.
  std::vector<std::int64_t> steps() const;
  /// Makes the directory, and an empty temporary_path(step) in it.
  std::string begin(std::int64_t step) const;
  /// Renames temporary_path(step) to step_N, durably; a step_N that is in the way becomes .old and
  /// goes. `between` is called when the old one has gone aside and the new one is not yet in its
  /// place.
  void commit(std::int64_t step, const std::function<void()>& between = {}) const;
  /// What else stood under that name is moved aside; then returns a line that says so, else "".
  std::string point_latest(std::int64_t step) const;
  /// Renames to .tmp first, so that a kill cannot leave half a checkpoint under a good name.
  void remove(std::int64_t step) const;
  /// Never throws.
  void discard_temporary(std::int64_t step) const noexcept;
  /// After a kill: .old without its successor is renamed back, other leftovers are removed. Returns
  /// one line for each. A leftover that cannot be removed is a line, not an error.
  std::vector<std::string> recover() const;

 private:
  std::string path_, tag_;
};

/// "step_00000100"
std::string step_name(std::int64_t step);
/// -1 when the name is not exactly of that form.
std::int64_t step_of(const std::string& name);

/// The text of a small file. StorageError.
std::string read_text_file(const std::string& path);
/// Writes and fsyncs.
void write_text_file(const std::string& path, const std::string& text);

/// Reads the manifest in a checkpoint and compares the sizes of its files; no checksum of state.h5.
Manifest read_manifest(const std::string& checkpoint);

}  // namespace choir
