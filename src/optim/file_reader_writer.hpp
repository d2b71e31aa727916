#pragma once
// A thread that reads and writes one file in the order it is asked to.
#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "choir/device/offload_memory.hpp"

namespace choir {

class FileReaderWriter {
 public:
  struct Piece {
    std::byte* memory = nullptr;
    std::size_t offset = 0, bytes = 0;  ///< in the file
  };
  struct Job {
    bool write = false;
    int pieces = 0;
    std::array<Piece, 4> piece{};
  };

  explicit FileReaderWriter(const OffloadMemory& file);
  /// Does what it was asked to, or stops at the first failure.
  ~FileReaderWriter();

  /// The number of the job, from 1 on. Allocates nothing.
  std::uint64_t post(const Job& job);
  /// Until it is done. Throws what this job or one before it threw; so does every wait after that.
  void wait(std::uint64_t job);

 private:
  static constexpr std::uint64_t kMost = 8;  // posted and not done
  void run();
  void work(const Job& job) const;

  const OffloadMemory* file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Job, kMost> jobs_{};
  std::uint64_t posted_ = 0, done_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace choir
