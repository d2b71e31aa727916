#pragma once
// A thread that reads and writes one file in the order of the requests.
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
    std::size_t offset = 0, bytes = 0;  ///< offset in the file
  };
  struct Job {
    bool write = false;
    int pieces = 0;
    std::array<Piece, 4> piece{};
  };

  explicit FileReaderWriter(const OffloadMemory& file);
  /// Finishes all posted jobs, or stops at the first failure.
  ~FileReaderWriter();

  /// Returns the number of the job, counted from 1. Allocates nothing.
  std::uint64_t post(const Job& job);
  /// Waits until the job is done. Throws the exception of this job or of an earlier one; so does
  /// every later wait.
  void wait(std::uint64_t job);

 private:
  static constexpr std::uint64_t kMost = 8;  // limit of posted, unfinished jobs
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
