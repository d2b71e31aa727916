#include "src/comm/node/room_lock.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/regular_file.hpp"

namespace choir {
namespace {

constexpr const char* kElsewhere = "or set parallel.transport=mpi, which needs no shared memory";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw CommError(fmt::format("the lock '{}' of this node's shared memory {}", path, why),
                  fmt::format("remove it, {}", kElsewhere));
}

void require_own(int file, const std::string& path) {
  struct stat status {};
  if (fstat(file, &status) != 0) refuse(path, std::strerror(errno));
  if (const std::string kind = unusual_kind(status.st_mode); !kind.empty())
    refuse(path, fmt::format("is {}, not a file", kind));
  if (status.st_uid != geteuid())
    refuse(path, fmt::format("belongs to user {}, not to {}", status.st_uid, geteuid()));
}

/// "process 4711 (choir)"; the kernel lists the holders of a lock, except processes of containers.
std::string holder_of(int file) {
  struct stat status {};
  if (fstat(file, &status) != 0) return "an unknown process";
  const std::string inode = fmt::format(":{}", status.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream fields(line);
    std::string number, kind, mode, access, process, place;
    fields >> number >> kind >> mode >> access >> process >> place;
    if (kind != "FLOCK" || !place.ends_with(inode)) continue;
    std::ifstream command("/proc/" + process + "/comm");
    std::string name;
    std::getline(command, name);
    return fmt::format("process {}{}", process, name.empty() ? "" : " (" + name + ")");
  }
  return "an unknown process";
}

}  // namespace

std::string RoomLock::usual_path() {
  return fmt::format("/dev/shm/choir-{}.lock", geteuid());
}

RoomLock::RoomLock(const std::string& path, double seconds, const std::function<void()>& idle) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_ = open(path.c_str(), kFlags, 0600);
  if (file_ < 0) {
    if (errno == ELOOP) refuse(path, "is a link");
    if (errno == EISDIR || errno == EACCES || errno == ENXIO)
      refuse(path, fmt::format("cannot be opened ({}): does it belong to another user?",
                               std::strerror(errno)));
    return;
  }
  try {
    require_own(file_, path);
    const double until = now_seconds() + seconds;
    while (flock(file_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      if (now_seconds() > until)
        throw CommError(fmt::format("the lock '{}' of this node's shared memory is held by {} for "
                                    "more than {}",
                                    path, holder_of(file_), format_duration(seconds)),
                        fmt::format("end that process, {}", kElsewhere));
      idle();
      usleep(200);
    }
  } catch (...) {
    close(file_);
    throw;
  }
}

RoomLock::~RoomLock() {
  if (file_ >= 0) close(file_);
}

}  // namespace choir
