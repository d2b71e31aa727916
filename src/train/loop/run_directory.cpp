#include "choir/train/loop/run_directory.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/core/failure.hpp"
#include "choir/core/printable.hpp"
#include "choir/core/regular_file.hpp"
#include "choir/store/directory.hpp"
#include "src/train/loop/run_lock.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

std::string cure_of(const std::error_code& failed) {
  const std::string cure = storage_cure(failed.value());
  return cure.empty() ? "choose another folder with run.dir" : cure;
}

}  // namespace

RunDirectory::RunDirectory(std::string path) : path_(std::move(path)) {}
RunDirectory::~RunDirectory() = default;

void RunDirectory::require_writable() const {
  for (const std::string& file : {deck(), log(), metrics()}) {
    require_regular(file);
    if (access(file.c_str(), F_OK) == 0 && access(file.c_str(), W_OK) != 0)
      throw StorageError("cannot write '" + file + "': " + std::strerror(errno),
                         storage_cure(errno));
  }
  // The first existing parent folder decides.
  std::error_code failed;
  fs::path there = fs::absolute(path_).lexically_normal();
  while (!fs::exists(there, failed) && !failed && there.has_relative_path())
    there = there.parent_path();
  if (!failed && !fs::is_directory(there))
    failed = std::make_error_code(std::errc::not_a_directory);
  if (!failed && access(there.c_str(), W_OK | X_OK) != 0)
    failed = std::error_code(errno, std::generic_category());
  if (failed)
    throw StorageError(fmt::format("cannot create the folder '{}' in '{}': {}", path_,
                                   there.string(), failed.message()),
                       cure_of(failed));
}

void RunDirectory::create(const std::function<void(const std::string&)>& say) {
  std::error_code failed;
  for (const std::string& folder : {path_, checkpoints(), samples()}) {
    fs::create_directories(folder, failed);
    if (failed)
      throw StorageError("cannot create the folder '" + folder + "': " + failed.message(),
                         cure_of(failed));
  }
  for (const std::string& file : {deck(), log(), metrics()}) require_regular(file);
  lock_ = std::make_shared<RunLock>(path_, log(), RunLock::Options{.say = say});
  fs::remove(stop_file(), failed);
}

void RunDirectory::require_owned() const {
  if (lock_) lock_->require_owned();
}

bool RunDirectory::lost() const {
  return lock_ && lock_->lost();
}

std::function<void()> RunDirectory::ownership() const {
  if (!lock_) return {};
  return [lock = lock_] { lock->require_owned(); };
}

std::string RunDirectory::token() const {
  return lock_ ? lock_->token() : "";
}

std::string RunDirectory::set_aside() const {
  std::error_code failed;
  int number = 1;
  const auto place = [&] { return fmt::format("{}/before-{}", path_, number); };
  while (fs::exists(place())) ++number;
  fs::create_directory(place(), failed);
  if (!failed) fs::rename(checkpoints(), place() + "/checkpoints", failed);
  if (!failed) fs::create_directory(checkpoints(), failed);
  if (!failed && fs::exists(metrics()))
    fs::copy_file(metrics(), place() + "/metrics.jsonl", failed);
  if (failed)
    throw StorageError(
        "cannot move the earlier checkpoints to '" + place() + "': " + failed.message(),
        "choose another run.dir");
  return place();
}

void RunDirectory::write_deck(const std::string& json) const {
  write_text_file(deck() + ".new", json);
  fs::rename(deck() + ".new", deck());
}

void RunDirectory::write_start(const std::string& text) const {
  write_text_file(start(), printable(text));
}

bool RunDirectory::write_sample(std::int64_t step, const std::string& text) const {
  try {
    write_text_file(samples() + fmt::format("/step_{:08}.txt", step), text);
    return true;
  } catch (const StorageError&) {
    return false;
  }
}

}  // namespace choir
