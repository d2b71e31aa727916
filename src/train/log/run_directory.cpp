#include "choir/train/log/run_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

bool write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  return static_cast<bool>(file.flush());
}

}  // namespace

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) close(lock_);
}

void RunDirectory::lock() {
  lock_ = open(log().c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) return;  // who opens the log will say why
  const double until = now_seconds() + kPatience;
  while (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // this file system has no locks
    if (now_seconds() > until)
      throw StorageError(
          "another run is using the run directory '" + path_ + "'",
          "wait until it ends (or stop it: touch " + stop_file() + "), or choose another run.dir");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void RunDirectory::create() {
  std::error_code failed;
  for (const std::string& folder : {path_, checkpoints(), samples()}) {
    fs::create_directories(folder, failed);
    if (failed)
      throw StorageError("cannot make the folder '" + folder + "': " + failed.message(),
                         "choose another place with run.dir");
  }
  lock();
  fs::remove(stop_file(), failed);
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
  std::error_code failed;
  if (write_text(deck() + ".new", json))
    fs::rename(deck() + ".new", deck(), failed);
  else
    failed = std::make_error_code(std::errc::io_error);
  if (failed)
    throw StorageError("cannot write '" + deck() + "': " + failed.message(), "is the disk full?");
}

bool RunDirectory::write_sample(std::int64_t step, const std::string& text) const {
  return write_text(samples() + fmt::format("/step_{:08}.txt", step), text);
}

}  // namespace choir
