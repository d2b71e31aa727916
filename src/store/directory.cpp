#include "src/store/directory.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/quantities.hpp"
#include "src/store/slab_io.hpp"

namespace choir {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTemporary = ".tmp";
constexpr const char* kReplaced = ".old";
constexpr const char* kLatest = "latest";

[[noreturn]] void fail(const std::string& doing, const std::string& path,
                       const std::error_code& why) {
  throw StorageError(fmt::format("cannot {} {}: {}", doing, path, why.message()),
                     storage_cure(why.value()));
}

void rename(const std::string& from, const std::string& to) {
  std::error_code why;
  fs::rename(from, to, why);
  if (why) fail("rename to " + to + " the directory", from, why);
}

void remove_tree(const std::string& path) {
  std::error_code why;
  fs::remove_all(path, why);
  if (why) fail("remove", path, why);
}

/// The step of "step_00000100.tmp" or "step_00000100.TAG.tmp" for that suffix, else -1.
std::int64_t step_before(const std::string& name, const std::string& suffix) {
  if (!name.ends_with(suffix)) return -1;
  const std::string stem = name.substr(0, name.size() - suffix.size());
  return step_of(stem.substr(0, stem.find('.')));
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code why;
  fs::directory_iterator at(path, why);
  if (why == std::errc::no_such_file_or_directory) return names;
  if (why) fail("list", path, why);
  for (; at != fs::directory_iterator(); at.increment(why)) {
    if (why) fail("list", path, why);
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// False if nothing has this name. Throws UnreadableError if that cannot be determined, and for a
/// dangling link, whose file system may be temporarily unavailable.
bool require_reachable(const std::string& path) {
  std::error_code why, ignored;
  const fs::file_status there = fs::status(path, why);
  if (!fs::status_known(there)) throw UnreadableError("look at", path, why.value());
  if (fs::exists(there)) return true;
  const fs::path target = fs::read_symlink(path, ignored);
  if (target.empty()) return false;
  throw UnreadableError("follow the link to " + target.string() + " of", path, ENOENT);
}

}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("step_{:08}", step);
}

std::int64_t step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step_";
  if (!name.starts_with(kPrefix)) return -1;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && step_name(step) == name ? step : -1;
}

std::string CheckpointDirectory::final_path(std::int64_t step) const {
  return path_ + "/" + step_name(step);
}

std::string CheckpointDirectory::temporary_path(std::int64_t step) const {
  return final_path(step) + (tag_.empty() ? "" : "." + tag_) + kTemporary;
}

std::vector<std::int64_t> CheckpointDirectory::steps() const {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(path_))
    if (const std::int64_t step = step_of(name); step >= 0) steps.push_back(step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::string CheckpointDirectory::begin(std::int64_t step) const {
  std::error_code why;
  if (fs::create_directories(path_, why)) {
    const fs::path parent = fs::absolute(path_).lexically_normal().parent_path();
    sync_directory(parent.string());
  }
  if (why) fail("make the directory", path_, why);
  const std::string temporary = temporary_path(step);
  remove_tree(temporary);
  fs::create_directory(temporary, why);
  if (why) fail("make the directory", temporary, why);
  return temporary;
}

void CheckpointDirectory::commit(std::int64_t step, const std::function<void()>& between) const {
  const std::string target = final_path(step);
  const std::string aside = target + kReplaced;
  sync_directory(temporary_path(step));
  const bool replaces = fs::exists(fs::symlink_status(target));
  if (replaces) {
    remove_tree(aside);
    rename(target, aside);
    try {
      if (between) between();
      rename(temporary_path(step), target);
    } catch (...) {
      if (!fs::exists(target)) rename(aside, target);
      throw;
    }
  } else {
    rename(temporary_path(step), target);
  }
  sync_directory(path_);
  std::error_code later;  // recover() removes leftovers
  if (replaces) fs::remove_all(aside, later);
}

std::string CheckpointDirectory::point_latest(std::int64_t step) const {
  const std::string link = path_ + "/" + kLatest;
  const std::string fresh = link + kTemporary;
  std::error_code why;
  const fs::file_status there = fs::symlink_status(link, why);
  std::string line;
  if (fs::exists(there) && !fs::is_symlink(there)) {  // perhaps from a copy that followed links
    int number = 1;
    const auto place = [&] { return fmt::format("{}.moved-{}", link, number); };
    while (fs::exists(fs::symlink_status(place()))) ++number;
    rename(link, place());
    line = fmt::format("{} was not a link to a checkpoint: moved to {}", link, place());
  }
  fs::remove(fresh, why);
  fs::create_symlink(step_name(step), fresh, why);
  if (why) fail("make the link", fresh, why);
  fs::rename(fresh, link, why);
  if (why) fail("replace the link", link, why);
  sync_directory(path_);
  return line;
}

void CheckpointDirectory::remove(std::int64_t step) const {
  const std::string doomed = temporary_path(step);
  remove_tree(doomed);
  rename(final_path(step), doomed);
  remove_tree(doomed);
}

void CheckpointDirectory::discard_temporary(std::int64_t step) const noexcept {
  std::error_code ignored;
  fs::remove_all(temporary_path(step), ignored);
}

std::vector<std::string> CheckpointDirectory::recover() const {
  std::vector<std::string> lines;
  for (const std::string& name : names_in(path_)) {
    const std::int64_t replaced = step_before(name, kReplaced);
    const bool unfinished = step_before(name, kTemporary) >= 0 || name == "latest.tmp";
    if (replaced < 0 && !unfinished) continue;
    const std::string path = path_ + "/" + name;
    try {
      if (replaced >= 0 && !fs::exists(final_path(replaced))) {
        rename(path, final_path(replaced));
        lines.push_back(fmt::format("restored {} from an interrupted save", final_path(replaced)));
      } else {
        remove_tree(path);
        lines.push_back(fmt::format("removed {}, left by an interrupted save", path));
      }
    } catch (const std::exception& error) {
      lines.push_back(fmt::format("leftover: {}", plain_cause(error)));
    }
  }
  return lines;
}

std::string read_text_file(const std::string& path) {
  constexpr std::int64_t kMostMiB = 256;
  const File file(path, File::Mode::read);
  if (file.bytes() > kMostMiB << 20)
    throw StorageError(
        fmt::format("'{}' has {} bytes, more than {} MiB", path, file.bytes(), kMostMiB),
        "it may be another kind of file");
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read_at(text.data(), static_cast<std::int64_t>(text.size()), 0);
  return text;
}

void write_text_file(const std::string& path, const std::string& text) {
  File file(path, File::Mode::create);
  file.write_at(text.data(), static_cast<std::int64_t>(text.size()), 0);
  file.sync();
  file.close();
}

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestName;
  require_reachable(checkpoint);
  if (!require_reachable(path)) throw StorageError("no " + path, "its save never finished");
  const std::string text = read_text_file(path);
  Manifest manifest;
  try {
    manifest = Manifest::parse(text);
  } catch (const StorageError& error) {
    throw StorageError(fmt::format("{} is damaged: {}", path, error.what()), error.hint());
  }
  const std::int64_t bytes = File(checkpoint + "/" + kStateName, File::Mode::read).bytes();
  if (bytes != manifest.state_bytes)
    throw StorageError(fmt::format("{}/{} has {} bytes, the manifest says {}", checkpoint,
                                   kStateName, bytes, manifest.state_bytes));
  return manifest;
}

std::vector<std::int64_t> steps_to_delete(const std::vector<RetentionEntry>& valid,
                                          const Retention& rules, std::int64_t just_saved) {
  std::vector<RetentionEntry> entries = valid;
  std::sort(entries.begin(), entries.end(),
            [](const RetentionEntry& a, const RetentionEntry& b) { return a.step < b.step; });
  const RetentionEntry* best = nullptr;
  for (const RetentionEntry& entry : entries)
    if (entry.metric && !std::isnan(*entry.metric) && (!best || *entry.metric < *best->metric))
      best = &entry;
  const auto kept = static_cast<std::size_t>(std::max(rules.keep_last, 1));
  std::vector<std::int64_t> doomed;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const RetentionEntry& entry = entries[i];
    const bool recent = i + kept >= entries.size();
    const bool milestone = rules.keep_every > 0 && entry.step % rules.keep_every == 0;
    const bool is_best = rules.keep_best && &entry == best;
    if (!recent && !milestone && !is_best && entry.step != just_saved &&
        entry.step != rules.keep_step)
      doomed.push_back(entry.step);
  }
  return doomed;
}

}  // namespace choir
