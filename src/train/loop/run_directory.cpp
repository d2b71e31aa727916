// The files of a run, and the ownership of its directory.

#include "src/train/loop/run_directory.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/store/directory.hpp"

namespace choir {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t kRecordBytes = 512;  // more than the size of any record

[[noreturn]] void fail(const std::string& doing, const std::string& path, int error) {
  if (error == ELOOP)  // O_NOFOLLOW
    throw StorageError(fmt::format("'{}' is a link, not a file", path), "move it away");
  throw StorageError(fmt::format("cannot {} '{}': {}", doing, path, std::strerror(error)),
                     storage_cure(error));
}

/// Owns a descriptor.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : file_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)) {}
  ~Descriptor() {
    if (file_ >= 0) close(file_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

/// Returns the line of a record without its line end; "" for a file that is still empty.
std::string record_in(int file, const std::string& path) {
  std::array<char, kRecordBytes> text{};
  const ssize_t bytes = pread(file, text.data(), text.size(), 0);
  if (bytes < 0) fail("read", path, errno);
  const std::string all(text.data(), static_cast<std::size_t>(bytes));
  return all.substr(0, all.find('\n'));
}

/// Reads a record; nothing if there is no file. The file is opened each time, because an open file
/// may be stale over NFS.
std::optional<std::string> read_record(const std::string& path) {
  require_regular(path);
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0 && errno == ENOENT) return std::nullopt;
  if (file.get() < 0) fail("read", path, errno);
  return record_in(file.get(), path);
}

/// Start of a process since boot in ticks of the kernel, because seconds would not distinguish two
/// processes with the same number; "" for a process that has ended.
std::string start_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name = line.rfind(')');
  if (name == std::string::npos) return {};
  std::istringstream fields(line.substr(name + 1));
  constexpr int kStart = 19;  // index among the fields after the state
  std::string state, field;
  fields >> state;
  if (state == "Z" || state == "X") return {};
  for (int i = 0; i < kStart; ++i) fields >> field;
  return field;
}

/// Process numbers are unique only in one namespace of one boot of one host.
std::string process_space(const std::string& host) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::array<char, 64> space{};
  if (readlink("/proc/self/ns/pid", space.data(), space.size() - 1) < 0) space[0] = 0;
  return fmt::format("{:016x}", std::hash<std::string>()(host + boot + space.data()));
}

/// An identity that a directory keeps when it is moved; a copy has another one.
std::string identity_of(const std::string& directory) {
  struct stat status {};
  return stat(directory.c_str(), &status) == 0 ? std::to_string(status.st_ino) : "-";
}

std::string random_token() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

/// "node7 4711 81023 5f0e.. 1835 91ac.. 0000000003": host, process, its start, process space,
/// directory, token and number. Records of older versions also begin with host and process.
struct Record {
  std::string host, process, start, space, directory, token;

  explicit Record(const std::string& line) {
    std::istringstream fields(line);
    fields >> host >> process >> start >> space >> directory >> token;
  }
  std::string owner() const {
    return host.empty() ? "unknown" : fmt::format("process {} on {}", process, host);
  }
};

}  // namespace

RunLock::RunLock(const std::string& directory, const std::string& log, Options options)
    : directory_(directory),
      path_(directory + "/in_use"),
      token_(random_token()),
      options_(std::move(options)) {
  const std::string self = std::to_string(getpid());
  identity_ = fmt::format("{} {} {} {} {} {}", options_.host, self, start_of(self),
                          process_space(options_.host), identity_of(directory), token_);
  file_ = open(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) return;  // opening the log will report the error
  try {
    acquire();
  } catch (...) {
    close(file_);
    throw;
  }
  thread_ = std::thread([this] { give_signs(); });
}

RunLock::~RunLock() {
  if (thread_.joinable()) {
    {
      const std::lock_guard guard(mutex_);
      ending_ = true;
    }
    ends_.notify_all();
    thread_.join();
  }
  if (file_ >= 0) close(file_);
}

void RunLock::acquire() {
  const double until = now_seconds() + options_.patience;
  const std::string space = process_space(options_.host);
  Lock lock = try_lock(options_.patience);
  for (;;) {
    const std::optional<std::string> record = read_record(path_);
    const Record owner(record.value_or(""));
    // On this host the kernel knows whether the owner is alive, by the lock and by the process.
    const bool here = !record || owner.space == space;
    const bool alive = here && !owner.start.empty() && owner.start == start_of(owner.process) &&
                       owner.directory == identity_of(directory_);
    if (here && lock == Lock::held) refuse(alive ? *record : "");
    if (alive) {
      if (now_seconds() > until) refuse(*record);
      std::this_thread::sleep_for(Milliseconds(20));
      continue;
    }
    if (!here) {
      if (options_.say)
        options_.say(fmt::format("'{}' was left in use by {}: waiting for a sign of life from it",
                                 directory_, owner.owner()));
      if (lives(*record)) refuse(*record);
      if (lock == Lock::held) lock = try_lock(options_.lease);
      if (lock == Lock::held) refuse(*record);
    }
    if (claim(record)) return;
  }
}

RunLock::Lock RunLock::try_lock(double seconds) const {
  const auto lock = options_.lock != nullptr ? options_.lock : flock;
  const double until = now_seconds() + seconds;
  while (lock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return Lock::none;
    if (now_seconds() > until) return Lock::held;
    std::this_thread::sleep_for(Milliseconds(20));
  }
  return Lock::mine;
}

bool RunLock::lives(const std::string& last) const {
  const double until = now_seconds() + 3 * options_.beat;
  while (now_seconds() < until) {
    std::this_thread::sleep_for(Milliseconds(100));
    const std::optional<std::string> record = read_record(path_);
    if (!record) return false;  // it has just ended
    if (*record != last) return true;
  }
  return false;
}

bool RunLock::claim(const std::optional<std::string>& dead) {
  if (dead) {
    const std::string aside = path_ + "." + token_;
    if (std::rename(path_.c_str(), aside.c_str()) != 0) {
      if (errno == ENOENT) return false;
      fail("rename", path_, errno);
    }
    // Between the read and the rename another run may have started, or the dead one woken up.
    const bool same = read_record(aside) == dead;
    if (!same) (void)!link(aside.c_str(), path_.c_str());
    unlink(aside.c_str());
    if (!same) return false;
  }
  const Descriptor file(path_, O_WRONLY | O_CREAT | O_EXCL);
  if (file.get() < 0 && errno == EEXIST) return false;
  if (file.get() < 0) fail("create", path_, errno);
  const std::string text = sign();
  if (write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return true;
  const int why = errno;
  unlink(path_.c_str());
  fail("write", path_, why);
}

void RunLock::refuse(const std::string& record) const {
  throw StorageError(
      fmt::format("another run{} is using the run directory '{}'",
                  record.empty() ? "" : fmt::format(" ({})", Record(record).owner()), directory_),
      fmt::format("wait until it ends (or stop it: touch {}/stop_now), or choose another run.dir",
                  directory_));
}

std::string RunLock::sign() const {
  return fmt::format("{} {:010}\n", identity_, number_);
}

// The file is read and written through one descriptor: if another run has meanwhile put its own
// file under that name, the write goes to the old one. It is overwritten in place, so that a full
// disk does not matter.
std::optional<std::string> RunLock::renew() const {
  constexpr int kTries = 10;  // a run that collides with others at its start restores the file
  for (int i = 0; i < kTries; ++i) {
    const Descriptor file(path_, O_RDWR);
    if (file.get() < 0 && errno != ENOENT) fail("open", path_, errno);
    if (file.get() >= 0) {
      const std::string record = record_in(file.get(), path_);
      if (Record(record).token != token_) return record;
      ++number_;
      const std::string text = sign();
      if (pwrite(file.get(), text.data(), text.size(), 0) < 0) fail("write", path_, errno);
      return std::nullopt;
    }
    std::this_thread::sleep_for(Milliseconds(20));
  }
  return "";
}

void RunLock::require_owned() const {
  if (file_ < 0) return;
  const std::lock_guard guard(mutex_);
  look();
  if (!lost_) return;
  throw StorageError(
      fmt::format("this run does not own the run directory '{}' any more: {}", directory_,
                  successor_),
      "it was suspended for too long, or its file in_use was removed; it no longer saves: let the "
      "other run continue, or stop it and run the same command again");
}

void RunLock::look() const {
  if (lost_) return;
  const std::optional<std::string> other = renew();
  if (!other) return;
  successor_ = other->empty()
                   ? fmt::format("the file '{}' is gone", path_)
                   : fmt::format("the run ({}) has taken it over", Record(*other).owner());
  lost_ = true;
}

void RunLock::give_signs() {
  std::unique_lock guard(mutex_);
  bool owned = true;
  while (!ending_) {
    ends_.wait_for(guard, std::chrono::duration<double>(options_.beat), [&] { return ending_; });
    try {
      look();
      if (lost_) return;
      owned = true;
    } catch (const StorageError&) {
      owned = false;  // the file system may work next time; a save would report the error
    }
  }
  if (owned) unlink(path_.c_str());
}

namespace {

namespace fs = std::filesystem;

std::string cure_of(const std::error_code& failed) {
  const std::string cure = storage_cure(failed.value());
  return cure.empty() ? "choose another folder with run.dir" : cure;
}

}  // namespace

RunDirectory::RunDirectory(std::string path) : path_(std::move(path)) {}
RunDirectory::~RunDirectory() = default;

std::string RunDirectory::checkpoints_of_all() const {
  auto path = std::filesystem::path(path_).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "runs/a/"
  const auto folder = path.parent_path();
  return folder.empty() ? "" : (folder / "checkpoints.log").string();
}

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

void RunDirectory::write_deck(const std::string& json, const std::string& source) const {
  std::string text = json;
  std::error_code unknown;
  if (fs::equivalent(source, deck(), unknown)) {
    auto resolved = parsed_ordered_json(json);
    const auto given = ordered_json_unless_broken(read_text_file(source));
    if (given.is_object() && given.contains("decks")) {
      resolved["decks"] = given["decks"];
      text = dumped(resolved, 2) + "\n";
    }
  }
  write_text_file(deck() + ".new", text);
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
