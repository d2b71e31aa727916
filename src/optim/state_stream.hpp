#pragma once
// Streams of optimizer state that is kept outside of the device (OffloadedState): a thread that
// reads and writes a file, and the stream that moves state to the update and back, chunk by chunk.
// While one chunk is updated, the next is fetched and the previous one is written back. The update
// sees device memory and treats it like resident state.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/device/offload_memory.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "choir/parallel/sharding/sharding.hpp"

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
    std::array<Piece, OffloadedState::kFields> piece{};
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

/// Cost of a step: the bytes of the state in each direction, all of which overlap with the update
/// except the first fetch and the last write-back (a chunk each):
///
///   host   copies on two streams beside the main one: max(update, bytes / rate of the link)
///   file   reads and writes of one thread:            max(update, 2 bytes / rate of the file)
///
/// On the CPU, that thread competes with the update for memory bandwidth and cores. Device memory:
/// three windows of one chunk; for a file beside a GPU, the same amount of pinned host memory.
/// Gradients in host memory (OffloadedState::gradient) are copied to the windows and not back.
class StateStream {
 public:
  static constexpr int kWindows = 3;
  /// Device memory with one chunk of every field that is outside.
  using Window = std::array<TensorView, OffloadedState::kFields>;

  /// `chunks` are ranges of the flat arrays, at most state.chunk() elements each, in the order of
  /// use.
  static std::unique_ptr<StateStream> make(const OffloadedState& state, Device& device,
                                           std::vector<Range> chunks);
  virtual ~StateStream() = default;

  /// Begins a pass over the chunks with these indices. All of them must then be acquired and
  /// released one after another, and end() makes later work of `stream` see that everything is
  /// written back, the next pass included. Nothing is allocated. Throws StorageError.
  void begin(const Stream& stream, const Range& chunks);
  /// The same over all chunks.
  void begin(const Stream& stream) { begin(stream, {0, std::ssize(chunks_)}); }
  /// Work that is queued on `stream` from here on finds the chunk in the window.
  Window acquire();
  /// Writes back the chunk after all work queued so far.
  void release();
  void end();

  void add_to(MemoryPlan& plan) const;

 protected:
  StateStream(const OffloadedState& state, Device& device, std::vector<Range> chunks);

  // Chunks are numbered within the pass.
  virtual void start() = 0;  ///< begins a pass; may fetch
  virtual void await(int chunk) = 0;
  virtual void updated(int chunk) = 0;
  virtual void complete() = 0;

  const OffloadedState& state() const { return *state_; }
  const Stream& stream() const { return stream_; }
  int count() const { return static_cast<int>(pass_.count); }
  const Range& range(int chunk) const {
    return chunks_[static_cast<std::size_t>(pass_.first + chunk)];
  }
  /// The chunk of a field in windows that begin at `base`.
  TensorView view(void* base, int chunk, OffloadedState::Field field) const;
  void* device_windows() const { return windows_.data(); }
  std::size_t window_bytes() const { return window_bytes_; }
  /// Calls action(field) for every field that is outside.
  template <class Action>
  void for_fields(const Action& action) const {
    for (int f = 0; f < OffloadedState::kFields; ++f)
      if (const auto field = static_cast<OffloadedState::Field>(f); state_->has(field))
        action(field);
  }
  /// The same without gradients, which are not in the memory of the state.
  template <class Action>
  void for_state(const Action& action) const {
    for_fields([&](OffloadedState::Field field) {
      if (field != OffloadedState::gradient) action(field);
    });
  }
  /// The chunk of a field in host memory.
  void* outside(int chunk, OffloadedState::Field field) const {
    return state_->of(field).slice(range(chunk).first, range(chunk).count).data;
  }

  OffloadMemory host_windows_;

 private:
  const OffloadedState* state_;
  Stream stream_;
  std::vector<Range> chunks_;
  Range pass_;                                                 // the chunks of the pass
  std::array<std::size_t, OffloadedState::kFields> offset_{};  // offset of a field in a window
  std::size_t window_bytes_ = 0;
  Buffer windows_;
  int next_ = 0;
};

}  // namespace choir
